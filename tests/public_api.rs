//! The public interfaces of the libraries for other programs, each held by a snapshot: who changes one sees it in the
//! difference, and a breaking change is made on purpose.
//!
//! Read from the sources, which rustfmt has made regular and whose every `pub` can be reached (`unreachable_pub`): that
//! takes no nightly toolchain and no second build, and does not change with the compiler. What it does not see are
//! auto traits.

use std::collections::BTreeSet;
use std::path::Path;

use crate::util::source::{Source, all_sources};

const RENEW: &str = "UDPD_WRITE_DOCS=1 cargo test --test tests public_api";

#[test]
fn the_public_api_of_the_libraries_is_the_one_on_record() {
    let all = all_sources();
    for library in ["crates/mmsg", "crates/steer"] {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(library).join("public-api.txt");
        let now = public_api(&all, library);
        if std::env::var_os("UDPD_WRITE_DOCS").is_some() {
            std::fs::write(&place, &now).expect("written");
        }
        let before = std::fs::read_to_string(&place).unwrap_or_default();
        let (before, now): (BTreeSet<&str>, BTreeSet<&str>) = (before.lines().collect(), now.lines().collect());
        let gone: Vec<_> = before.difference(&now).map(|line| format!("- {line}")).collect();
        let new: Vec<_> = now.difference(&before).map(|line| format!("+ {line}")).collect();
        assert!(
            gone.is_empty() && new.is_empty(),
            "the public API of {library} has changed. If that is meant, renew {} by\n    {RENEW}\n{}",
            place.display(),
            [gone, new].concat().join("\n")
        );
    }
}

/// Everything that other crates can name, file by file; each line says in which file, type or trait it is.
fn public_api(all: &[Source], library: &str) -> String {
    let is_part = |source: &&Source| {
        let inside = source.path.strip_prefix(library).and_then(|path| path.strip_prefix("/src/"));
        inside.is_some_and(|path| !path.contains("testing") && !path.ends_with("tests.rs") && !path.contains("_absent"))
    };
    let codes: Vec<&str> = all
        .iter()
        .filter(is_part)
        .map(|source| source.code.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default())
        .collect();
    let types: BTreeSet<&str> = codes.iter().flat_map(|code| code.lines().filter_map(type_of)).collect();
    let files = codes.iter().flat_map(|code| of_file(&code.lines().collect::<Vec<_>>(), &types));
    files.map(|line| line + "\n").collect()
}

/// The name of the type or trait that a line begins.
fn type_of(line: &str) -> Option<&str> {
    let rest = ["struct ", "enum ", "trait "]
        .iter()
        .find_map(|kind| line.trim_start().strip_prefix("pub ")?.strip_prefix(kind))?;
    rest.split(|one: char| !one.is_alphanumeric()).next()
}

fn of_file(lines: &[&str], types: &BTreeSet<&str>) -> Vec<String> {
    let (mut found, mut attributes, mut around) = (Vec::new(), Vec::new(), String::new());
    let mut at = 0;
    while at < lines.len() {
        let (line, indent) = (lines[at].trim(), lines[at].len() - lines[at].trim_start().len());
        let (head, next) = head(lines, at);
        at = next;
        if indent == 0 && line == "}" {
            around.clear();
        } else if line.starts_with("#[") {
            attributes.push(line);
            continue;
        } else if line.is_empty() {
            continue;
        } else if line.starts_with("impl") && indent == 0 {
            around = head.clone();
            let target = head.split(" for ").nth(1).unwrap_or_default();
            let names = |name: &str| head.split(|one: char| !one.is_alphanumeric()).any(|word| word == name);
            if !target.is_empty() && types.iter().any(|name| names(name)) {
                found.push(head);
            }
        } else if line.starts_with("type ")
            && around.contains(" for ")
            && types.iter().any(|name| around.contains(name))
        {
            found.push(format!("{around}: {head}"));
        } else if let Some(name) = type_of(line) {
            let worth = ["#[derive", "#[non_exhaustive", "#[must_use", "#[repr"];
            let said = attributes.iter().filter(|one| worth.iter().any(|word| one.starts_with(word)));
            let said: String = said.map(|one| one.split(" = ").next().unwrap_or(one).to_owned() + " ").collect();
            found.push(said + &head);
            around = name.to_owned();
            if line.starts_with("pub enum") || line.starts_with("pub trait") {
                let end = (at..lines.len()).find(|end| lines[*end] == "}").unwrap_or(at);
                at = body(lines, at, end, name, &mut found);
            }
        } else if line.starts_with("pub use") || line.starts_with("pub mod") {
            found.push(head);
        } else if line.starts_with("pub ") {
            found.push(format!("{around}{}{head}", if around.is_empty() { "" } else { ": " }));
        } else if let Some(name) = line.strip_suffix("! {").or_else(|| line.split_once("! { ").map(|(name, _)| name)) {
            // Public methods that a macro makes: what it is given names them.
            let end = (at..lines.len()).find(|end| lines[*end] == "}").unwrap_or(at);
            let given: Vec<&str> =
                lines[at - 1..end].iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
            if name != "macro_rules" && indent == 0 {
                found.push(given.join(" "));
            }
        }
        attributes.clear();
    }
    found
}

/// Variants of an enum, with their fields, or what a trait asks for. Returns where it ends.
fn body(lines: &[&str], mut at: usize, end: usize, name: &str, found: &mut Vec<String>) -> usize {
    while at < end {
        let line = lines[at];
        let is_item = line.len() > 4 && !line.starts_with("     ") && line.starts_with("    ");
        let (head, next) = head(lines, at);
        if is_item && !line.trim_start().starts_with(['#', '}', ')']) {
            found.push(format!("{name}: {head}"));
        } else if line.starts_with("        ") && line.trim_end().ends_with(',') && !line.trim_start().starts_with('#')
        {
            found.push(format!("{name}: .. {}", line.trim()));
        }
        at = next;
    }
    at
}

/// An item up to its body or end, on one line; and the line behind it.
fn head(lines: &[&str], first: usize) -> (String, usize) {
    let (mut text, mut open) = (String::new(), 0_i32);
    let until_semicolon =
        ["pub use", "pub const", "pub static", "pub type"].iter().any(|word| lines[first].trim().starts_with(word))
            && !lines[first].contains(" fn ");
    for (at, line) in lines.iter().enumerate().skip(first) {
        open += line.matches(['(', '[']).count() as i32 - line.matches([')', ']']).count() as i32;
        text = format!("{text} {}", line.trim());
        let ends = if until_semicolon {
            text.ends_with(';')
        } else {
            text.ends_with(['{', '}', ';', ',', ']']) || text.trim().is_empty()
        };
        if ends && open <= 0 {
            let text = text.trim().trim_end_matches(['{', ';', ',']).trim_end();
            // One line or several, it is the same signature.
            return (text.replace("( ", "(").replace(", )", ")").replace("{ ", "{").replace(", }", "}"), at + 1);
        }
    }
    (text, lines.len())
}
