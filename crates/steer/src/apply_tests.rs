//! Tests of applying, on unpacked machines: files for the interrupts, a device in memory for the rest.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::ethtool::{Family, FlowHash, Rule};
use crate::plan::{Amount, Request};
use crate::testing::Random;
use crate::testing::rig::{Rig, dedication, machines, request};

#[test]
fn settings_are_applied_in_the_order_in_which_drivers_forget() {
    let rig = Rig::ixgbe();
    let changes = rig.apply(&request()).expect("applied");
    let settings: Vec<&Setting> = changes.iter().map(|change| &change.setting).collect();
    let mut sorted = settings.clone();
    sorted.sort();
    assert_eq!(settings, sorted);
    let kinds = [Setting::Channels, Setting::Rings, Setting::Coalescing, Setting::Ntuple];
    assert_eq!(settings[..4], kinds.each_ref());
    assert!(settings[4..7].iter().all(|setting| matches!(setting, Setting::Rule { .. })), "{settings:?}");
    assert_eq!(settings[7], &Setting::Indirection);
    assert!(changes.iter().all(Change::is_as_wanted), "{changes:?}");
    assert_eq!(changes[0].command, "ethtool -L eth0 combined 16");
}

#[test]
fn applying_twice_writes_nothing_the_second_time() {
    for name in machines() {
        for request in [Request::default(), request()] {
            let rig = Rig::new(&name);
            let Ok(_) = rig.apply(&request) else { continue };
            let after_first = rig.state();
            rig.take_log();
            assert_eq!(rig.apply(&request).expect("still possible"), [], "{name}");
            assert!(rig.take_log().is_empty(), "{name}");
            assert_eq!(rig.state(), after_first, "{name}");
        }
    }
}

#[test]
fn a_driver_that_takes_something_else_is_told() {
    let mut rig = Rig::ixgbe();
    rig.machine.ethtool.rounds_ring_to = Some(2048);
    let changes = rig.apply(&request()).expect("applied");
    let ring = changes.iter().find(|change| change.setting == Setting::Rings).expect("the ring");
    assert_eq!((ring.to.as_str(), ring.now.as_deref()), ("4096 512", Some("2048 512")));
    assert!(!ring.is_as_wanted());
}

#[test]
fn what_a_driver_made_of_a_value_is_as_planned_once_it_is_known_and_is_not_written_again() {
    let mut rig = Rig::ixgbe();
    rig.machine.ethtool.rounds_ring_to = Some(2048);
    let asked = request();
    let made = rig.apply(&asked).expect("applied");
    let names = ["eth0".to_owned()];
    rig.with_steering(&asked, |steering| {
        let differs = |rounded: &[Change]| {
            let steering = Steering { rounded, ..steering };
            let (host, plan) = steering.plan(&names).expect("a plan");
            let changes = steering.changes(&host, &plan).expect("readable");
            let drifts = steering.compare(&host, &plan, &crate::rivals::Rivals::default()).drifts;
            let drifts = drifts.into_iter().map(|drift| drift.change.setting).collect::<Vec<_>>();
            assert_eq!(drifts, changes.into_iter().map(|change| change.setting).collect::<Vec<_>>());
            drifts
        };
        assert_eq!((differs(&[]), differs(&made)), (vec![Setting::Rings], vec![]));
        let again = Steering { rounded: &made, ..steering }.apply(&names, &mut rig.lock(), |_| ()).expect("applied");
        assert_eq!(again, []);
        // Another value than the one that it made of ours is not ours.
        rig.change_device(|state| state.rings.as_mut().expect("rings").rx = 64);
        assert_eq!(differs(&made), [Setting::Rings]);
    });
}

#[test]
fn fewer_queues_than_a_table_names_are_set_all_the_same() {
    let rig = Rig::ixgbe();
    let fewer = Request { rx_queues: Amount::Number(2), ..Request::default() };
    rig.with_steering(&fewer, |steering| steering.reader.set("eth0", &Setting::Indirection, "0,7"))
        .expect("a table of the administrator's own");
    rig.take_log();
    let changes = rig.apply(&fewer).expect("applied");
    assert_eq!((changes[0].setting.clone(), changes[0].to.as_str()), (Setting::Channels, "0 0 0 2"));
    let log = rig.take_log();
    assert_eq!(log[..2], ["eth0: indirection None", "eth0: channels rx 0 combined 2"]);
}

#[test]
fn without_the_right_nothing_is_changed() {
    let rig = Rig::ixgbe();
    let before = rig.state();
    fs::create_dir_all(rig.proc().join("self")).expect("a folder");
    rig.write("proc/self/status", "CapEff:\t0000000000000000");
    let error = rig.apply(&request()).expect_err("no capability");
    assert!(matches!(error.cause, ApplyError::Permission(_)) && error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    assert_eq!(rig.state(), before);
    assert!(rig.saved().is_empty());
}

#[test]
fn whatever_the_host_only_what_is_planned_is_written() {
    let mut random = Random::default();
    let mut next = |below: usize| random.below(below);
    let names = machines();
    for _ in 0..if cfg!(debug_assertions) { 40 } else { 500 } {
        let rig = Rig::new(&names[next(names.len())]);
        let numbers = crate::topology::try_numbered(&rig.proc().join("irq"), "").expect("a folder");
        let core = format!("{}\n", next(4));
        let number = numbers[next(numbers.len())];
        let path = rig.proc().join(format!("irq/{number}/smp_affinity_list"));
        let _ = fs::write(path, core);
        let amounts = [Amount::Keep, Amount::Max, Amount::Number(u32::try_from(next(20)).expect("small"))];
        let request = Request { rx_queues: amounts[next(3)], ring: amounts[next(3)], ..Request::default() };
        let before = rig.state().0;
        let Ok(changes) = rig.apply(&request) else { continue };
        let after = rig.state().0;
        for (path, value) in after.iter().filter(|(path, value)| before.get(*path) != Some(value)) {
            let planned = changes.iter().any(|change| change.command == format!("echo {} > {path}", value.trim()));
            assert!(planned, "{path} became {value} and no change says so: {changes:?}");
        }
        let told = rig.take_log().iter().filter(|line| !line.contains("indirection None")).count();
        assert_eq!(told, changes.iter().filter(|change| change.setting <= Setting::FlowHash(Family::V6)).count());
    }
}

#[test]
fn a_device_without_rss_that_says_it_hashes_nothing_is_not_told_to() {
    let rig = Rig::new("vm-virtio-single");
    // virtio_net without RSS answers the question, and refuses every setting with EINVAL.
    rig.change_device(|state| state.hash_v4 = Some(FlowHash(0)));
    let (_, plan) = rig.with_steering(&request(), |steering| steering.plan(&["eth0".to_owned()])).expect("a plan");
    let part = &plan.interfaces[0];
    let asks = |wanted: &crate::plan::Wanted| matches!(wanted.target, crate::plan::Target::FlowHash(..));
    assert!(!part.wanted.iter().any(asks), "{plan}");
    assert!(part.notes.iter().any(|note| note.text.contains("hashes nothing")), "{plan}");
}

#[test]
fn a_setting_that_cannot_be_read_is_an_error_and_never_as_planned() {
    let rig = Rig::ixgbe();
    let asked = request();
    rig.with_steering(&asked, |steering| {
        let (host, plan) = steering.plan(&["eth0".to_owned()]).expect("a plan");
        let all = steering.changes(&host, &plan).expect("everything is readable");
        let mut failed = 0;
        for readings in 0..20 {
            rig.allow_readings(Some(readings));
            match steering.changes(&host, &plan) {
                Ok(changes) => assert_eq!(changes.len(), all.len(), "after {readings} readings"),
                Err(error) => {
                    failed += 1;
                    assert!(error.to_string().starts_with("cannot read "), "{error}");
                }
            }
        }
        // The commands read too, to show what an administrator would type; that may fail without harm.
        assert!(failed >= 5, "channels, ring, table and two hashes are read: {failed}");
    });
}

#[test]
fn an_interface_that_is_named_twice_is_one() {
    let (once, twice) = (Rig::ixgbe(), Rig::ixgbe());
    let asked = Request::default();
    let names = ["eth0".to_owned(), "eth0".to_owned()];
    let changes =
        twice.with_steering(&asked, |steering| steering.apply(&names, &mut twice.lock(), |_| ())).expect("applied");
    assert_eq!(changes.len(), once.apply(&asked).expect("applied").len());
    let again =
        twice.with_steering(&asked, |steering| steering.apply(&names, &mut twice.lock(), |_| ())).expect("applied");
    assert_eq!(again, []);
}

#[test]
fn where_sysfs_is_of_another_namespace_nothing_is_changed() {
    let rig = Rig::ixgbe();
    let before = rig.state();
    rig.netdev.links.lock().expect("no thread panicked").push(crate::Link {
        index: 7,
        name: "other0".to_owned(),
        address: None,
    });
    let error = rig.apply(&request()).expect_err("sysfs shows something else");
    assert!(matches!(error.cause, ApplyError::Unclear { .. }) && error.done.is_empty(), "{error}");
    assert!(error.to_string().contains("the kernel has 7 other0 -, which it does not show"), "{error}");
    assert_eq!(rig.state(), before);
    assert!(rig.saved().is_empty());
}

#[test]
fn what_is_saved_for_another_interface_of_the_same_number_is_not_written_over() {
    let (rig, _) = Rig::applied(&Request::default());
    let file = rig.file();
    let saved = fs::read(&file).expect("a file");
    let text = String::from_utf8(saved.clone()).expect("a text").replace("bus\t0000:", "bus\t0001:");
    fs::write(&file, &text).expect("a file");
    let saved = text.into_bytes();
    let before = rig.state();
    let error = rig.apply(&request()).expect_err("another interface");
    assert!(error.to_string().contains("52:54:00:12:34:56"), "{error}");
    assert_eq!((fs::read(&file).expect("a file"), rig.state()), (saved, before));
}

#[test]
fn where_another_interface_has_the_name_by_now_applying_ends_and_tells_what_was_changed() {
    let rig = Rig::ixgbe();
    let index = rig.sys().join("class/net/eth0/ifindex");
    let asked = request();
    // Coalescing comes next, which a plan is good without when its driver refuses it.
    let swap_after_rings = |change: &Change| {
        if change.setting == Setting::Rings {
            fs::write(&index, "99\n").expect("a file");
        }
    };
    let names = ["eth0".to_owned()];
    let failure = rig.with_steering(&asked, |steering| steering.apply(&names, &mut rig.lock(), swap_after_rings));
    let failure = failure.expect_err("it is another card");
    assert!(matches!(failure.cause, ApplyError::Unclear { .. }), "{failure}");
    let done: Vec<&Setting> = failure.done.iter().map(|change| &change.setting).collect();
    assert_eq!(done, [&Setting::Channels, &Setting::Rings]);
    assert_eq!(rig.take_log().len(), 2, "nothing is set on the other card");
    assert_eq!(
        failure.to_string(),
        "cannot tell which interface eth0 is: the one that was planned for is gone or has another name by now; 2 \
         settings were changed; what they were before is saved and can be restored"
    );
}

#[test]
fn a_failure_at_any_change_tells_exactly_what_was_changed() {
    for allowed in 0..10 {
        let rig = Rig::ixgbe();
        let before = rig.state();
        rig.allow_settings(Some(allowed));
        let failure = rig.apply(&request()).expect_err("everything fails from some setting on");
        let told = failure.done.iter().filter(|change| change.setting <= Setting::FlowHash(Family::V6)).count();
        assert_eq!(told, rig.take_log().len(), "{failure}");
        let clause = match failure.done.len() {
            0 => "nothing was changed".to_owned(),
            1 => "1 setting was changed".to_owned(),
            many => format!("{many} settings were changed"),
        };
        assert!(failure.to_string().contains(&clause), "{failure}");
        rig.allow_settings(None);
        rig.restore_to(&before);
    }
}

// Rules of ours among those of others, and what drivers refuse although they have it.

fn one_queue() -> Request {
    Request { dedicated: vec![dedication(&["0.0.0.0:2055"])], ..Request::default() }
}

fn rule(destination: Option<[u8; 4]>, port: u16, queue: u32) -> Rule {
    Rule { family: Family::V4, destination: destination.map(IpAddr::from), port, queue }
}

/// The rules of the device, by place.
fn rules(rig: &Rig) -> Vec<(u32, Option<Rule>)> {
    rig.device().rules.clone().expect("rules").taken
}

/// The device has these rules now.
fn set_rules(rig: &Rig, rules: Vec<(u32, Option<Rule>)>) {
    rig.change_device(|state| state.rules.as_mut().expect("rules").taken = rules);
}

/// Another program turns sorting on and adds rules.
fn others_add(rig: &Rig, theirs: Vec<(u32, Option<Rule>)>) {
    rig.change_device(|state| {
        state.ntuple.as_mut().expect("ntuple").is_on = true;
        let rules = &mut state.rules.as_mut().expect("rules").taken;
        rules.extend(theirs);
        rules.sort_by_key(|(place, _)| *place);
    });
}

#[test]
fn a_rule_is_put_at_the_last_free_place_and_only_it_is_removed_again() {
    let rig = Rig::ixgbe();
    // One of another kind, one of the same port elsewhere, and one at the last place.
    let theirs = vec![(3, None), (4, Some(rule(Some([192, 0, 2, 9]), 2055, 1))), (1021, None)];
    others_add(&rig, theirs.clone());
    let before = rig.state();
    rig.apply(&one_queue()).expect("applied");
    let mut expected = theirs;
    expected.insert(2, (1020, Some(rule(None, 2055, 7))));
    assert_eq!(rules(&rig), expected);
    rig.restore_to(&before);
}

#[test]
fn a_place_that_the_driver_chose_is_known_to_the_journal() {
    let rig = Rig::ixgbe();
    rig.change_device(|state| state.rules.as_mut().expect("rules").driver_chooses = true);
    others_add(&rig, vec![(0, None)]);
    rig.apply(&one_queue()).expect("applied");
    let journal = std::fs::read_to_string(rig.file()).expect("a file");
    assert!(journal.contains("rule udp4 any 2055\tnone; added queue 7 at 1\n"), "{journal}");
    // Ours goes, and another program adds the same at another place.
    let theirs = vec![(0, None), (5, Some(rule(None, 2055, 7)))];
    set_rules(&rig, theirs.clone());
    rig.restore_all();
    assert_eq!(rules(&rig), theirs, "what is at another place is not ours");
}

#[test]
fn a_rule_of_others_for_the_same_datagrams_is_left_and_told() {
    let rig = Rig::ixgbe();
    let theirs = vec![(9, Some(rule(None, 2055, 2)))];
    others_add(&rig, theirs.clone());
    let before = rig.device().rss.clone();
    let error = rig.apply(&one_queue()).expect_err("theirs sends them elsewhere").to_string();
    assert!(error.contains("the rule at place 9 sends them to queue 2 already, and it is not ours"), "{error}");
    assert!(error.contains("`ethtool -N eth0 delete 9`") && error.contains("everything else"), "{error}");
    assert_eq!(rules(&rig), theirs);
    assert_eq!(rig.device().rss, before, "no queue is kept free for nothing");
    let moved = rig.text("proc/irq/107/smp_affinity_list");
    assert_ne!(moved, "0\n", "the rest of the plan is made");
    rig.restore_all();
    assert_eq!(rules(&rig), theirs);
}

#[test]
fn a_rule_of_ours_follows_its_queue_when_the_number_of_queues_changes() {
    let (rig, before) = Rig::applied(&one_queue());
    // The kernel takes away no queue that a rule names.
    let fewer = Request { rx_queues: Amount::Number(4), ..one_queue() };
    rig.apply(&fewer).expect("applied");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 3)))]);
    let more = Request { rx_queues: Amount::Max, ..one_queue() };
    rig.apply(&more).expect("applied");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 15)))]);
    rig.take_log();
    assert_eq!(rig.apply(&more).expect("applied"), []);
    assert!(rig.take_log().is_empty());
    rig.apply(&Request { rx_queues: Amount::Max, ..Request::default() }).expect("applied");
    assert_eq!(rules(&rig), [], "what is no longer asked for goes");
    rig.restore_to(&before);
}

#[test]
fn sorting_stays_on_while_rules_of_others_need_it() {
    let (rig, _) = Rig::applied(&one_queue());
    others_add(&rig, vec![(9, None)]);
    let failures = rig.restore().failures;
    assert!(
        failures.len() == 1 && failures[0].contains("1 rule that others added since would go with it: remove it"),
        "{failures:?}"
    );
    assert_eq!(rules(&rig), [(9, None)]);
    set_rules(&rig, Vec::new());
    rig.restore_all();
}

#[test]
fn rules_that_were_there_while_sorting_was_off_do_not_keep_it_on() {
    let mut rig = Rig::ixgbe();
    rig.machine.ethtool.keeps_rules_while_off = true;
    set_rules(&rig, vec![(2, None), (9, Some(rule(None, 53, 1)))]);
    let before = rig.state();
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
    assert_eq!(rig.state(), before);
}

#[test]
fn a_rule_that_the_driver_refused_is_not_ours_when_another_program_adds_it() {
    let mut rig = Rig::ixgbe();
    rig.machine.ethtool.sorts_ipv4_only = true;
    others_add(&rig, Vec::new());
    let request = Request { dedicated: vec![dedication(&["[::]:2055"])], ..Request::default() };
    rig.apply(&request).expect_err("the device has no rules for IPv6");
    let theirs = vec![(1021, Some(Rule { family: Family::V6, ..rule(None, 2055, 7) }))];
    set_rules(&rig, theirs.clone());
    rig.restore_all();
    assert_eq!(rules(&rig), theirs);
}

#[test]
fn a_rule_that_reads_back_as_another_is_taken_out_again_and_told() {
    let mut rig = Rig::ixgbe();
    rig.machine.ethtool.shows_rules_as_others = true;
    others_add(&rig, vec![(3, None)]);
    let error = rig.apply(&one_queue()).expect_err("it could not be found again").to_string();
    assert!(error.contains("the driver shows the rule as another one"), "{error}");
    assert_eq!(rules(&rig), [(3, None)]);
    let journal = std::fs::read_to_string(rig.file()).expect("a file");
    assert!(journal.contains("rule udp4 any 2055\tnone\n"), "{journal}");
}

#[test]
fn a_rule_at_our_place_that_another_program_changed_is_not_ours_any_more() {
    let (rig, _) = Rig::applied(&one_queue());
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
        let (rig, _) = Rig::applied(&one_queue());
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
    let (rig, _) = Rig::applied(&one_queue());
    rig.take_log();
    *rig.ethtool.busy_questions.borrow_mut() = 1;
    rig.apply(&one_queue()).expect("the second plan knows more");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 7)))]);
    let log = rig.take_log();
    assert!(!log.iter().any(|line| line.contains("rule")), "{log:?}");
}

#[test]
fn what_a_driver_refuses_is_told_and_everything_else_is_made() {
    let mut rig = Rig::ixgbe();
    rig.machine.ethtool.sorts_ipv4_only = true;
    rig.machine.ethtool.keeps_coalescing = true;
    let before = rig.state();
    let request = Request {
        coalesce: Some(Duration::from_micros(50)),
        dedicated: vec![dedication(&["0.0.0.0:2055", "[::]:2055"])],
        ..Request::default()
    };
    let error = rig.apply(&request).expect_err("two of them").to_string();
    assert!(error.contains("cannot set coalescing of eth0"), "{error}");
    assert!(error.contains("cannot set rule udp6 any 2055 of eth0 to queue 7"), "{error}");
    assert_eq!(rules(&rig), [(1021, Some(rule(None, 2055, 7)))], "IPv4 has its queue");
    let table = rig.device().rss.clone().expect("RSS").indirection;
    assert_eq!(table.iter().max(), Some(&6), "and the others are kept off it");
    rig.restore_to(&before);
}

#[test]
fn stopped_at_any_change_every_rule_of_ours_is_found_again_and_no_other_is_touched() {
    for driver_chooses in [false, true] {
        let mut made = 0;
        for allowed in 0..12 {
            let rig = Rig::ixgbe();
            rig.change_device(|state| state.rules.as_mut().expect("rules").driver_chooses = driver_chooses);
            others_add(&rig, vec![(0, Some(rule(None, 53, 1))), (1000, None)]);
            let before = rig.state();
            rig.allow_settings(Some(allowed));
            let _ = rig.apply(&crate::testing::rig::request());
            made += rules(&rig).len() - 2;
            rig.allow_settings(None);
            rig.restore_to(&before);
        }
        assert!(made > 12, "most were stopped after a rule: {made}");
    }
}

#[test]
fn adaptive_coalescing_is_put_back_with_the_numbers_behind_it() {
    let rig = Rig::new("mlx5");
    let before = rig.state();
    let changes = rig.apply(&Request { coalesce: Some(Duration::from_micros(50)), ..Request::default() });
    let changes = changes.expect("applied");
    assert_eq!(changes[0].command, "ethtool -C eth0 adaptive-rx off rx-usecs 50 rx-frames 128");
    assert_eq!(changes[0].from, "adaptive-rx on rx-usecs 8 rx-frames 128");
    rig.restore_to(&before);
}
