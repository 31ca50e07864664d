//! Tests of reading back what was set.

use super::*;
use crate::patience::MEANWHILE;
use crate::testing::Machine;

fn with_reader<T>(machine: &Machine, body: impl FnOnce(Reader<'_>) -> T) -> T {
    let (sys_root, proc_root) = (&machine.sys(), &machine.proc());
    body(Reader { sys_root, proc_root, ethtool: &machine.ethtool, netdev: &machine.netdev, busy_polls: &[] })
}

fn interrupt() -> Setting {
    Setting::Interrupt { number: 29, name: "virtio0-input.2".to_owned() }
}

#[test]
fn an_interrupt_that_shows_its_old_cores_for_a_moment_is_read_again_until_it_has_moved() {
    let machine = Machine::named("virtio-multi");
    let path = machine.proc().join("irq/29/smp_affinity_list");
    fs::write(&path, "0\n").expect("a file");
    MEANWHILE.set((
        0,
        Some(Box::new(move |pauses| {
            if pauses == 2 {
                fs::write(&path, "2-3\n").expect("a file")
            }
        })),
    ));
    let now = with_reader(&machine, |reader| reader.settled("eth0", &interrupt(), "2,3"));
    assert_eq!(now.expect("readable"), "2-3");
    assert_eq!(MEANWHILE.take().0, 3, "and no longer than it takes");
}

#[test]
fn one_that_never_moves_is_told_as_it_is_after_a_bounded_number_of_looks() {
    let machine = Machine::named("virtio-multi");
    fs::write(machine.proc().join("irq/29/smp_affinity_list"), "0\n").expect("a file");
    let now = with_reader(&machine, |reader| reader.settled("eth0", &interrupt(), "2"));
    assert_eq!(now.expect("readable"), "0");
    assert_eq!(MEANWHILE.take().0, LOOKS - 1);
}

#[test]
fn lists_and_masks_that_mean_the_same_are_the_same() {
    assert!(is_same(&interrupt(), "0-2", "0,1,2") && !is_same(&interrupt(), "0-2", "0,1"));
    assert!(is_same(&Setting::Rps(0), "00000000,00000003", "3") && !is_same(&Setting::Rps(0), "1", "3"));
    assert!(!is_same(&Setting::Rings, "0,1", "0-1"), "only cores are lists");
}
