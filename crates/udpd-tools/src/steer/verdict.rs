//! Whether a host is as planned, in words and as JSON: as planned, or what differs, or what nobody can say, each with
//! its cause and its cure. Of the last two a difference weighs more, because it is certain.

use serde_json::{Value, json};
use steer::{Change, Comparison, Drift, Unknown, Verdict};

use udpd_base::exit::{ExitCode, Failure};
use udpd_engine::plan::advice;

/// What differs and what is unknown; or the sentence that neither is.
pub(super) fn text(comparison: &Comparison, ban_irqbalance: bool) -> String {
    match comparison.verdict() {
        Verdict::AsPlanned => "everything is as planned\n".to_owned(),
        _ => lines(&comparison.drifts.iter().collect::<Vec<_>>(), &comparison.unknown, ban_irqbalance),
    }
}

/// What applying a plan would not put right.
pub(super) fn besides(comparison: &Comparison, ban_irqbalance: bool) -> String {
    let drifts: Vec<&Drift> = comparison.drifts.iter().filter(|drift| !drift.is_set_by_apply()).collect();
    match lines(&drifts, &comparison.unknown, ban_irqbalance) {
        lines if lines.is_empty() => lines,
        lines => format!("what `apply` does not put right:\n{lines}"),
    }
}

fn lines(drifts: &[&Drift], unknown: &[Unknown], ban_irqbalance: bool) -> String {
    let mut text = String::new();
    for drift in drifts {
        let (told, command) = (advice::of_drift(drift, ban_irqbalance), &drift.change.command);
        text.push_str(&format!("{told}\n    to set it: {command}\n"));
    }
    for Unknown { interface, queue, what, why, cure } in unknown {
        let queue = queue.map_or(String::new(), |queue| format!(" queue {queue}:"));
        text.push_str(&format!("{interface}:{queue} {what} is unknown or cannot be had: {why}\n    {cure}\n"));
    }
    text
}

/// How the command ends.
pub(super) fn outcome(comparison: &Comparison, interfaces: &[String]) -> Result<(), Failure> {
    match comparison.verdict() {
        Verdict::AsPlanned => Ok(()),
        Verdict::Differs => Err(Failure::new(ExitCode::Failure, differs(comparison, interfaces))),
        Verdict::Unknown => {
            let count = comparison.unknown.len();
            let message = format!(
                "nobody can say that everything is as planned: {count} could not be read or cannot be had; the cure \
                 stands beneath each"
            );
            Err(Failure::new(ExitCode::Unknown, message))
        }
    }
}

/// How many settings differ, and what sets them.
fn differs(comparison: &Comparison, interfaces: &[String]) -> String {
    let total = comparison.drifts.len();
    let set = comparison.drifts.iter().filter(|drift| drift.is_set_by_apply()).count();
    let settings = if total == 1 { "1 setting is".to_owned() } else { format!("{total} settings are") };
    let names = interfaces.join(" ");
    let cure = match set {
        0 => format!("the command beneath {} sets it", if total == 1 { "it" } else { "each" }),
        1 if total == 1 => format!("`udpd steer apply {names}` sets it"),
        set if set == total => format!("`udpd steer apply {names}` sets them"),
        set => format!("`udpd steer apply {names}` sets {set}, the commands beneath the others set those"),
    };
    let unknown = match comparison.unknown.len() {
        0 => String::new(),
        count => format!("; {count} more could not be read or cannot be had"),
    };
    format!("{settings} not as planned; {cure}{unknown}")
}

/// The driver took another value than the one it was given.
pub(super) fn not_as_wanted(change: &Change) -> Failure {
    let message = format!(
        "set {} of {} to {}, but the driver took {}; write that value, or \"keep\"",
        change.setting,
        change.interface,
        change.to,
        change.now.as_deref().unwrap_or("nothing")
    );
    Failure::new(ExitCode::Failure, message)
}

/// One failure that says what each of them says, with the code of the first.
pub(super) fn all_of(failures: impl Iterator<Item = Failure>) -> Result<(), Failure> {
    let join = |one: Failure, other: Failure| Failure::new(one.code, format!("{one}\n  {other}"));
    failures.reduce(join).map_or(Ok(()), Err)
}

pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::AsPlanned => "as_planned",
        Verdict::Differs => "differs",
        Verdict::Unknown => "unknown",
    }
}

pub(super) fn drift(drift: &Drift, ban_irqbalance: bool) -> Value {
    json!({ "interface": drift.change.interface, "queue": drift.queue, "setting": drift.change.setting.to_string(),
            "found": drift.change.from, "wanted": drift.change.to,
            "rival": drift.rival.as_ref().map(|rival| advice::of_rival(rival, ban_irqbalance)),
            "command": drift.change.command })
}

pub(super) fn unknown(unknown: &Unknown) -> Value {
    json!({ "interface": unknown.interface, "queue": unknown.queue, "what": unknown.what, "why": unknown.why,
            "cure": unknown.cure })
}

#[cfg(test)]
mod tests {
    use steer::{Rival, Setting};

    use super::*;

    fn a_drift(rival: Option<Rival>) -> Drift {
        let change = Change {
            interface: "eth0".to_owned(),
            setting: Setting::Rps(1),
            from: "c".to_owned(),
            to: "0".to_owned(),
            now: None,
            why: String::new(),
            disruption: None,
            command: "echo 0 > rps_cpus".to_owned(),
        };
        Drift { change, queue: Some(1), rival }
    }

    fn an_unknown() -> Unknown {
        let [interface, what, why, cure] =
            ["eth0", "the link", "the interface is down", "bring it up"].map(str::to_owned);
        Unknown { interface, queue: None, what, why, cure }
    }

    /// The exit code and the text of a comparison.
    fn judged(drifts: Vec<Drift>, unknown: Vec<Unknown>) -> (u8, String, &'static str) {
        let comparison = Comparison { drifts, unknown };
        let code = match outcome(&comparison, &["eth0".to_owned()]) {
            Ok(()) => 0,
            Err(failure) => failure.code as u8,
        };
        (code, text(&comparison, false), word(comparison.verdict()))
    }

    #[test]
    fn as_planned_is_said_only_where_nothing_differs_and_nothing_is_unknown() {
        assert_eq!(judged(Vec::new(), Vec::new()), (0, "everything is as planned\n".to_owned(), "as_planned"));
        let (code, text, word) = judged(Vec::new(), vec![an_unknown()]);
        assert_eq!((code, word), (4, "unknown"));
        let told = "eth0: the link is unknown or cannot be had: the interface is down\n    bring it up\n";
        assert_eq!(text, told);
        let (code, text, word) = judged(vec![a_drift(None)], vec![an_unknown()]);
        assert_eq!((code, word), (1, "differs"), "what is certain weighs more");
        assert!(text.ends_with(told) && !text.contains("as planned"), "{text}");
    }

    #[test]
    fn apply_is_named_only_for_what_it_sets() {
        let thread = || a_drift(Some(Rival::Thread { pid: 9, cores: vec![2, 3] }));
        let differs = |drifts: Vec<Drift>, unknown: Vec<Unknown>| {
            super::differs(&Comparison { drifts, unknown }, &["eth0".to_owned()])
        };
        assert_eq!(
            differs(vec![a_drift(None)], Vec::new()),
            "1 setting is not as planned; `udpd steer apply eth0` sets it"
        );
        assert_eq!(differs(vec![thread()], Vec::new()), "1 setting is not as planned; the command beneath it sets it");
        assert_eq!(
            differs(vec![a_drift(None), thread()], vec![an_unknown()]),
            "2 settings are not as planned; `udpd steer apply eth0` sets 1, the commands beneath the others set those; \
             1 more could not be read or cannot be had"
        );
    }

    #[test]
    fn a_plan_tells_what_applying_it_does_not_put_right() {
        let told = |drifts: Vec<Drift>, unknown: Vec<Unknown>| besides(&Comparison { drifts, unknown }, false);
        assert_eq!(told(vec![a_drift(None)], Vec::new()), "", "that one it does");
        let text = told(vec![a_drift(Some(Rival::Thread { pid: 9, cores: vec![2, 3] }))], vec![an_unknown()]);
        assert!(
            text.starts_with("what `apply` does not put right:\neth0: queue 1: rps 1 is c, wanted 0; threaded NAPI"),
            "{text}"
        );
        assert!(text.ends_with("bring it up\n"), "{text}");
    }

    #[test]
    fn the_json_has_a_key_for_each_part() {
        assert_eq!(
            unknown(&an_unknown()),
            json!({ "interface": "eth0", "queue": null, "what": "the link", "why": "the interface is down",
                    "cure": "bring it up" })
        );
        assert_eq!(drift(&a_drift(None), false)["queue"], 1);
    }
}
