//! Tests of the verdict, on unpacked machines.

use std::fs;

use super::*;
use crate::host::Reader;
use crate::irqbalance::Irqbalance;
use crate::plan::Request;
use crate::presence::Presence;
use crate::testing::Machine;

fn compare(machine: &Machine, request: &Request, rivals: &Rivals) -> Comparison {
    let (sys, proc) = (machine.sys(), machine.proc());
    let reader = Reader {
        sys_root: &sys,
        proc_root: &proc,
        ethtool: &machine.ethtool,
        netdev: &machine.netdev,
        busy_polls: &[],
    };
    let allowed = crate::Topology::read(&sys).expect("a topology").online;
    let steering = Steering { reader, allowed: &allowed, request };
    let (host, plan) = steering.plan(&["eth0".to_owned()]).expect("a plan");
    steering.compare(&host, &plan, rivals)
}

fn drift(machine: &Machine, rivals: &Rivals) -> Vec<Drift> {
    let comparison = compare(machine, &Request::default(), rivals);
    assert_eq!(comparison.unknown, [], "every setting is readable");
    comparison.drifts
}

#[test]
fn a_moved_interrupt_is_told_with_its_queue_what_was_found_and_what_is_wanted() {
    let machine = Machine::named("virtio-multi");
    assert_eq!(drift(&machine, &Rivals::default()), []);
    fs::write(machine.proc().join("irq/29/smp_affinity_list"), "0\n").expect("a file");
    let irqbalance = Presence::Runs(Irqbalance::new(77));
    let found = drift(&machine, &Rivals { irqbalance, ..Rivals::default() });
    let [drift] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(drift.queue, Some(2));
    let text = drift.to_string();
    assert!(
        text.starts_with("eth0: queue 2: interrupt 29 virtio0-input.2 is 0, wanted 2; irqbalance runs (process 77)"),
        "{text}"
    );
}
