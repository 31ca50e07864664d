//! Adds keys and commands to the messages of the crate `steer`, which knows nothing of a configuration: the key of
//! `[steer]` that changes what is wrong, or the command of `udpd steer`.

use steer::plan::{Plan, RequestField};
use steer::{ApplyError, ApplyFailure, Drift, Rival};

/// The keys of `[steer]` for some fields, as an addition to a sentence. With `named` the interfaces come from the
/// command line, and no key is named for them.
fn keys(fields: &[RequestField], named: bool) -> String {
    let key = |field: &RequestField| match field {
        RequestField::Interfaces => (!named).then_some("interfaces"),
        RequestField::RxQueues => Some("rx_queues"),
        RequestField::Ring => Some("ring"),
        RequestField::FlowHash => Some("flow_hash_udp"),
        RequestField::Indirection => Some("indirection"),
        RequestField::Coalesce => Some("coalesce"),
        RequestField::Dedicated => Some("dedicated_queues"),
        RequestField::Placement => Some("placement"),
        RequestField::Cores => Some("cpus"),
        _ => None,
    };
    match fields.iter().filter_map(key).collect::<Vec<_>>().as_slice() {
        [] => String::new(),
        keys => format!(" ([steer] {})", keys.join(", ")),
    }
}

/// Adds to each note of a plan the key that would change it.
pub fn name_keys(mut plan: Plan) -> Plan {
    for note in plan.interfaces.iter_mut().flat_map(|part| &mut part.notes) {
        note.text.push_str(&keys(&note.fields, false));
    }
    plan
}

/// Why there is no plan, or why something could not be read, saved or set.
pub fn of_error(error: &ApplyError, named: bool) -> String {
    match error {
        ApplyError::Plan(cause) => format!("{error}{}", keys(&cause.fields, named)),
        _ => error.to_string(),
    }
}

/// Why nothing, or not everything, was applied, what was changed all the same, and what takes that back.
pub fn of_failure(failure: &ApplyFailure, named: bool) -> String {
    let cure = if failure.done.is_empty() { "" } else { ": `udpd steer restore`" };
    format!("{}; {}{cure}", of_error(&failure.cause, named), failure.so_far())
}

/// Which program is likely to have changed a setting, and what keeps it from doing so.
pub fn of_rival(rival: &Rival, ban_irqbalance: bool) -> String {
    match rival {
        Rival::Irqbalance(_) if ban_irqbalance => {
            format!("{rival}; `udpd steer apply` asks it again to leave these alone")
        }
        Rival::Irqbalance(_) => format!("{rival}; irqbalance = \"ban\" in [steer] makes it leave these alone"),
        Rival::PerhapsIrqbalance(_) => format!("{rival}; as root `udpd steer status` can tell"),
        _ => rival.to_string(),
    }
}

pub fn of_drift(drift: &Drift, ban_irqbalance: bool) -> String {
    match &drift.rival {
        Some(rival) => {
            let found = Drift { rival: None, ..drift.clone() };
            format!("{found}; {}", of_rival(rival, ban_irqbalance))
        }
        None => drift.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use steer::plan::{InterfacePlan, Note, PlanError};
    use steer::{Change, Setting};

    use super::*;

    fn refused(fields: &[RequestField], named: bool) -> String {
        let error = PlanError { what: "no".to_owned(), cure: "ask otherwise".to_owned(), fields: fields.to_vec() };
        of_error(&ApplyError::Plan(error), named)
    }

    fn change(setting: Setting, from: &str, to: &str) -> Change {
        Change {
            interface: "eth0".to_owned(),
            setting,
            from: from.to_owned(),
            to: to.to_owned(),
            now: None,
            why: String::new(),
            disruption: None,
            command: String::new(),
        }
    }

    #[test]
    fn a_refused_wish_is_named_by_its_key() {
        let all = [
            RequestField::Interfaces,
            RequestField::RxQueues,
            RequestField::Ring,
            RequestField::FlowHash,
            RequestField::Placement,
            RequestField::Cores,
        ];
        let keys = "interfaces, rx_queues, ring, flow_hash_udp, placement, cpus";
        assert_eq!(refused(&all, false), format!("no; ask otherwise ([steer] {keys})"));
        assert_eq!(refused(&[RequestField::Interfaces], true), "no; ask otherwise", "the command line named them");
    }

    #[test]
    fn a_failure_says_what_was_changed_and_what_takes_it_back() {
        let told = |done: Vec<Change>| {
            of_failure(&ApplyFailure { cause: ApplyError::Permission("cannot write it".to_owned()), done }, false)
        };
        assert_eq!(told(Vec::new()), "cannot write it; nothing was changed");
        let change = change(Setting::Rings, "1 1", "2 2");
        let two = "cannot write it; 2 settings were changed; what they were before is saved and can be restored: `udpd \
                   steer restore`";
        assert_eq!(told(vec![change.clone(), change]), two);
    }

    #[test]
    fn a_note_is_given_the_key_that_would_change_it() {
        let note = |fields: &[RequestField]| Note { text: "so it is".to_owned(), fields: fields.to_vec() };
        let part = InterfacePlan {
            spare_seats: Vec::new(),
            name: "eth0".to_owned(),
            driver: "?".to_owned(),
            node: None,
            seats: Vec::new(),
            dedicated: Vec::new(),
            wanted: Vec::new(),
            notes: vec![note(&[]), note(&[RequestField::FlowHash])],
            busiest_share_thousandths: 0,
        };
        let plan = name_keys(Plan { interfaces: vec![part] });
        let texts: Vec<&str> = plan.interfaces[0].notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(texts, ["so it is", "so it is ([steer] flow_hash_udp)"]);
    }

    #[test]
    fn a_drift_says_what_keeps_irqbalance_off() {
        let change = change(Setting::Rps(0), "0", "1");
        let drift = Drift { change, queue: None, rival: Some(Rival::Irqbalance(7)) };
        let start = "eth0: rps 0 is 0, wanted 1; irqbalance runs (process 7) and moves interrupts; ";
        assert_eq!(
            of_drift(&drift, false),
            format!("{start}irqbalance = \"ban\" in [steer] makes it leave these alone")
        );
        assert_eq!(of_drift(&drift, true), format!("{start}`udpd steer apply` asks it again to leave these alone"));
        assert_eq!(of_drift(&Drift { rival: None, ..drift }, true), "eth0: rps 0 is 0, wanted 1");
    }
}
