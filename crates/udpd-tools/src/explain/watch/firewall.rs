//! Rules of nftables that may drop, as `nft` lists them, with what their counters counted meanwhile.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::explain::evidence::FirewallRule;

/// Each rule by where it stands, with its counter.
pub(super) type RuleList = BTreeMap<(String, String, String), (FirewallRule, Option<u64>)>;

/// What `nft` lists; empty where there is no nft or it may not.
pub(super) fn list() -> RuleList {
    let output =
        Command::new("nft").args(["-a", "list", "ruleset"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map_or_else(|_| RuleList::new(), |output| parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Those of the second list, with what was counted since the first one.
pub(super) fn counted(before: &RuleList, after: RuleList) -> Vec<FirewallRule> {
    let since = |key: &_, now: Option<u64>| Some(now?.saturating_sub(before.get(key).and_then(|(_, count)| *count)?));
    after.into_iter().map(|(key, (rule, count))| FirewallRule { counted: since(&key, count), ..rule }).collect()
}

/// Rules with `drop` or `reject` in them, and the policies of chains that drop.
fn parse(text: &str) -> RuleList {
    let mut found = RuleList::new();
    // The blocks in which a line stands, from the outermost one.
    let mut blocks: Vec<String> = Vec::new();
    let mut hook = String::new();
    for line in text.lines().map(str::trim) {
        let (line, handle) = line.split_once(" # handle ").unwrap_or((line, ""));
        if line == "}" {
            blocks.pop();
            continue;
        }
        if let Some(block) = line.strip_suffix(" {").filter(|_| !line.contains(" vmap ")) {
            blocks.push(block.to_owned());
            hook.clear();
            continue;
        }
        let [table, chain] = blocks.as_slice() else { continue };
        let (Some(table), Some(chain)) = (table.strip_prefix("table "), chain.strip_prefix("chain ")) else { continue };
        let mut text = line.to_owned();
        if let Some((_, words)) = line.split_once(" hook ") {
            words.split(' ').next().unwrap_or_default().clone_into(&mut hook);
            let Some((_, policy)) = line.split_once("policy drop").filter(|_| line.contains("policy drop")) else {
                continue;
            };
            text = format!("policy drop{policy}").trim_end_matches(';').to_owned();
        } else if !line.split([' ', ',']).any(|word| word == "drop" || word == "reject") {
            continue;
        }
        let count = text.split_once("counter packets ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let (table, chain) = (table.to_owned(), chain.to_owned());
        let key = (table.clone(), chain.clone(), handle.to_owned());
        found.insert(key, (FirewallRule { table, chain, hook: hook.clone(), text, counted: None }, count));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "table inet filter { # handle 1\n\tset bad { # handle 9\n\t\ttype ipv4_addr\n\t}\n\n\
        \tchain input { # handle 1\n\t\ttype filter hook input priority filter; policy drop;\n\
        \t\tudp dport 514 counter packets 7 bytes 700 drop # handle 3\n\t\tudp dport 53 accept # handle 4\n\t}\n}\n";

    #[test]
    fn rules_that_drop_are_found_with_their_place_and_what_they_counted() {
        let later = parse(&LISTED.replace("packets 7", "packets 57"));
        let rules = counted(&parse(LISTED), later);
        let told: Vec<_> = rules.iter().map(|rule| (rule.hook.as_str(), rule.text.as_str(), rule.counted)).collect();
        let rule = "udp dport 514 counter packets 57 bytes 700 drop";
        assert_eq!(told, [("input", "policy drop", None), ("input", rule, Some(50))]);
        assert_eq!((rules[1].table.as_str(), rules[1].chain.as_str()), ("inet filter", "input"));
    }
}
