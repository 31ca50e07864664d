//! What is said, when, and how often.

use super::*;
use hostloss::HostReading;
use udpd_base::ledger::LaneTally;

fn reading(kernel_dropped: u64) -> Snapshot {
    Snapshot {
        version: String::new(),
        uptime_seconds: 0.0,
        before: None,
        host: HostReading::default(),
        log_lines_lost: 0,
        last_reload: None,
        draining_since: None,
        readiness: None,
        drain: None,
        listeners: vec![ListenerSnapshot {
            name: "syslog".into(),
            address: String::new(),
            arrived: Some(kernel_dropped),
            kernel_dropped: Some(kernel_dropped),
            kernel_dropped_between: None,
            kernel_dropped_unit: String::new(),
            gro: String::new(),
            feed: None,
            counts: LaneTally::default(),
            wrong_cpu: None,
            upstream: None,
            shared_with: None,
            residual: Some(0),
            sinks: vec![],
            lanes: vec![],
            removed: false,
        }],
    }
}

#[test]
fn a_loss_is_said_once_with_its_layer_and_its_cure() {
    let mut watch = LossWatch::default();
    assert!(watch.compare(reading(0)).is_empty(), "nothing lost, nothing said");
    let lines = watch.compare(reading(744));
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("listener syslog: the kernel dropped 744") && lines[0].contains("absorb"), "{lines:?}");
    assert!(watch.compare(reading(744)).is_empty(), "what was said is not said again");
}

#[test]
fn what_a_receive_queue_lost_is_said_with_its_own_cure() {
    let with = |dropped: u64, of_queue: u64| {
        let mut now = reading(dropped);
        let mut lane = udpd_base::ledger::testing::example().listeners[0].lanes[0].clone();
        (lane.kernel_dropped, lane.xdp) = (Some(of_queue), Some(udpd_base::ledger::XdpSnapshot::default()));
        now.listeners[0].lanes = vec![lane];
        now
    };
    let mut watch = LossWatch::default();
    assert!(watch.compare(with(0, 0)).is_empty());
    let [queue, socket] = watch.compare(with(50, 40)).try_into().expect("two lines");
    assert!(queue.contains("dropped 40 datagrams") && queue.contains("(receive queue)"), "{queue}");
    assert!(socket.contains("dropped 10") && socket.contains("(socket)"), "{socket}");
    assert_eq!(watch.compare(with(90, 80)).len(), 1);
}

#[test]
fn every_reason_for_a_drop_is_said_by_its_name_but_for_the_quiet_ones() {
    let (snapshot, numbers) = udpd_base::ledger::testing::numbered();
    let lines = LossWatch::default().compare(snapshot);
    for (counter, number) in numbers.iter().filter(|(counter, _)| !counter.layer.is_empty()) {
        let words = format!("dropped {number} datagrams since the last report ({})", counter.name);
        let said = lines.iter().filter(|line| line.contains(&words)).count();
        assert_eq!(said, usize::from(!counter.is_quiet), "{counter:?}: {lines:?}");
    }
}
