//! The words of the library, held by a test: a program that uses it has commands and keys of its own, and a sentence
//! that names those of another program would mislead its users.

use std::fs;
use std::path::Path;

/// How one program is called, and how its configuration is quoted, in sources and in the plans that are reviewed.
const WORDS_OF_A_PROGRAM: [&str; 14] = [
    "udpd",
    "[steer]",
    "interfaces = {",
    "rx_queues = {",
    "rx_queues asks",
    "ring = {",
    "ring asks",
    "flow_hash_udp =",
    "placement = \\\"",
    "irqbalance = \\\"",
    "widen cpus",
    "--export",
    "--watch",
    "--forget",
];

/// What is searched: the sources, and what a user may be shown or given of a plan.
const KINDS: [&str; 5] = ["rs", "plan", "link", "rules", "sh"];

/// Adds `path:line: text` for each line below `folder` that has one of the words.
fn search(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            search(&path, found);
            continue;
        }
        if !path.extension().is_some_and(|kind| KINDS.iter().any(|searched| kind == *searched)) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a text");
        let wrong =
            text.lines().enumerate().filter(|(_, line)| WORDS_OF_A_PROGRAM.iter().any(|word| line.contains(word)));
        found.extend(wrong.map(|(number, line)| format!("{}:{}: {}", path.display(), number + 1, line.trim())));
    }
}

#[test]
fn the_library_names_no_command_and_no_key_of_a_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    search(&root.join("src"), &mut found);
    search(&root.join("tests/trees"), &mut found);
    assert!(found.is_empty(), "words of a program in the library:\n  {}", found.join("\n  "));
}
