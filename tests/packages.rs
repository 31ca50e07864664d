//! What a package installs beside the program: the manual, completions, units, and the page that explains the log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::util::source::all_sources;
use crate::util::{Outcome, not_checked};

const PAGES: [&str; 4] = ["udpd", "udpd-bench", "udpd-steer", "udpd.toml"];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn udpd(arguments: &[&str]) -> String {
    crate::util::udpd(arguments).succeeds(&[]).stdout
}

/// Runs a tool over a file; `None` where this machine does not have it.
fn run(tool: &str, arguments: &[&str], file: &Path) -> Option<Outcome> {
    let output = Command::new(tool).args(arguments).arg(file).stdin(Stdio::null()).output();
    if output.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        not_checked(&format!("{tool}: not installed"));
        return None;
    }
    Some(output.expect("a tool that starts").into())
}

#[test]
fn every_page_of_the_manual_is_written_where_man_looks_and_is_clean() {
    let directory = tempfile::tempdir().expect("a directory");
    udpd(&["man", "--to", directory.path().to_str().expect("UTF-8")]);
    for page in PAGES {
        let section = if page == "udpd.toml" { 5 } else { 8 };
        let file = directory.path().join(format!("man{section}/{page}.{section}"));
        assert_eq!(std::fs::read_to_string(&file).expect("the page"), udpd(&["man", page]));
        // It has no date on purpose: the same sources make the same page.
        if let Some(said) = run("mandoc", &["-T", "lint", "-W", "warning"], &file) {
            let text = said.text();
            let wrong: Vec<_> = text.lines().filter(|line| !line.contains("missing date")).collect();
            assert!(wrong.is_empty(), "{page}({section}): {wrong:#?}");
        }
        if let Some(said) = run("groff", &["-man", "-ww", "-z", "-Tutf8"], &file) {
            assert_eq!(said.text(), "", "{page}({section})");
        }
    }
}

#[test]
fn the_manual_has_every_command_and_option_of_the_help() {
    let pages = PAGES.map(|page| udpd(&["man", page])).concat();
    let commands = [
        "run",
        "check",
        "stats",
        "top",
        "explain",
        "reload",
        "reopen",
        "replay",
        "man",
        "completions",
        "steer plan",
        "steer apply",
        "steer status",
        "steer restore",
        "bench ladder",
        "bench send",
        "bench recv",
        "bench max",
    ];
    let mut options = BTreeSet::new();
    for command in commands {
        let arguments: Vec<_> = command.split(' ').chain(["--help"]).collect();
        let help = udpd(&arguments);
        let words = help.split(|character: char| !(character.is_ascii_alphanumeric() || character == '-'));
        options.extend(words.filter(|word| word.starts_with("--") && word.len() > 3).map(str::to_owned));
        assert!(pages.contains(&format!(".SS \"udpd {}", command)), "no page has udpd {command}");
    }
    assert!(options.len() > 40, "{options:?}");
    for option in options.iter().filter(|option| *option != "--help") {
        let written = option.replace('-', "\\-");
        assert!(pages.contains(&written), "no page has {option}");
    }
}

#[test]
fn each_shell_takes_its_completions() {
    let directory = tempfile::tempdir().expect("a directory");
    for (shell, flags) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let file = directory.path().join(shell);
        std::fs::write(&file, udpd(&["completions", shell])).expect("completions");
        if let Some(said) = run(shell, &[flags], &file) {
            assert_eq!(said.text(), "", "{shell}");
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let script = udpd(&["completions", "bash"]);
    let ask = |words: &str, at: usize| {
        let line = format!(
            "{script}\nCOMP_WORDS=({words})\nCOMP_CWORD={at}\n_udpd udpd \"${{COMP_WORDS[{at}]}}\" \
             \"${{COMP_WORDS[{}]}}\"\necho \"${{COMPREPLY[*]}}\"",
            at - 1
        );
        let output = Command::new("bash").args(["--norc", "-c", &line]).output().expect("bash");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    assert_eq!(ask("udpd reo", 1), "reopen");
    assert_eq!(ask("udpd steer app", 2), "apply");
    assert_eq!(ask("udpd run --stat", 2), "--stats-on-exit");
}

#[test]
fn an_instance_has_directories_and_a_file_of_its_own_and_everything_else_of_the_service() {
    let settings = |unit: &str| -> Vec<String> {
        let text = read(unit);
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    };
    let of_one = |line: String| match line.as_str() {
        "Description=udpd, the front door for UDP" => "Description=udpd, the front door for UDP: %i".to_owned(),
        // The steering unit names udpd.service as what comes after it, and cannot name instances.
        "After=network-online.target" => "After=network-online.target udpd-steer.service".to_owned(),
        "ExecStart=/usr/bin/udpd run -c /etc/udpd/udpd.toml" => {
            "ExecStart=/usr/bin/udpd run -c /etc/udpd/%i.toml".to_owned()
        }
        "ExecReload=/usr/bin/udpd reload --socket %t/udpd/control.sock" => {
            "ExecReload=/usr/bin/udpd reload --socket %t/udpd@%i/control.sock".to_owned()
        }
        "RuntimeDirectory=udpd" | "LogsDirectory=udpd" | "StateDirectory=udpd" => format!("{line}@%i"),
        _ => line,
    };
    let expected: Vec<_> = settings("config/udpd.service").into_iter().map(of_one).collect();
    assert_eq!(settings("config/udpd@.service"), expected);
}

#[test]
fn no_unit_is_more_exposed_than_promised() {
    for (unit, most) in [("udpd", 14), ("udpd@", 14), ("udpd-steer", 25), ("udpd-steer-watch", 25)] {
        let file = repository(&format!("config/{unit}.service"));
        let arguments = ["security", "--offline=true", "--no-pager", &format!("--threshold={most}")];
        let Some(said) = run("systemd-analyze", &arguments, &file) else { return };
        if !said.stdout.contains("Overall exposure") {
            return not_checked("systemd-analyze: this one cannot look at a file");
        }
        assert!(said.is_success(), "{unit}.service: {}", said.stdout.lines().last().unwrap_or_default());
    }
}

/// A name, a number or the kernel's words in a line of the log.
const PART: char = '…';

/// The texts of all warnings and errors that the daemon logs, but for those that are made of parts only.
fn logged() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for source in all_sources() {
        let is_the_daemons = source.path.starts_with("crates/udpd") && !source.path.contains("udpd-bench/");
        if !is_the_daemons || source.path.contains("tests") {
            continue;
        }
        let text = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for call in ["log::warn!(", "log::error!("] {
            for (at, _) in text.match_indices(call) {
                let Some(rest) = text[at + call.len()..].trim_start().strip_prefix('"') else { continue };
                let line = template(rest);
                if line.chars().filter(char::is_ascii_alphabetic).count() >= 12 {
                    let level = if call.contains("warn") { "warn" } else { "error" };
                    lines.insert(format!("{level} {line}"));
                }
            }
        }
    }
    lines
}

/// A literal up to its closing quote, with its placeholders replaced.
fn template(literal: &str) -> String {
    let (mut line, mut characters) = (String::new(), literal.chars().peekable());
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => match characters.next() {
                Some('\n') => while characters.next_if(|next| next.is_whitespace()).is_some() {},
                Some(escaped) => line.push(escaped),
                None => break,
            },
            '{' => {
                characters.by_ref().find(|inside| *inside == '}');
                line.push(PART);
            }
            _ => line.push(character),
        }
    }
    line
}

#[test]
fn the_page_about_the_log_has_every_warning_and_error_and_no_other() {
    let page = read("docs/logs.md");
    let (_, table) = page.split_once("## Lines in the sources").expect("the table");
    let mut documented = BTreeSet::new();
    for row in table.lines().filter(|row| row.starts_with("| warn |") || row.starts_with("| error |")) {
        let cells: Vec<_> = row.split(" | ").collect();
        assert_eq!(cells.len(), 4, "a row has level, line, meaning and cure: {row}");
        let line = cells[1].trim_start_matches('`').trim_end_matches('`').trim();
        documented.insert(format!("{} {line}", cells[0].trim_start_matches("| ")));
    }
    let logged: BTreeSet<_> = logged().into_iter().map(|line| line.trim().to_owned()).collect();
    assert!(logged.len() > 50, "the eye of this test sees {}", logged.len());
    let missing: Vec<_> = logged.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&logged).collect();
    assert!(missing.is_empty() && stale.is_empty(), "docs/logs.md: missing {missing:#?}, stale {stale:#?}");
}
