//! The pages lead where they say: every link, every named page and every heading of a link exists.

use std::collections::BTreeSet;
use std::path::Path;

use crate::util::source::texts;

/// The lines of a page, numbered from 1, without its code blocks.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// The anchors that a browser makes of the headings of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter_map(|(_, line)| Some(line.strip_prefix('#')?.trim_start_matches('#').trim()));
    let kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    headings.map(|text| text.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

/// What is wrong with a link of `page`, where something is.
fn broken(page: &str, target: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { root.join(page) } else { root.join(page).parent()?.join(path) };
    if !file.exists() {
        return Some(format!("{target}: no such file"));
    }
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    (!anchor.is_empty() && !anchors(&text).contains(anchor)).then(|| format!("{target}: no such heading"))
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    for (page, text) in texts().iter().filter(|(path, _)| path.ends_with(".md")) {
        for (number, line) in prose(text) {
            let targets = line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
            let faults = targets.filter(|target| !target.contains("://")).filter_map(|target| broken(page, target));
            wrong.extend(faults.map(|fault| format!("{page}:{number}: {fault}")));
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere\n  {}\n", wrong.join("\n  "));
}

#[test]
fn every_page_that_code_and_units_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
    let mut wrong = Vec::new();
    for (path, text) in texts() {
        for (at, folder) in text.match_indices("docs/").chain(text.match_indices("/doc/udpd/")) {
            let name = text[at + folder.len()..].split(|letter| !is_name(letter)).next().unwrap_or_default();
            if let Some(name) = name.find(".md").map(|end| &name[..end + 3])
                && !root.join("docs").join(name).exists()
                && !root.join(name).exists()
            {
                wrong.push(format!("{path}: docs/{name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "pages that do not exist\n  {}\n", wrong.join("\n  "));
}

#[test]
fn every_path_of_the_repository_that_a_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [".ci/", "benches/", "config/", "crates/", "docs/", "packaging/", "tests/"];
    let mut wrong = Vec::new();
    let pages = ["docs/", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    for (page, text) in texts().iter().filter(|(path, _)| pages.iter().any(|start| path.starts_with(start))) {
        for (number, line) in prose(text) {
            let quoted = line.split('`').skip(1).step_by(2);
            let paths = quoted.filter_map(|code| code.split("::").next()?.split(' ').next());
            let here = paths.filter(|path| folders.iter().any(|folder| path.starts_with(folder)));
            // NAME stands for a file to be made.
            let gone = here.filter(|path| !path.contains("NAME") && !root.join(path).exists());
            wrong.extend(gone.map(|path| format!("{page}:{number}: {path}")));
        }
    }
    assert!(wrong.is_empty(), "paths that do not exist\n  {}\n", wrong.join("\n  "));
}

#[test]
fn the_eye_of_these_tests_knows_anchors_and_passes_code() {
    let page = "# `udpd top`\n```\n# not a heading\n```\n## What was dropped, and why?\n";
    assert_eq!(anchors(page), BTreeSet::from(["udpd-top".to_owned(), "what-was-dropped-and-why".to_owned()]));
    assert_eq!(prose(page).map(|(number, _)| number).collect::<Vec<_>>(), [1, 5]);
}
