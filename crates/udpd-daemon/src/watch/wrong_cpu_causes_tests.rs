//! Each cause with its words and its cure.

use steer::model::{Interface, Interrupt, Kind, Queue, Source};
use steer::{Irqbalance, Topology};

use super::*;

/// A host with one queue, which is processed like this.
fn host(work: Known<Work>) -> Host {
    let interrupt = Interrupt {
        number: 28,
        name: "virtio0-input.0".to_owned(),
        requested: vec![0],
        effective: vec![0],
        is_settable: true,
        source: Source::DriverName,
    };
    let queue = Queue { index: 0, interrupt: Known::Is(interrupt), napi: None, rps_cores: Vec::new(), work };
    let interface = Interface {
        name: "eth0".to_owned(),
        index: 2,
        kind: Kind::Physical,
        members: Vec::new(),
        is_up: true,
        driver: Known::NotSupported,
        node: None,
        queues: vec![queue],
        channels: Known::NotSupported,
        rings: Known::NotSupported,
        rss: Known::NotSupported,
        flow_hash_v4: Known::NotSupported,
        flow_hash_v6: Known::NotSupported,
        coalescing: Known::NotSupported,
        sorting: Known::NotSupported,
        send_queues: Vec::new(),
    };
    Host { topology: Topology::flat(&[0, 1, 2, 3]), interfaces: vec![interface] }
}

fn work(by: WorkBy, cores: &[usize]) -> Known<Work> {
    Known::Is(Work { by, cores: cores.to_vec() })
}

fn why(work: Known<Work>, rivals: &Rivals) -> String {
    let Why { fact, cure } = Why::of(&host(work), 0, &[2], rivals, false);
    format!("{fact}; {cure}")
}

#[test]
fn an_interrupt_that_fires_elsewhere_is_blamed_on_who_moves_it_here() {
    let fires = || work(WorkBy::Interrupt, &[0]);
    let runs = Rivals { irqbalance: Presence::Runs(Irqbalance::new(77)), ..Rivals::default() };
    assert_eq!(
        why(fires(), &runs),
        "interrupt 28 virtio0-input.0 fires on 0; irqbalance runs (process 77) and moves interrupts; irqbalance = \
         \"ban\" in [steer] makes it leave these alone; `udpd steer apply eth0` sets it again"
    );
    let other = why(fires(), &Rivals::default());
    assert!(other.contains("irqbalance does not run") && other.contains("another program wrote smp_affinity_list"));
    let unknown = Rivals { irqbalance: Presence::Unknown("/proc is hidden".to_owned()), ..Rivals::default() };
    assert!(why(fires(), &unknown).contains("whether irqbalance runs is unknown: /proc is hidden"));
}

#[test]
fn what_no_interrupt_can_overrule_is_named_with_what_switches_it_off() {
    let rps = why(work(WorkBy::Rps, &[0, 1]), &Rivals::default());
    assert!(rps.contains("RPS") && rps.contains("0-1") && rps.contains("echo 0 > /sys/class/net/eth0/queues/rx-0/rps"));
    let thread = why(work(WorkBy::Thread(99), &[0]), &Rivals::default());
    assert!(thread.contains("thread 99") && thread.contains("`echo 0 > /sys/class/net/eth0/threaded`"), "{thread}");
    assert!(!rps.contains("irqbalance") && !thread.contains("irqbalance"));
}

#[test]
fn a_core_that_is_off_comes_before_everything_else() {
    let off = Why::of(&host(work(WorkBy::Interrupt, &[0])), 0, &[7], &Rivals::default(), false);
    assert_eq!(off.fact, "core 7 is off");
    assert!(off.cure.contains("cpu7/online"), "{off:?}");
}

#[test]
fn what_is_right_by_now_and_what_nobody_can_say_has_no_cure() {
    let right = Why::of(&host(work(WorkBy::Interrupt, &[2])), 0, &[2], &Rivals::default(), false);
    assert_eq!(right, Why::new("interrupt 28 virtio0-input.0 fires on 2 by now, as planned", ""));
    let unknown = Why::of(&host(Known::Unknown("no name".to_owned())), 0, &[2], &Rivals::default(), false);
    assert_eq!(unknown, Why::new("no name", ""));
    let gone = Why::of(&host(Known::NotSupported), 5, &[2], &Rivals::default(), false);
    assert_eq!(gone.fact, "there is no such queue any more");
}
