//! Tests of reading back what was set.

use super::*;
use crate::host::{WHILE_PAUSED, while_pausing};
use crate::testing::Machine;

fn interrupt() -> Setting {
    Setting::Interrupt { number: 29, name: "virtio0-input.2".to_owned() }
}

#[test]
fn an_interrupt_that_shows_its_old_cores_for_a_moment_is_read_again_until_it_has_moved() {
    let machine = Machine::named("virtio-multi");
    machine.write("proc/irq/29/smp_affinity_list", "0");
    let path = machine.proc().join("irq/29/smp_affinity_list");
    while_pausing(move |pauses| {
        if pauses == 2 {
            fs::write(&path, "2-3\n").expect("a file");
        }
    });
    let now = machine.with_reader(&[], |reader| reader.settled("eth0", &interrupt(), "2,3"));
    assert_eq!(now.expect("readable"), "2-3");
    assert_eq!(WHILE_PAUSED.take().0, 3, "and no longer than it takes");
}

#[test]
fn one_that_never_moves_is_told_as_it_is_after_a_bounded_number_of_looks() {
    let machine = Machine::named("virtio-multi");
    machine.write("proc/irq/29/smp_affinity_list", "0");
    let now = machine.with_reader(&[], |reader| reader.settled("eth0", &interrupt(), "2"));
    assert_eq!(now.expect("readable"), "0");
    assert_eq!(WHILE_PAUSED.take().0, READS - 1);
}

#[test]
fn lists_and_masks_that_mean_the_same_are_the_same() {
    assert!(is_same(&interrupt(), "0-2", "0,1,2") && !is_same(&interrupt(), "0-2", "0,1"));
    assert!(is_same(&Setting::Rps(0), "00000000,00000003", "3") && !is_same(&Setting::Rps(0), "1", "3"));
    assert!(!is_same(&Setting::Rings, "0,1", "0-1"), "only cores are lists");
}

#[test]
fn what_a_driver_adapts_is_the_same_whatever_it_is_at_the_moment() {
    let is = |one: &str, other: &str| is_same(&Setting::Coalescing, one, other);
    assert!(is("adaptive-rx on rx-usecs 13 rx-frames 0", "adaptive-rx on rx-usecs 50 rx-frames 4"));
    assert!(!is("adaptive-rx off rx-usecs 13 rx-frames 0", "adaptive-rx off rx-usecs 50 rx-frames 0"));
    assert!(!is("adaptive-rx on rx-usecs 13 rx-frames 0", "adaptive-rx off rx-usecs 13 rx-frames 0"));
}

#[test]
fn a_refused_mask_needs_a_right_and_a_refused_interrupt_is_the_kernels_own() {
    let refused = |setting: &Setting, code: i32| {
        write_error(setting, std::path::Path::new("/f"), "1", &io::Error::from_raw_os_error(code))
    };
    for setting in [Setting::Rps(0), Setting::Xps(0), Setting::Threaded] {
        let error = refused(&setting, libc::EPERM);
        assert!(
            matches!(&error, SettingError::Permission(text) if text.ends_with("it needs CAP_NET_ADMIN")),
            "{error}"
        );
        assert!(!refused(&setting, libc::EIO).to_string().contains("the kernel manages"));
    }
    for code in [libc::EPERM, libc::EIO] {
        let error = refused(&interrupt(), code);
        assert!(matches!(&error, SettingError::Failed(text) if text.contains("the kernel manages")), "{error}");
    }
}

#[test]
fn a_hash_of_which_a_part_has_no_letter_is_unknown_and_never_written_down_without_it() {
    let letters = FlowHash::from_letters("sdfnel").expect("letters");
    assert_eq!(letters.0, 0x3f0);
    assert_eq!(letters.letters(), "sdfnel");
    let machine = Machine::named("two-socket-smt-ixgbe");
    machine.change_device(|state| state.hash_v4 = Some(FlowHash(0x430)));
    let error =
        machine.with_reader(&[], |reader| reader.get("eth0", &Setting::FlowHash(Family::V4))).expect_err("a new bit");
    assert!(error.to_string().contains("the bits 0x400 are not known"), "{error}");
    let host = machine.read(&["eth0"]).expect("a host");
    assert!(matches!(host.interfaces[0].flow_hash_v4, crate::model::Known::Unknown(_)));
}

#[test]
fn every_setting_is_read_back_by_the_name_that_it_shows() {
    let rule = |family, destination| Setting::Rule { family, destination, port: 514 };
    let settings = [
        Setting::Channels,
        Setting::Rings,
        Setting::Coalescing,
        Setting::Ntuple,
        rule(Family::V4, None),
        rule(Family::V4, Some(IpAddr::from([192, 0, 2, 1]))),
        rule(Family::V6, None),
        rule(Family::V6, Some(IpAddr::from([7; 16]))),
        Setting::Indirection,
        Setting::HashKey,
        Setting::FlowHash(Family::V4),
        Setting::FlowHash(Family::V6),
        Setting::Interrupt { number: 38, name: "eth0-TxRx-0 (old)".to_owned() },
        Setting::Rps(3),
        Setting::Xps(4),
        Setting::Threaded,
    ];
    for setting in &settings {
        assert_eq!(Setting::parse(&setting.to_string()).as_ref(), Some(setting));
    }
    assert!(settings.is_sorted(), "the order in which they are applied");
    for wrong in ["", "rule", "rule udp4 any", "rule udp4 ::1 514", "rule udp6 any 70000", "coalescing 1", "rps x"] {
        assert_eq!(Setting::parse(wrong), None, "{wrong:?}");
    }
}
