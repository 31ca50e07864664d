//! Fuzz targets: the configuration as an operator or a generator writes it.

use std::path::PathBuf;

use crate::config::{Config, HostView, Lists, MayCome, RunArguments};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("toml", file), ("arguments", arguments)]
}

/// A host that tells nothing of itself: no file is looked at that decides what is right.
fn silent_host() -> HostView {
    let nowhere = || PathBuf::from("/nonexistent");
    HostView {
        sys_root: nowhere(),
        proc_root: nowhere(),
        may_come: MayCome::All,
        lists: Lists::Leave,
        becomes_user: false,
    }
}

/// Every problem stands on one line and at a place of the text; a text that is right is right again.
fn file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let host = silent_host();
    match Config::parse(text, "f", &host) {
        Ok(config) => {
            assert!(!config.listeners.is_empty() && !config.sinks.is_empty());
            for listener in &config.listeners {
                assert!(!listener.addresses.is_empty());
                assert!(listener.sinks.iter().all(|sink| *sink < config.sinks.len()));
            }
        }
        Err(problems) => {
            let said: Vec<String> = problems.list().iter().map(ToString::to_string).collect();
            assert!(!said.is_empty());
            for line in &said {
                assert!(!line.contains(char::is_control), "{line:?}");
            }
            let lines = text.split('\n').count();
            for problem in problems.list() {
                assert!((1..=lines).contains(&problem.line), "{problem}");
                let line = text.split('\n').nth(problem.line - 1).unwrap_or_default();
                assert!((1..=line.chars().count() + 2).contains(&problem.column), "{problem}");
            }
            let again = Config::parse(text, "f", &host).expect_err("it was wrong before");
            let again: Vec<String> = again.list().iter().map(ToString::to_string).collect();
            assert_eq!(again, said);
        }
    }
}

/// The first line is `--listen`, each other one a `--to`.
fn arguments(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut lines = text.split('\n').map(str::to_owned);
    let listen = lines.next().unwrap_or_default();
    let arguments = RunArguments { listen, to: lines.collect(), ..RunArguments::default() };
    match Config::from_arguments(&arguments) {
        Ok(config) => assert!(config.sinks.len() <= arguments.to.len()),
        Err(failure) => assert!(!failure.message.contains(char::is_control), "{:?}", failure.message),
    }
}
