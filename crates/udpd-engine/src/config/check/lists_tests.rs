//! Files of networks as the configuration takes them: what they say together, and what is refused at which line.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use crate::config::{Config, HostView, Lists};

/// A configuration of one listener with these keys, and with `@` for a folder that `prepare` fills.
fn load(keys: &str, prepare: impl Fn(&Path)) -> Result<Config, String> {
    load_on(&[keys], &HostView::default(), prepare)
}

fn load_on(listeners: &[&str], host: &HostView, prepare: impl Fn(&Path)) -> Result<Config, String> {
    let folder = tempfile::tempdir().expect("a folder");
    prepare(folder.path());
    let mut text = String::from("[sink.out]\ntype = \"null\"\n");
    for (number, keys) in listeners.iter().enumerate() {
        let address = format!("127.0.0.1:{}", 5140 + number);
        text += &format!("[[listener]]\nname = \"in{number}\"\naddress = \"{address}\"\nsinks = [\"out\"]\n{keys}\n");
    }
    let folder = folder.path().to_str().expect("UTF-8");
    let parsed = Config::parse(&text.replace('@', folder), "t.toml", host);
    parsed.map_err(|problems| problems.to_string().replace(folder, "@"))
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("written");
}

fn accepts(config: &Config, source: &str) -> bool {
    let source: IpAddr = source.parse().expect("an address");
    config.listeners[0].access.list.as_ref().expect("a table").accepts(source)
}

#[test]
fn files_and_keys_are_one_table_and_the_longest_prefix_decides() {
    let keys = "allow = [\"10.0.0.0/8\"]\nallow_files = [\"@/a\", \"@/b\"]\ndeny_files = [\"@/c\"]";
    let config = load(keys, |folder| {
        write(folder, "a", "192.0.2.0/24\n2001:db8::/32\n");
        write(folder, "b", "192.0.2.0/24 # once more\n10.1.2.3\n");
        write(folder, "c", "10.1.0.0/16\n");
    });
    let config = config.expect("valid");
    let said =
        [("10.2.0.1", true), ("10.1.0.1", false), ("10.1.2.3", true), ("192.0.2.9", true), ("2001:db8::1", true)];
    for (source, accepted) in said.into_iter().chain([("198.51.100.1", false), ("2001:db9::1", false)]) {
        assert_eq!(accepts(&config, source), accepted, "{source}");
    }
    assert_eq!(config.listeners[0].access.list.as_ref().expect("a table").networks(), 5, "each is counted once");
}

#[test]
fn a_deny_file_alone_accepts_all_others_also_when_it_is_empty() {
    let config = load("deny_files = [\"@/d\"]", |folder| write(folder, "d", "# none today\n")).expect("valid");
    assert!(accepts(&config, "192.0.2.1"));
    let config = load("deny_files = [\"@/d\"]", |folder| write(folder, "d", "192.0.2.0/24\n")).expect("valid");
    assert!(!accepts(&config, "192.0.2.1"));
    assert!(accepts(&config, "192.0.3.1"));
}

#[test]
fn an_allow_file_that_has_become_empty_is_refused() {
    let refused = load("allow_files = [\"@/a\"]", |folder| write(folder, "a", "\n")).expect_err("refused");
    assert!(refused.contains("\"@/a\" holds no network, so no sender would be accepted"), "{refused}");
    let config = load("allow = [\"10.0.0.0/8\"]\nallow_files = [\"@/a\"]", |folder| write(folder, "a", "\n"));
    assert!(!accepts(&config.expect("valid"), "192.0.2.1"));
}

#[test]
fn each_wrong_line_of_each_file_is_named_and_so_is_a_file_that_is_not_there() {
    let keys = "allow_files = [\"@/a\"]\ndeny_files = [\"@/none\", \"@/d\"]";
    let refused = load(keys, |folder| {
        write(folder, "a", "10.0.0.0/8\n10.1.2.3/8\n\nhost\n");
        write(folder, "d", "x\n");
    });
    let refused = refused.expect_err("refused");
    for words in [
        "@/a:2:1: listener.allow_files: \"10.1.2.3/8\" has bits set behind the first 8; write 10.0.0.0/8 for",
        "@/a:4:1: listener.allow_files: \"host\" is not a network",
        "t.toml:8:15: listener.deny_files: \"@/none\" cannot be read: No such file or directory",
        "@/d:1:1: listener.deny_files: \"x\" is not a network",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert_eq!(refused.lines().count(), 4, "{refused}");
}

#[test]
fn more_wrong_lines_than_anyone_reads_are_counted() {
    let refused = load("deny_files = [\"@/d\"]", |folder| write(folder, "d", &"x\n".repeat(250)));
    let refused = refused.expect_err("refused");
    assert_eq!(refused.lines().count(), 101);
    assert!(refused.ends_with("150 more problems are not shown; correct these first"), "{refused}");
}

#[test]
fn a_network_that_is_accepted_and_refused_is_a_mistake_at_a_line() {
    for (keys, said) in [
        (
            "allow = [\"10.0.0.0/8\"]\ndeny_files = [\"@/d\"]",
            "@/d:2:1: listener.deny_files: 10.0.0.0/8 is in allow of the configuration, too",
        ),
        (
            "deny = [\"10.0.0.0/8\"]\nallow_files = [\"@/d\"]",
            "@/d:2:1: listener.allow_files: 10.0.0.0/8 is in deny of the configuration, too",
        ),
        (
            "allow_files = [\"@/a\"]\ndeny_files = [\"@/d\"]",
            "@/d:2:1: listener.deny_files: 10.0.0.0/8 is in line 3 of \"@/a\", in allow_files, too",
        ),
    ] {
        let refused = load(keys, |folder| {
            write(folder, "a", "\n\n10.0.0.0/8\n");
            write(folder, "d", "192.0.2.1\n10.0.0.0/8\n");
        });
        let refused = refused.expect_err("refused");
        assert!(refused.contains(said), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
}

#[test]
fn listeners_with_the_same_lists_share_one_table() {
    let same = "deny_files = [\"@/d\"]";
    let other = "deny = [\"192.0.2.2/32\"]\ndeny_files = [\"@/d\"]";
    let config = load_on(&[same, other, same], &HostView::default(), |folder| write(folder, "d", "192.0.2.1\n"));
    let config = config.expect("valid");
    let table = |index: usize| config.listeners[index].access.list.as_ref().expect("a table");
    assert!(Arc::ptr_eq(table(0), table(2)));
    assert!(!Arc::ptr_eq(table(0), table(1)));
}

#[test]
fn a_command_that_only_asks_a_daemon_reads_no_list() {
    let host = HostView { lists: Lists::Leave, ..HostView::default() };
    let config = load_on(&["deny_files = [\"@/none\"]"], &host, |_| {}).expect("valid");
    assert_eq!(config.listeners[0].access.list, None);
}
