//! Tests of what is set again and what is left alone, on a host that exists only here and a clock that is told the
//! time.

use steer::{Change, Rival, Setting};

use super::*;

/// A host whose interrupts another program moves.
struct Made {
    now: Instant,
    there: Vec<&'static str>,
    /// What is not as planned: interface and queue.
    moved: Vec<(&'static str, usize)>,
    /// What is moved again as soon as it is set.
    stubborn: Vec<(&'static str, usize)>,
    /// Where an interrupt is to be.
    wanted: &'static str,
    refuses: Option<(ExitCode, &'static str)>,
    irqbalance: Option<u32>,
    applied: Vec<Vec<String>>,
}

impl Default for Made {
    fn default() -> Self {
        let (there, moved, stubborn, applied) = Default::default();
        Self { now: Instant::now(), there, moved, stubborn, wanted: "2", refuses: None, irqbalance: None, applied }
    }
}

impl KeeperHost for Made {
    fn now(&self) -> Instant {
        self.now
    }

    fn is_there(&self, interface: &str) -> bool {
        self.there.contains(&interface)
    }

    fn drifts(&mut self, interfaces: &[String]) -> Result<Vec<Drift>, Failure> {
        let is_asked = |(interface, _): &&(&str, usize)| interfaces.iter().any(|name| name == interface);
        Ok(self.moved.iter().filter(is_asked).map(|(interface, queue)| drift(interface, *queue, self.wanted)).collect())
    }

    fn unasked_irqbalance(&mut self) -> Option<u32> {
        self.irqbalance
    }

    fn apply(&mut self, interfaces: &[String]) -> Result<(), Failure> {
        self.applied.push(interfaces.to_vec());
        if let Some((code, message)) = self.refuses {
            return Err(Failure::new(code, message));
        }
        self.moved = self.stubborn.clone();
        self.irqbalance = None;
        Ok(())
    }
}

fn drift(interface: &str, queue: usize, wanted: &str) -> Drift {
    let change = Change {
        interface: interface.to_owned(),
        setting: Setting::Interrupt { number: 40, name: "rx".to_owned() },
        from: "0".to_owned(),
        to: wanted.to_owned(),
        now: None,
        why: String::new(),
        disruption: None,
        command: String::new(),
    };
    Drift { change, queue: Some(queue), rival: Some(Rival::Irqbalance(77)) }
}

/// A keeper, its host and its clock.
struct Run {
    keeper: Keeper,
    host: Made,
    start: Instant,
}

impl Run {
    fn new(interfaces: &[&str], host: Made) -> Self {
        let interfaces: Vec<String> = interfaces.iter().map(|&name| name.to_owned()).collect();
        Self { keeper: Keeper::new(&interfaces, false), start: host.now, host }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    /// The lines of a look at this second.
    fn look(&mut self, seconds: u64) -> Vec<String> {
        self.host.now = self.at(seconds);
        let lines = self.keeper.look(&mut self.host).expect("only the first look fails");
        lines.into_iter().map(|(_, line)| line).collect()
    }

    fn hear(&mut self, seconds: u64, interface: &str, what: LinkChange) -> bool {
        let now = self.at(seconds);
        self.keeper.hear(&LinkEvent::Changed { index: 2, interface: interface.to_owned(), what }, now)
    }

    fn applied(&self) -> usize {
        self.host.applied.len()
    }
}

const UNDONE: &str = "eth0: queue 0: interrupt 40 rx is 0, wanted 2; irqbalance runs (process 77) and moves \
                      interrupts; irqbalance = \"ban\" in [steer] makes it leave these alone";

#[test]
fn what_is_as_planned_is_looked_at_and_never_written() {
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], ..Made::default() });
    for second in 0..100 {
        assert_eq!(run.look(second * 5), [""; 0]);
    }
    assert_eq!(run.applied(), 0);
    assert_eq!(run.keeper.status(), "keeps eth0 as planned");
}

#[test]
fn what_was_moved_is_set_again_once_and_its_rival_named() {
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved: vec![("eth0", 0)], ..Made::default() });
    assert_eq!(run.look(0), [""; 0], "the first apply tells of its changes itself");
    run.host.moved = vec![("eth0", 0)];
    assert_eq!(run.look(300), [format!("{UNDONE}; sets it again")]);
    assert_eq!((run.look(305), run.applied()), (Vec::new(), 2));
    assert_eq!(run.keeper.status(), "keeps eth0 as planned; set again so far: 1");
}

#[test]
fn a_rival_that_keeps_undoing_is_named_once_and_then_tried_every_ten_minutes() {
    let stubborn = vec![("eth0", 0)];
    let host = Made { there: vec!["eth0"], moved: stubborn.clone(), stubborn, ..Made::default() };
    let mut run = Run::new(&["eth0"], host);
    let again = format!("{UNDONE}; sets it again");
    assert_eq!([run.look(0), run.look(5), run.look(10)], [vec![], vec![again.clone()], vec![again.clone()]]);
    let named = format!(
        "{UNDONE}; it was undone 3 times, each time within 60 s: sets it again only every 10 minutes until it holds"
    );
    assert_eq!(run.look(15), [named]);
    for second in (20..615).step_by(5) {
        assert_eq!(run.look(second), [""; 0], "{second}");
    }
    assert_eq!(run.applied(), 3);
    // One try after the rest; it is undone, and nothing more is said.
    assert_eq!((run.look(615), run.applied()), (vec![again.clone()], 4));
    assert_eq!((run.look(620), run.look(1215), run.applied()), (vec![], vec![], 4));
    // After the next rest the rival has gone, and what comes later is new.
    run.host.stubborn = Vec::new();
    assert_eq!((run.look(1220), run.applied()), (vec![again.clone()], 5));
    run.host.moved = vec![("eth0", 0)];
    assert_eq!((run.look(1300), run.applied()), (vec![again], 6));
}

#[test]
fn one_setting_that_is_given_up_keeps_no_other_from_being_set() {
    let stubborn = vec![("eth0", 0)];
    let host = Made { there: vec!["eth0"], moved: stubborn.clone(), stubborn, ..Made::default() };
    let mut run = Run::new(&["eth0"], host);
    (0..=3).for_each(|turn| drop(run.look(turn * 5)));
    run.host.moved.push(("eth0", 1));
    let lines = run.look(20);
    assert_eq!((lines.len(), run.applied()), (1, 4), "{lines:?}");
    assert!(lines[0].starts_with("eth0: queue 1:"), "{lines:?}");
}

#[test]
fn a_card_that_goes_down_and_up_by_itself_is_set_again_however_often() {
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved: vec![("eth0", 0)], ..Made::default() });
    run.look(0);
    for turn in 1..20 {
        assert!(run.hear(turn * 20, "eth0", LinkChange::State));
        run.host.moved = vec![("eth0", 0)];
        let expected = ["the kernel says: the state of eth0 changed".to_owned(), format!("{UNDONE}; sets it again")];
        assert_eq!(run.look(turn * 20 + 1), expected, "{turn}");
    }
    assert_eq!(run.applied(), 20);
}

#[test]
fn what_a_driver_forgets_when_somebody_changes_its_queues_is_set_again_however_often() {
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved: vec![("eth0", 0)], ..Made::default() });
    run.look(0);
    for turn in 1..20 {
        assert!(run.hear(turn * 4, "eth0", LinkChange::Channels));
        run.host.moved = vec![("eth0", 0)];
        run.look(turn * 4 + 1);
    }
    assert_eq!(run.applied(), 20);
}

#[test]
fn another_plan_is_no_rival_of_the_one_before() {
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved: vec![("eth0", 0)], ..Made::default() });
    run.look(0);
    for turn in 1..20_usize {
        // A core goes and comes back.
        run.host.wanted = ["2", "1"][turn % 2];
        run.host.moved = vec![("eth0", 0)];
        run.look(u64::try_from(turn).expect("small") * 5);
    }
    assert_eq!(run.applied(), 20);
}

#[test]
fn what_our_own_change_shakes_loose_is_a_rival_too() {
    let stubborn = vec![("eth0", 0)];
    let host = Made { there: vec!["eth0"], moved: stubborn.clone(), stubborn, ..Made::default() };
    let mut run = Run::new(&["eth0"], host);
    for turn in 0..100 {
        let before = run.applied();
        run.look(turn * 6);
        // The card goes down and up because of what was set.
        assert!(run.applied() == before || run.hear(turn * 6 + 3, "eth0", LinkChange::State));
    }
    assert_eq!(run.applied(), 3, "no endless loop");
}

#[test]
fn notifications_of_other_interfaces_are_no_reason_to_look_and_lost_ones_are() {
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], ..Made::default() });
    run.look(0);
    assert!(!run.hear(1, "veth7", LinkChange::State));
    let now = run.at(2);
    assert!(run.keeper.hear(&LinkEvent::Missed, now));
}

#[test]
fn an_interface_that_is_not_there_is_waited_for_and_one_that_is_gone_too() {
    let mut run = Run::new(&["eth0", "eth1"], Made { there: vec!["eth0"], ..Made::default() });
    run.host.moved = vec![("eth0", 0), ("eth1", 0)];
    assert_eq!(run.look(0), ["eth1 is not there: waits for it"]);
    assert_eq!(run.host.applied, [["eth0"]]);
    assert_eq!(run.keeper.status(), "keeps eth0 as planned; waits for eth1");
    assert_eq!(run.look(5), [""; 0], "said once");
    run.host.there.push("eth1");
    run.host.moved = vec![("eth1", 0)];
    assert_eq!(run.look(10).first().map(String::as_str), Some("eth1 is there"));
    assert_eq!(run.host.applied[1], ["eth0", "eth1"]);
    run.host.there = Vec::new();
    assert_eq!(run.look(15), ["eth0 is gone: waits for it to come back", "eth1 is gone: waits for it to come back"]);
    run.host.there = vec!["eth0", "eth1"];
    run.host.moved = vec![("eth0", 0)];
    assert_eq!(run.look(20).len(), 3, "two are there, and one setting is set again");
    assert_eq!(run.applied(), 3);
}

#[test]
fn the_first_failure_ends_it_with_its_code_and_later_ones_are_said_once_and_tried_less_and_less() {
    let refuses = Some((ExitCode::Permission, "cannot set it without CAP_NET_ADMIN"));
    let moved = vec![("eth0", 0)];
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved, refuses, ..Made::default() });
    let failure = run.keeper.look(&mut run.host).expect_err("the operator reads it");
    assert_eq!(failure.code, ExitCode::Permission);

    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], ..Made::default() });
    run.look(0);
    (run.host.moved, run.host.refuses) = (vec![("eth0", 0)], Some((ExitCode::Failure, "the driver is busy")));
    let first = run.look(5);
    assert_eq!(first, [format!("{UNDONE}; sets it again"), "the driver is busy; tries again".to_owned()]);
    for second in (10..1800).step_by(5) {
        assert_eq!(run.look(second), [""; 0], "{second}");
    }
    // After 5, 10, 20, 40, 80, 160 seconds and then every 300.
    assert_eq!(run.applied(), 11);
    assert_eq!(run.keeper.status(), "keeps eth0 as planned; failed: the driver is busy");
    run.host.moved.push(("eth0", 1));
    run.look(1800);
    assert_eq!(run.applied(), 12, "what differs only now is not kept waiting");
    run.host.refuses = None;
    assert!(run.hear(1801, "eth0", LinkChange::Channels));
    run.look(1802);
    assert_eq!((run.applied(), run.keeper.status()), (13, "keeps eth0 as planned; set again so far: 1".to_owned()));
}

#[test]
fn what_may_pass_does_not_end_it_at_the_first_look_either() {
    let refuses = Some((ExitCode::Failure, "the driver is busy"));
    let moved = vec![("eth0", 0)];
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved, refuses, ..Made::default() });
    assert_eq!(run.look(0), ["the driver is busy; tries again"]);
    assert_eq!((run.look(4), run.applied()), (vec![], 1));
    assert_eq!((run.look(5), run.applied()), (vec![], 2));
    for code in [ExitCode::Usage, ExitCode::Permission, ExitCode::Configuration] {
        let (moved, refuses) = (vec![("eth0", 0)], Some((code, "no waiting cures this")));
        let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved, refuses, ..Made::default() });
        assert_eq!(run.keeper.look(&mut run.host).expect_err("it ends").code, code);
    }
}

#[test]
fn the_echo_of_a_failed_change_is_no_reason_to_try_at_once() {
    let refuses = Some((ExitCode::Failure, "the driver is busy"));
    let moved = vec![("eth0", 0)];
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved, refuses, ..Made::default() });
    run.look(0);
    run.hear(1, "eth0", LinkChange::State);
    assert_eq!((run.look(2), run.applied()), (vec![], 1));
    // One that comes by itself is.
    run.look(5);
    run.hear(16, "eth0", LinkChange::State);
    run.look(17);
    assert_eq!(run.applied(), 3, "at 0, at 5, and when the card came up");
}

#[test]
fn what_could_not_be_set_was_not_undone_again() {
    let moved = vec![("eth0", 0)];
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved: moved.clone(), ..Made::default() });
    run.look(0);
    (run.host.moved, run.host.refuses) = (moved, Some((ExitCode::Failure, "the driver is busy")));
    (1..=8).for_each(|turn| drop(run.look(turn * 5)));
    run.host.refuses = None;
    run.look(80);
    assert_eq!((run.host.moved.len(), run.keeper.status().as_str()), (0, "keeps eth0 as planned; set again so far: 1"));
}

#[test]
fn an_irqbalance_that_was_restarted_is_asked_again() {
    let mut run = Run::new(&["eth0"], Made { there: vec!["eth0"], moved: vec![("eth0", 0)], ..Made::default() });
    run.look(0);
    run.host.irqbalance = Some(99);
    assert_eq!(run.look(5), ["another irqbalance runs (process 99): asks it to leave the interrupts alone"]);
    assert_eq!((run.look(10), run.applied()), (vec![], 2));
}
