//! Tests of rules of ours among those of others, and of what drivers refuse although they have it.

use std::net::IpAddr;
use std::time::Duration;

use crate::ethtool::{Family, Rule};
use crate::plan::{Amount, Request};
use crate::steering_rig::{Rig, dedication, state};

const IXGBE: &str = "two-socket-smt-ixgbe";

fn one_queue() -> Request {
    Request { dedicated: vec![dedication(&["0.0.0.0:2055"])], ..Request::default() }
}

fn rule(destination: Option<[u8; 4]>, port: u16, queue: u32) -> Rule {
    Rule { family: Family::V4, destination: destination.map(IpAddr::from), port, queue }
}

/// The rules of the device, by place.
fn rules(rig: &Rig) -> Vec<(u32, Option<Rule>)> {
    rig.machine.ethtool.states.borrow()["eth0"].rules.clone().expect("rules").taken
}

/// The device has these rules now, whoever made them.
fn set_rules(rig: &Rig, rules: Vec<(u32, Option<Rule>)>) {
    rig.machine.ethtool.states.borrow_mut().get_mut("eth0").expect("a device").rules.as_mut().expect("rules").taken =
        rules;
}

/// Somebody turns sorting on and adds rules of his own.
fn others_add(rig: &Rig, theirs: Vec<(u32, Option<Rule>)>) {
    let mut states = rig.machine.ethtool.states.borrow_mut();
    let state = states.get_mut("eth0").expect("a device");
    state.ntuple.as_mut().expect("ntuple").is_on = true;
    let rules = &mut state.rules.as_mut().expect("rules").taken;
    rules.extend(theirs);
    rules.sort_by_key(|(place, _)| *place);
}

#[test]
fn a_rule_is_put_at_the_last_free_place_and_only_it_is_removed_again() {
    let rig = Rig::new(IXGBE);
    // One of another kind, one of the same port elsewhere, and one at the last place.
    let theirs = vec![(3, None), (4, Some(rule(Some([192, 0, 2, 9]), 2055, 1))), (1021, None)];
    others_add(&rig, theirs.clone());
    let before = state(&rig.machine);
    rig.apply(&one_queue()).expect("applied");
    let mut expected = theirs;
    expected.insert(2, (1020, Some(rule(None, 2055, 7))));
    assert_eq!(rules(&rig), expected);
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(state(&rig.machine), before);
}

#[test]
fn a_place_that_the_driver_chose_is_known_to_the_journal() {
    let rig = Rig::new(IXGBE);
    rig.machine
        .ethtool
        .states
        .borrow_mut()
        .get_mut("eth0")
        .expect("a device")
        .rules
        .as_mut()
        .expect("rules")
        .driver_chooses = true;
    others_add(&rig, vec![(0, None)]);
    rig.apply(&one_queue()).expect("applied");
    let journal = std::fs::read_to_string(rig.file()).expect("a file");
    assert!(journal.contains("rule udp4 any 2055\tnone; added queue 7 at 1\n"), "{journal}");
    // Ours goes, and somebody adds the same at another place.
    let theirs = vec![(0, None), (5, Some(rule(None, 2055, 7)))];
    set_rules(&rig, theirs.clone());
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(rules(&rig), theirs, "what is at another place is not ours");
}

#[test]
fn a_rule_of_others_for_the_same_datagrams_is_left_and_told() {
    let rig = Rig::new(IXGBE);
    let theirs = vec![(9, Some(rule(None, 2055, 2)))];
    others_add(&rig, theirs.clone());
    let before = rig.machine.ethtool.states.borrow()["eth0"].rss.clone();
    let error = rig.apply(&one_queue()).expect_err("theirs sends them elsewhere").to_string();
    assert!(error.contains("the rule at place 9 sends them to queue 2 already, and it is not ours"), "{error}");
    assert!(error.contains("`ethtool -N eth0 delete 9`") && error.contains("everything else"), "{error}");
    assert_eq!(rules(&rig), theirs);
    assert_eq!(rig.machine.ethtool.states.borrow()["eth0"].rss, before, "no queue is kept free for nobody");
    let moved = std::fs::read_to_string(rig.machine.proc().join("irq/107/smp_affinity_list")).expect("a file");
    assert_ne!(moved, "0\n", "the rest of the plan is made");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(rules(&rig), theirs);
}

#[test]
fn a_rule_of_ours_follows_its_queue_when_the_number_of_queues_changes() {
    let rig = Rig::new(IXGBE);
    let before = state(&rig.machine);
    rig.apply(&one_queue()).expect("applied");
    // The kernel takes away no queue that a rule names.
    let fewer = Request { rx_queues: Amount::Number(4), ..one_queue() };
    rig.apply(&fewer).expect("applied");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 3)))]);
    let more = Request { rx_queues: Amount::Max, ..one_queue() };
    rig.apply(&more).expect("applied");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 15)))]);
    rig.machine.ethtool.log.borrow_mut().clear();
    assert_eq!(rig.apply(&more).expect("applied"), []);
    assert!(rig.machine.ethtool.log.borrow().is_empty());
    rig.apply(&Request { rx_queues: Amount::Max, ..Request::default() }).expect("applied");
    assert_eq!(rules(&rig), [], "what nobody wants any more goes");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(state(&rig.machine), before);
}

#[test]
fn sorting_stays_on_while_rules_of_others_need_it() {
    let rig = Rig::new(IXGBE);
    rig.apply(&one_queue()).expect("applied");
    others_add(&rig, vec![(9, None)]);
    let failures = rig.restore().failures;
    assert!(
        failures.len() == 1 && failures[0].contains("1 rule that others added since would go with it: remove it"),
        "{failures:?}"
    );
    assert_eq!(rules(&rig), [(9, None)]);
    set_rules(&rig, Vec::new());
    assert_eq!(rig.restore().failures, Vec::<String>::new());
}

#[test]
fn rules_that_were_there_while_sorting_was_off_do_not_keep_it_on() {
    let mut rig = Rig::new(IXGBE);
    rig.machine.ethtool.keeps_rules_while_off = true;
    set_rules(&rig, vec![(2, None), (9, Some(rule(None, 53, 1)))]);
    let before = state(&rig.machine);
    rig.apply(&one_queue()).expect("applied");
    let journal = std::fs::read_to_string(rig.file()).expect("a file");
    assert!(journal.contains("ntuple\toff; rules of others 2\n"), "{journal}");
    others_add(&rig, vec![(10, None), (11, None)]);
    let failures = rig.restore().failures;
    let said = "back to off: 2 rules that others added since would go with it: remove them first";
    assert!(failures.len() == 1 && failures[0].contains(said), "{failures:?}");
    set_rules(&rig, vec![(2, None), (9, Some(rule(None, 53, 1)))]);
    let restored = rig.restore();
    assert_eq!(restored.failures, Vec::<String>::new());
    assert_eq!((restored.changes[0].from.as_str(), restored.changes[0].to.as_str()), ("on", "off"));
    assert_eq!(state(&rig.machine), before);
}

#[test]
fn a_rule_that_the_driver_refused_is_not_ours_when_somebody_adds_it() {
    let mut rig = Rig::new(IXGBE);
    rig.machine.ethtool.sorts_ipv4_only = true;
    others_add(&rig, Vec::new());
    let request = Request { dedicated: vec![dedication(&["[::]:2055"])], ..Request::default() };
    rig.apply(&request).expect_err("the device has no rules for IPv6");
    let theirs = vec![(1021, Some(Rule { family: Family::V6, ..rule(None, 2055, 7) }))];
    set_rules(&rig, theirs.clone());
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(rules(&rig), theirs);
}

#[test]
fn a_rule_that_reads_back_as_another_is_taken_out_again_and_told() {
    let mut rig = Rig::new(IXGBE);
    rig.machine.ethtool.shows_rules_as_others = true;
    others_add(&rig, vec![(3, None)]);
    let error = rig.apply(&one_queue()).expect_err("nobody would find it again").to_string();
    assert!(error.contains("the driver shows the rule as another one"), "{error}");
    assert_eq!(rules(&rig), [(3, None)]);
    let journal = std::fs::read_to_string(rig.file()).expect("a file");
    assert!(journal.contains("rule udp4 any 2055\tnone\n"), "{journal}");
}

#[test]
fn a_rule_at_our_place_that_somebody_changed_is_not_ours_any_more() {
    let rig = Rig::new(IXGBE);
    rig.apply(&one_queue()).expect("applied");
    for theirs in [vec![(1021, Some(rule(None, 2055, 2)))], vec![(9, Some(rule(None, 2055, 2)))]] {
        set_rules(&rig, theirs.clone());
        let error = rig.apply(&one_queue()).expect_err("theirs sends them elsewhere").to_string();
        assert!(error.contains("and it is not ours"), "{error}");
        assert_eq!(rules(&rig), theirs);
    }
    // Ours is left while another keeps us from replacing it.
    let both = vec![(9, Some(rule(None, 2055, 2))), (1021, Some(rule(None, 2055, 7)))];
    set_rules(&rig, both.clone());
    rig.apply(&one_queue()).expect_err("theirs comes first");
    assert_eq!(rules(&rig), both);
}

#[test]
fn a_rule_of_ours_that_is_gone_by_itself_is_no_change() {
    let is_rule = |change: &&crate::change::Change| matches!(change.setting, crate::setting::Setting::Rule { .. });
    for is_gone in [true, false] {
        let rig = Rig::new(IXGBE);
        rig.apply(&one_queue()).expect("applied");
        if is_gone {
            set_rules(&rig, Vec::new());
        }
        let restored = rig.restore();
        assert_eq!(restored.failures, Vec::<String>::new());
        let told: Vec<_> =
            restored.changes.iter().filter(is_rule).map(|it| (it.from.as_str(), it.to.as_str())).collect();
        assert_eq!(told, if is_gone { vec![] } else { vec![("queue 7 at 1021", "none")] });
    }
}

#[test]
fn no_rule_is_stale_while_the_driver_does_not_answer() {
    let rig = Rig::new(IXGBE);
    rig.apply(&one_queue()).expect("applied");
    rig.machine.ethtool.log.borrow_mut().clear();
    rig.machine.ethtool.busy_questions.set(1);
    rig.apply(&one_queue()).expect("the second plan knows more");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 7)))]);
    let log = rig.machine.ethtool.log.borrow();
    assert!(!log.iter().any(|line| line.contains("rule")), "{log:?}");
}

#[test]
fn what_a_driver_refuses_is_told_and_everything_else_is_made() {
    let mut rig = Rig::new(IXGBE);
    rig.machine.ethtool.sorts_ipv4_only = true;
    rig.machine.ethtool.keeps_coalescing = true;
    let before = state(&rig.machine);
    let request = Request {
        coalesce: Some(Duration::from_micros(50)),
        dedicated: vec![dedication(&["0.0.0.0:2055", "[::]:2055"])],
        ..Request::default()
    };
    let error = rig.apply(&request).expect_err("two of them").to_string();
    assert!(error.contains("cannot set coalescing of eth0"), "{error}");
    assert!(error.contains("cannot set rule udp6 any 2055 of eth0 to queue 7"), "{error}");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 7)))], "IPv4 has its queue");
    let table = rig.machine.ethtool.states.borrow()["eth0"].rss.clone().expect("RSS").indirection;
    assert_eq!(table.iter().max(), Some(&6), "and the others are kept off it");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(state(&rig.machine), before);
}

#[test]
fn stopped_at_any_change_every_rule_of_ours_is_found_again_and_no_other_is_touched() {
    for driver_chooses in [false, true] {
        let mut made = 0;
        for allowed in 0..12 {
            let rig = Rig::new(IXGBE);
            let mut states = rig.machine.ethtool.states.borrow_mut();
            states.get_mut("eth0").expect("a device").rules.as_mut().expect("rules").driver_chooses = driver_chooses;
            drop(states);
            others_add(&rig, vec![(0, Some(rule(None, 53, 1))), (1000, None)]);
            let before = state(&rig.machine);
            *rig.machine.ethtool.settings_left.borrow_mut() = Some(allowed);
            let _ = rig.apply(&crate::steering_rig::request());
            made += rules(&rig).len() - 2;
            *rig.machine.ethtool.settings_left.borrow_mut() = None;
            assert_eq!(rig.restore().failures, Vec::<String>::new());
            assert_eq!(state(&rig.machine), before, "stopped after {allowed}");
        }
        assert!(made > 12, "most were stopped after a rule: {made}");
    }
}

#[test]
fn adaptive_coalescing_is_put_back_with_the_numbers_behind_it() {
    let rig = Rig::new("mlx5");
    let before = state(&rig.machine);
    let changes = rig.apply(&Request { coalesce: Some(Duration::from_micros(50)), ..Request::default() });
    let changes = changes.expect("applied");
    assert_eq!(changes[0].command, "ethtool -C eth0 adaptive-rx off rx-usecs 50 rx-frames 128");
    assert_eq!(changes[0].from, "adaptive-rx on rx-usecs 8 rx-frames 128");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(state(&rig.machine), before);
}
