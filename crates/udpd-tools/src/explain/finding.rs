//! What a case finds: which layer lost how many, why, with which arithmetic, and what cures it. And how findings are
//! ordered and printed: worst first, nothing twice, as text or as JSON with the same content.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use udpd_base::text::tables::grouped;

/// Where datagrams are lost, in the order of their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LossLayer {
    Upstream,
    Nic,
    Backlog,
    Ip,
    Udp,
    Socket,
    Listener,
    Sink,
}

impl LossLayer {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Upstream => "before this host",
            Self::Nic => "network card",
            Self::Backlog => "backlog of a core",
            Self::Ip => "IP",
            Self::Udp => "UDP",
            Self::Socket => "receive buffer",
            Self::Listener => "listener",
            Self::Sink => "sink",
        }
    }
}

/// One cure; the first of a finding is the one to try first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Cure {
    /// A command for a root shell on this host.
    Command {
        command: String,
        note: String,
    },
    Sysctl {
        name: String,
        value: String,
        note: String,
    },
    /// A key of udpd's configuration, which takes effect when udpd is started again.
    Key {
        table: String,
        name: String,
        key: String,
        value: String,
        note: String,
    },
    /// A command that changes nothing: it shows more where the evidence does not decide.
    Look {
        command: String,
        note: String,
    },
    /// Something that no command on this host does.
    Elsewhere {
        note: String,
    },
}

impl Cure {
    pub(super) fn command(command: impl Into<String>, note: impl Into<String>) -> Self {
        Self::Command { command: command.into(), note: note.into() }
    }

    pub(super) fn look(command: impl Into<String>, note: impl Into<String>) -> Self {
        Self::Look { command: command.into(), note: note.into() }
    }

    pub(super) fn sysctl(name: &str, value: impl ToString, note: impl Into<String>) -> Self {
        Self::Sysctl { name: name.to_owned(), value: value.to_string(), note: note.into() }
    }

    /// A key of a listener, by its name.
    pub(super) fn listener(name: &str, key: &str, value: impl Into<String>, note: impl Into<String>) -> Self {
        Self::key("listener", name, key, value, note)
    }

    pub(super) fn key(table: &str, name: &str, key: &str, value: impl Into<String>, note: impl Into<String>) -> Self {
        let (table, name, key) = (table.to_owned(), name.to_owned(), key.to_owned());
        Self::Key { table, name, key, value: value.into(), note: note.into() }
    }

    pub(super) fn elsewhere(note: impl Into<String>) -> Self {
        Self::Elsewhere { note: note.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The case, by the name that docs/explain.md has for it.
    pub case: &'static str,
    pub layer: LossLayer,
    /// Where it was lost: a port with its reader, an interface, a sink.
    pub subject: String,
    /// 0 is a risk that has cost nothing yet.
    pub lost: u64,
    pub unit: String,
    pub cause: String,
    pub arithmetic: String,
    pub cures: Vec<Cure>,
    /// What else applies to the same loss, less specific.
    pub also: Vec<String>,
    /// Which part of a place's loss it is about: parts are losses of their own.
    #[serde(skip)]
    pub part: &'static str,
}

impl Finding {
    pub(super) fn new(
        case: &'static str,
        layer: LossLayer,
        subject: impl Into<String>,
        (lost, unit): (u64, &str),
    ) -> Self {
        Self {
            case,
            layer,
            subject: subject.into(),
            lost,
            unit: unit.to_owned(),
            cause: String::new(),
            arithmetic: String::new(),
            cures: Vec::new(),
            also: Vec::new(),
            part: "",
        }
    }

    pub(super) fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }

    pub(super) fn with(mut self, arithmetic: impl Into<String>) -> Self {
        self.arithmetic = arithmetic.into();
        self
    }

    pub(super) fn cured_by(mut self, cures: impl IntoIterator<Item = Cure>) -> Self {
        self.cures.extend(cures);
        self
    }
}

/// A word of a command, quoted for a shell.
pub(super) fn quote(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./@:-".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The key of a setting that each interface has. sysctl takes a `.` for the next part of the name, and a `/` in the
/// name of a VLAN for its `.`.
pub(super) fn sysctl_of_interface(interface: &str, setting: &str) -> String {
    format!("net.ipv4.conf.{}.{setting}", interface.replace('.', "/"))
}

/// Worst first. `found` comes in the order of the cases: of several about the same loss the first tells it, and the
/// causes of the others stand behind it without their number.
pub(super) fn rank(found: Vec<Finding>) -> Vec<Finding> {
    let mut told: Vec<Finding> = Vec::new();
    for finding in found {
        let is_same = |earlier: &&mut Finding| {
            (earlier.layer, &earlier.subject, earlier.part) == (finding.layer, &finding.subject, finding.part)
                && finding.lost > 0
                && earlier.lost > 0
        };
        match told.iter_mut().find(is_same) {
            Some(earlier) => earlier.also.push(finding.cause),
            None => told.push(finding),
        }
    }
    told.sort_by_key(|finding| (std::cmp::Reverse(finding.lost), finding.layer));
    told
}

/// How wide a line of prose is.
const COLUMNS: usize = 100;

#[derive(Debug)]
pub(super) struct ExplainReport<'a> {
    pub seconds: f64,
    pub findings: &'a [Finding],
    pub unseen: &'a [String],
    /// What was looked at, such as "port 514" or "2 listeners of udpd".
    pub subject: &'a str,
}

impl ExplainReport<'_> {
    pub(super) fn has_loss(&self) -> bool {
        self.findings.iter().any(|finding| finding.lost > 0)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "seconds": self.seconds,
            "subject": self.subject,
            "lost": self.has_loss(),
            "findings": self.findings,
            "unseen": self.unseen,
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{}, watched for {:.1} s: ", self.subject, self.seconds);
        let (lost, risks): (Vec<&Finding>, Vec<&Finding>) = self.findings.iter().partition(|it| it.lost > 0);
        text += if lost.is_empty() { "nothing was lost here\n" } else { "lost, worst first\n" };
        for (place, finding) in lost.iter().enumerate() {
            let Finding { layer, subject, unit, .. } = finding;
            let head = format!("{}. {} {unit} lost: {} ({subject})", place + 1, grouped(finding.lost), layer.words());
            push(&mut text, &head, finding);
        }
        if !risks.is_empty() {
            text += "\nno loss meanwhile, but worth a look\n";
            for finding in risks {
                push(&mut text, &format!("- {} ({})", finding.layer.words(), finding.subject), finding);
            }
        }
        if !self.unseen.is_empty() {
            text += "\nnot seen\n";
            self.unseen.iter().for_each(|line| push_folded(&mut text, "  ", line));
        }
        text
    }
}

fn push(text: &mut String, head: &str, finding: &Finding) {
    let _ = writeln!(text, "\n{head}");
    push_folded(text, "   ", &format!("{}.", finding.cause));
    if !finding.arithmetic.is_empty() {
        push_folded(text, "   ", &format!("{}.", finding.arithmetic));
    }
    for cure in &finding.cures {
        let (what, note) = line_of(cure);
        // What is to be copied stands in one line.
        if !what.is_empty() {
            let _ = writeln!(text, "     {what}");
        }
        if !note.is_empty() {
            push_folded(text, if what.is_empty() { "     " } else { "         " }, note);
        }
    }
    for other in &finding.also {
        push_folded(text, "   also: ", &format!("{other}."));
    }
}

/// The line to copy, and its note.
fn line_of(cure: &Cure) -> (String, &str) {
    match cure {
        Cure::Command { command, note } => (command.clone(), note),
        Cure::Look { command, note } => (format!("look: {command}"), note),
        Cure::Sysctl { name, value, note } => (format!("sysctl -w {}={}", quote(name), quote(value)), note),
        Cure::Key { table, name, key, value, note } => {
            let table = if table == "listener" { format!("[[listener]] {name}") } else { format!("[{table}.{name}]") };
            (format!("{table}: {key} = {value}"), note)
        }
        Cure::Elsewhere { note } => (String::new(), note),
    }
}

/// Writes prose in lines; `first` stands before the first line, and the others are indented as far.
fn push_folded(text: &mut String, first: &str, prose: &str) {
    push_below(text, first, &" ".repeat(first.len()), prose);
}

/// The same with `margin` before the other lines.
pub(super) fn push_below(text: &mut String, first: &str, margin: &str, prose: &str) {
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in prose.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            let _ = writeln!(text, "{}", line.trim_end());
            margin.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::finding::LossLayer;

    fn finding(layer: LossLayer, subject: &str, lost: u64, cause: &str) -> Finding {
        Finding::new("x", layer, subject, (lost, "datagrams")).because(cause)
    }

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        assert_eq!(quote("/sys/fs/cgroup/user@1.service"), "/sys/fs/cgroup/user@1.service");
        assert_eq!(quote("/a b;$(reboot)"), "'/a b;$(reboot)'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    #[test]
    fn the_worst_comes_first_and_what_lost_nothing_last() {
        let told = rank(vec![
            finding(LossLayer::Nic, "eth0", 0, "risk"),
            finding(LossLayer::Socket, "port 1", 5, "small"),
            finding(LossLayer::Sink, "archive", 50, "slow"),
        ]);
        assert_eq!(told.iter().map(|finding| finding.cause.as_str()).collect::<Vec<_>>(), ["slow", "small", "risk"]);
    }

    #[test]
    fn a_loss_is_told_once_by_the_most_specific_cause() {
        let told = rank(vec![
            finding(LossLayer::Socket, "port 1", 5, "starved"),
            finding(LossLayer::Socket, "port 1", 5, "small"),
            finding(LossLayer::Socket, "port 2", 5, "small"),
        ]);
        assert_eq!(told.iter().map(|finding| finding.lost).sum::<u64>(), 10);
        assert_eq!((told[0].cause.as_str(), &told[0].also), ("starved", &vec!["small".to_owned()]));
    }

    fn found() -> Finding {
        Finding::new("buffer_too_small", LossLayer::Socket, "port 514", (1234, "datagrams"))
            .because("the receive buffer was full: more came at once than fits")
            .with("212,992 bytes hold 256 datagrams")
            .cured_by([Cure::sysctl("net.ipv4.udp_mem", "1 2 3", "for all"), Cure::elsewhere("or wait")])
    }

    #[test]
    fn a_finding_is_shown_with_layer_number_cause_sum_and_cure() {
        let unseen = ["drops by name: no right".to_owned()];
        let report = ExplainReport { seconds: 5.0, findings: &[found()], unseen: &unseen, subject: "port 514" };
        let wanted = "port 514, watched for 5.0 s: lost, worst first\n\n\
                      1. 1,234 datagrams lost: receive buffer (port 514)\n   \
                      the receive buffer was full: more came at once than fits.\n   \
                      212,992 bytes hold 256 datagrams.\n     \
                      sysctl -w net.ipv4.udp_mem='1 2 3'\n         \
                      for all\n     \
                      or wait\n\n\
                      not seen\n  \
                      drops by name: no right\n";
        assert_eq!(report.text(), wanted);
        assert!(report.has_loss());
    }

    #[test]
    fn a_risk_is_no_loss() {
        let risk = Finding { lost: 0, ..found() };
        let report = ExplainReport { seconds: 1.0, findings: &[risk], unseen: &[], subject: "the host" };
        assert!(!report.has_loss());
        assert!(
            report.text().contains("nothing was lost here\n\nno loss meanwhile, but worth a look\n\n- receive buffer")
        );
    }

    #[test]
    fn json_has_the_cure_as_its_parts() {
        let report = ExplainReport { seconds: 5.0, findings: &[found()], unseen: &[], subject: "port 514" };
        let json = report.json();
        let cure = json!({"kind": "sysctl", "name": "net.ipv4.udp_mem", "value": "1 2 3", "note": "for all"});
        assert_eq!(json["findings"][0]["cures"][0], cure);
        assert_eq!((&json["lost"], &json["findings"][0]["layer"]), (&json!(true), &json!("socket")));
    }

    #[test]
    fn prose_is_folded_between_words() {
        let mut text = String::new();
        push_folded(&mut text, "   also: ", &"word ".repeat(40));
        assert!(text.lines().all(|line| line.len() <= COLUMNS && !line.ends_with(' ')), "{text}");
        assert!(text.lines().nth(1).expect("folded").starts_with("         word"));
    }
}
