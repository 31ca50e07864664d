//! Spills: each sink has a directory of its own, and none lies in that of another.

use std::path::PathBuf;

use crate::config::file::sinks::SinkPart;
use udpd_base::os::paths::resolve;
use udpd_base::settings::Findings;

/// Refuses a directory that another sink writes as well.
pub(super) fn check(parts: &[SinkPart<'_>], findings: &mut Findings<'_>) {
    let mut taken: Vec<(PathBuf, &str)> = Vec::new();
    for SinkPart { name, sink, written } in parts {
        let spill = sink.as_ref().and_then(|sink| sink.settings.spill());
        let Some(path) = spill.map(|spill| resolve(spill.path)) else { continue };
        let overlaps = |(other, _): &&(PathBuf, &str)| other.starts_with(&path) || path.starts_with(other);
        if let Some((other, owner)) = taken.iter().find(overlaps)
            && let Some(place) = written.inner("spill", "path").or_else(|| written.place("spill"))
        {
            let what = format!("sink {owner:?} has its spill in {}", other.display());
            findings.say(&place, what, "give each sink a directory of its own");
        }
        taken.push((path, name));
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, HostView};

    fn said(one: &str, other: &str) -> String {
        let sink = |name: &str, spill: &str| {
            format!("[sink.{name}]\ntype = \"unix\"\npath = \"/tmp/{name}.sock\"\nspill = {{ {spill} }}\n")
        };
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:5514\"\nsinks = [\"a\", \"b\"]\n{}{}",
            sink("a", one),
            sink("b", other)
        );
        let accepted = |_| "accepted".to_owned();
        Config::parse(&text, "s.toml", &HostView::default()).map_or_else(|problems| problems.to_string(), accepted)
    }

    #[test]
    fn two_sinks_never_share_a_directory_and_one_that_cannot_be_written_or_holds_nothing_is_refused() {
        let one = "path = \"/tmp/spill\", bytes = \"1GiB\"";
        assert_eq!(said(one, "path = \"/tmp/other\", bytes = \"1GiB\""), "accepted");
        assert_eq!(said(one, ""), "accepted");
        for other in ["/tmp/spill", "/tmp/spill/", "/tmp/spill/1", "/tmp"] {
            let said = said(one, &format!("path = \"{other}\", bytes = \"1GiB\""));
            assert!(said.contains("sink.b.spill.path") && said.contains("sink \"a\" has its spill in"), "{said}");
        }
        for (spill, words) in [
            ("path = \"/dev/null\", bytes = \"1GiB\"", "is no directory"),
            ("path = \"spill\", bytes = \"1GiB\"", "is no absolute path"),
            ("path = \"/tmp/other\"", "holds hardly a second"),
            ("bytes = \"1GiB\"", "names no directory"),
            ("path = \"/tmp/other\", bytes = \"1GiB\", sync = \"1s\"", "sync"),
        ] {
            let said = said(one, spill);
            assert!(said.contains("sink.b.spill") && said.contains(words), "{said}");
        }
    }
}
