//! The page: one document with its style and its script inside, joined from the readable files beside this one when
//! udpd is compiled. It loads nothing, from here or elsewhere, but the numbers.
//!
//! The policy that goes with it names style and script by their hashes, so a browser runs nothing else, whatever a name
//! in the ledger may hold; the script itself writes text and never markup, which `require-trusted-types-for` enforces.

mod sha256;

use udpd_base::ledger::counter_list::{KERNEL_DROPPED, ListenerDropped, SinkDropped};
use udpd_base::ledger::{CounterTable, LedgerCounter};

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    "\"use strict\";\n{\n",
    include_str!("words.js"),
    include_str!("reading.js"),
    include_str!("flow.js"),
    include_str!("tables.js"),
    include_str!("hour.js"),
    include_str!("charts.js"),
    include_str!("live.js"),
    "}\n"
);

/// The document and its policy, as they are sent.
#[derive(Debug)]
pub(super) struct MetricsPage {
    text: String,
    policy: String,
}

impl MetricsPage {
    pub(super) fn new() -> Self {
        let text = FRAME.replace("/*STYLE*/", STYLE).replace("/*REASONS*/", &reasons()).replace("/*SCRIPT*/", SCRIPT);
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; connect-src 'self'; frame-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
             trusted-types 'none'",
            sha256::source(SCRIPT),
            sha256::source(STYLE)
        );
        Self { text, policy }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn policy(&self) -> &str {
        &self.policy
    }
}

/// Every reason for a loss with what helps against it, as JSON that can stand in a document.
fn reasons() -> String {
    let about = |counter: &LedgerCounter| {
        serde_json::json!({
            "layer": counter.layer, "name": counter.name, "help": counter.help.replace('`', ""),
            "cure": counter.cure.replace('`', ""), "wanted": counter.is_quiet,
        })
    };
    let all = [&KERNEL_DROPPED].into_iter().chain(ListenerDropped::COUNTERS).chain(SinkDropped::COUNTERS);
    serde_json::Value::Array(all.map(about).collect()).to_string().replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_whole_and_names_nothing_outside_of_itself() {
        let page = MetricsPage::new();
        for mark in ["/*STYLE*/", "/*REASONS*/", "/*SCRIPT*/"] {
            assert_eq!(FRAME.matches(mark).count(), 1, "{mark}");
            assert!(!page.text().contains(mark), "{mark}");
        }
        assert!(page.text().contains(SCRIPT) && page.text().contains(STYLE));
        // The name of a vocabulary is no address that a browser loads.
        let outside = page.text().replace("http://www.w3.org/2000/svg", "");
        for what in ["http://", "https://", "//cdn", "@import", "url(", "innerHTML", "outerHTML", "document.write"] {
            assert!(!outside.contains(what), "{what}");
        }
        for part in [STYLE, SCRIPT] {
            assert!(!part.contains("</"), "style and script would end there");
        }
    }

    #[test]
    fn the_policy_allows_this_style_and_this_script_and_nothing_else() {
        let policy = MetricsPage::new().policy;
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        let handlers = FRAME.split_whitespace().filter(|word| word.starts_with("on") && word.contains('='));
        assert!(!FRAME.contains("style=") && handlers.count() == 0, "what stands in attributes has no hash");
    }

    #[test]
    fn every_reason_of_the_ledger_is_there_with_its_cure() {
        let reasons: serde_json::Value = serde_json::from_str(&reasons()).unwrap();
        let names: Vec<&str> = reasons.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names[0], "socket");
        assert_eq!(names.len(), 1 + ListenerDropped::COUNTERS.len() + SinkDropped::COUNTERS.len());
        for text in reasons.as_array().unwrap().iter().flat_map(|one| [&one["help"], &one["cure"]]) {
            let text = text.as_str().unwrap();
            assert!(text.ends_with('.') && !text.contains(".."), "one full stop: {text}");
        }
    }
}
