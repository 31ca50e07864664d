//! The pages that list every key, made from the declarations: docs/keys.md and udpd.toml(5).

use std::fmt::Write as _;

use super::file::keys;
use udpd_base::settings::KeyDeclaration;
use udpd_base::text::roff::ManPage;

/// `docs/keys.md`: every key with its default, the values that are right, and what it means.
pub fn page() -> String {
    let mut page = "# The keys of udpd.toml\n\nMade from the declarations in the code; a test holds it equal to them. \
                    config/udpd.toml explains each at length.\n"
        .to_owned();
    for key in &keys().0 {
        let KeyDeclaration { path, default, example, bounds, help, .. } = key;
        if help.is_empty() {
            continue;
        }
        if !path.contains('.') {
            let _ =
                write!(page, "\n## `{example}`\n\n{help}\n\n| Key | Default | Values | Meaning |\n|---|---|---|---|\n");
            continue;
        }
        let name = in_table(path);
        let default = default.as_ref().map_or("required".to_owned(), |default| format!("`{default}`"));
        let cells = [format!("`{name}`"), default, bounds.replace('"', "`"), help.clone()];
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    page
}

/// The page udpd.toml(5).
pub fn man_page() -> String {
    let mut page = ManPage::new("udpd.toml", 5, "the configuration of udpd");
    page.heading("DESCRIPTION");
    page.text(
        "A file in TOML with tables for the daemon, for listeners, for sinks and for steering. A listener and a sink \
         are enough. An unknown key is an error. `udpd check` validates a file and prints what udpd would make of it; \
         it changes nothing.",
    );
    page.paragraph(
        "Sizes are `\"32MiB\"`, `\"2KiB\"`, `\"1GiB\"` or bytes; durations `\"250ms\"`, `\"0us\"`, `\"1s\"`, `\"1m\"`, \
         `\"1h\"`; lists of cores `\"0-3,8\"`.",
    );
    page.heading("EXAMPLE");
    page.lines(EXAMPLE);
    for key in &keys().0 {
        let KeyDeclaration { path, default, example, bounds, help, .. } = key;
        if help.is_empty() {
            continue;
        }
        if !path.contains('.') {
            page.heading(example);
            page.text(help);
            continue;
        }
        page.item(&in_table(path), help);
        let default = default.as_ref().map_or("Required.".to_owned(), |default| format!("Default: `{default}`."));
        let values = if bounds.is_empty() { String::new() } else { format!(" Values: {}.", bounds.replace('"', "`")) };
        page.more_of_item(&format!("{default}{values}"));
    }
    page.heading("FILES");
    page.item("/etc/udpd/udpd.toml", "The configuration of the service.");
    page.item("/usr/share/doc/udpd/examples/udpd.toml", "Every key, explained at length.");
    page.heading("SEE ALSO");
    page.text("`udpd`(8), `udpd-bench`(8), `udpd-steer`(8)");
    page.finish()
}

const EXAMPLE: &str = r#"[[listener]]
name = "syslog"
address = "0.0.0.0:514"
sinks = ["archive"]

[sink.archive]
type = "file"
path = "/var/log/udpd/syslog.log""#;

/// The path of a key without the tables around it.
fn in_table(path: &str) -> String {
    let steps = path.split('.').skip_while(|step| ["daemon", "listener", "sink", "*", "steer"].contains(step));
    steps.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, HostView};

    #[test]
    fn every_key_is_on_the_page_of_the_manual_once_in_each_table_that_has_it() {
        let page = man_page();
        let mut keys_of_all = 0;
        for KeyDeclaration { path, help, .. } in
            keys().0.iter().filter(|key| !key.help.is_empty() && key.path.contains('.'))
        {
            let item = format!("\\fB{}\\fR\n{}", in_table(path).replace('-', "\\-"), &help[..1]);
            assert!(page.contains(&item), "udpd.toml(5) lacks {path}");
            keys_of_all += 1;
        }
        assert_eq!(page.matches(".TP\n").count(), keys_of_all + 2, "each key once, and two files");
    }

    #[test]
    fn the_example_of_the_page_is_a_configuration() {
        Config::parse(EXAMPLE, "udpd.toml(5)", &HostView::default()).expect("the example of udpd.toml(5)");
    }
}
