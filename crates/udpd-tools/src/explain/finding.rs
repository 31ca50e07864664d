//! What a case says: which layer lost how many, why, with which arithmetic, and what cures it. And the order in which
//! findings are told, with nothing in it twice.

use serde::Serialize;

/// Where datagrams are lost, in the order of their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    Upstream,
    Nic,
    Backlog,
    Ip,
    Udp,
    Socket,
    Listener,
    Sink,
}

impl Layer {
    pub fn words(self) -> &'static str {
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

/// One way to cure it; the first of a finding is the one to try first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cure {
    /// A command for a root shell on this host.
    Command { command: String, note: String },
    /// A kernel setting.
    Sysctl { name: String, value: String, note: String },
    /// A key of udpd's configuration, which takes effect when udpd is started again.
    Key { table: String, name: String, key: String, value: String, note: String },
    /// Something that nobody can do from here.
    Elsewhere { note: String },
}

impl Cure {
    pub fn command(command: impl Into<String>, note: impl Into<String>) -> Self {
        Self::Command { command: command.into(), note: note.into() }
    }

    pub fn sysctl(name: &str, value: impl ToString, note: impl Into<String>) -> Self {
        Self::Sysctl { name: name.to_owned(), value: value.to_string(), note: note.into() }
    }

    /// A key of a listener, by its name.
    pub fn listener(name: &str, key: &str, value: impl Into<String>, note: impl Into<String>) -> Self {
        Self::key("listener", name, key, value, note)
    }

    pub fn key(table: &str, name: &str, key: &str, value: impl Into<String>, note: impl Into<String>) -> Self {
        let (table, name, key) = (table.to_owned(), name.to_owned(), key.to_owned());
        Self::Key { table, name, key, value: value.into(), note: note.into() }
    }

    pub fn elsewhere(note: impl Into<String>) -> Self {
        Self::Elsewhere { note: note.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The case, by the name that docs/explain.md has for it.
    pub case: &'static str,
    pub layer: Layer,
    /// What lost it: a port with its reader, an interface, a sink.
    pub subject: String,
    /// 0 is a risk that has cost nothing yet.
    pub lost: u64,
    pub unit: String,
    pub cause: String,
    pub arithmetic: String,
    pub cures: Vec<Cure>,
    /// What else applies to the same loss, less specific.
    pub also: Vec<String>,
}

impl Finding {
    pub fn new(case: &'static str, layer: Layer, subject: impl Into<String>, (lost, unit): (u64, &str)) -> Self {
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
        }
    }

    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }

    pub fn with(mut self, arithmetic: impl Into<String>) -> Self {
        self.arithmetic = arithmetic.into();
        self
    }

    pub fn cured_by(mut self, cures: impl IntoIterator<Item = Cure>) -> Self {
        self.cures.extend(cures);
        self
    }
}

/// A word of a command, as a shell takes it.
pub fn quote(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./@:-".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The key of a setting that each interface has. sysctl takes a `.` for the next part of the name, and a `/` in the
/// name of a VLAN for its `.`.
pub fn sysctl_of_interface(interface: &str, setting: &str) -> String {
    format!("net.ipv4.conf.{}.{setting}", interface.replace('.', "/"))
}

/// Worst first. `found` comes in the order of the cases: of several about the same loss the first tells it, and the
/// causes of the others stand behind it without their number.
pub fn rank(found: Vec<Finding>) -> Vec<Finding> {
    let mut told: Vec<Finding> = Vec::new();
    for finding in found {
        let is_same = |earlier: &&mut Finding| {
            (earlier.layer, &earlier.subject, earlier.lost > 0) == (finding.layer, &finding.subject, finding.lost > 0)
                && finding.lost > 0
        };
        match told.iter_mut().find(is_same) {
            Some(earlier) => earlier.also.push(finding.cause),
            None => told.push(finding),
        }
    }
    told.sort_by_key(|finding| (std::cmp::Reverse(finding.lost), finding.layer));
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(layer: Layer, subject: &str, lost: u64, cause: &str) -> Finding {
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
            finding(Layer::Nic, "eth0", 0, "risk"),
            finding(Layer::Socket, "port 1", 5, "small"),
            finding(Layer::Sink, "archive", 50, "slow"),
        ]);
        assert_eq!(told.iter().map(|finding| finding.cause.as_str()).collect::<Vec<_>>(), ["slow", "small", "risk"]);
    }

    #[test]
    fn a_loss_is_told_once_by_the_most_specific_cause() {
        let told = rank(vec![
            finding(Layer::Socket, "port 1", 5, "starved"),
            finding(Layer::Socket, "port 1", 5, "small"),
            finding(Layer::Socket, "port 2", 5, "small"),
        ]);
        assert_eq!(told.iter().map(|finding| finding.lost).sum::<u64>(), 10);
        assert_eq!((told[0].cause.as_str(), &told[0].also), ("starved", &vec!["small".to_owned()]));
    }
}
