//! How findings are shown: as text, worst first, or as JSON with the same content.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::finding::{Cure, Finding, quote};
use udpd_base::text::tables::grouped;

/// How wide a line of prose is.
const COLUMNS: usize = 100;

/// What is shown.
#[derive(Debug)]
pub struct Report<'a> {
    pub seconds: f64,
    pub findings: &'a [Finding],
    pub unseen: &'a [String],
    /// What was looked at, such as "port 514" or "2 listeners of udpd".
    pub subject: &'a str,
}

impl Report<'_> {
    pub fn has_loss(&self) -> bool {
        self.findings.iter().any(|finding| finding.lost > 0)
    }

    pub fn json(&self) -> Value {
        json!({
            "seconds": self.seconds,
            "subject": self.subject,
            "lost": self.has_loss(),
            "findings": self.findings,
            "unseen": self.unseen,
        })
    }

    pub fn text(&self) -> String {
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

/// What to type or to write, and what to know of it.
fn line_of(cure: &Cure) -> (String, &str) {
    match cure {
        Cure::Command { command, note } => (command.clone(), note),
        Cure::Sysctl { name, value, note } => (format!("sysctl -w {}={}", quote(name), quote(value)), note),
        Cure::Key { table, name, key, value, note } => {
            let table = if table == "listener" { format!("[[listener]] {name}") } else { format!("[{table}.{name}]") };
            (format!("{table}: {key} = {value}"), note)
        }
        Cure::Elsewhere { note } => (String::new(), note),
    }
}

/// Writes prose in lines, the first with this in front and the others as far in.
fn push_folded(text: &mut String, first: &str, prose: &str) {
    push_below(text, first, &" ".repeat(first.len()), prose);
}

/// The same with this in front of the other lines.
pub fn push_below(text: &mut String, first: &str, margin: &str, prose: &str) {
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
    use crate::explain::finding::Layer;

    fn found() -> Finding {
        Finding::new("buffer_too_small", Layer::Socket, "port 514", (1234, "datagrams"))
            .because("the receive buffer was full: more came at once than fits")
            .with("212,992 bytes hold 256 datagrams")
            .cured_by([Cure::sysctl("net.ipv4.udp_mem", "1 2 3", "for all"), Cure::elsewhere("or wait")])
    }

    #[test]
    fn a_finding_is_shown_with_layer_number_cause_sum_and_cure() {
        let unseen = ["drops by name: no right".to_owned()];
        let report = Report { seconds: 5.0, findings: &[found()], unseen: &unseen, subject: "port 514" };
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
        let report = Report { seconds: 1.0, findings: &[risk], unseen: &[], subject: "the host" };
        assert!(!report.has_loss());
        assert!(
            report.text().contains("nothing was lost here\n\nno loss meanwhile, but worth a look\n\n- receive buffer")
        );
    }

    #[test]
    fn json_has_the_cure_as_its_parts() {
        let report = Report { seconds: 5.0, findings: &[found()], unseen: &[], subject: "port 514" };
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
