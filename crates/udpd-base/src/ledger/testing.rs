//! Ledgers for tests: an example, and one in which each counter has a number of its own.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::counter_list::{FileTally, ListenerDropped, SinkDropped, UpstreamTally};
use super::snapshot::{
    BeforeSnapshot, DestinationSnapshot, FilesSnapshot, LaneSnapshot, ListenerSnapshot, SinkSnapshot, StreamSnapshot,
    UpstreamSnapshot,
};
use super::*;

/// A table as it stands in the ledger; what is not there is 0.
pub fn table<T: CounterTable + DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("a table")
}

fn sink(name: &str, delivered: u64, queue_full: u64, sink_error: u64) -> SinkSnapshot {
    SinkSnapshot {
        name: name.into(),
        inline: false,
        offered: 1_233_551,
        counts: table(
            json!({ "delivered": delivered, "dropped": { "queue_full": queue_full, "sink_error": sink_error } }),
        ),
        in_flight: 1_233_551 - delivered - queue_full - sink_error,
        queue_depth: 3,
        queue_capacity: 256,
        residence: None,
        files: None,
        destinations: Vec::new(),
        peers: PeersSnapshot::default(),
        state: None,
        removed: false,
    }
}

/// A ledger with a number in every place, whose sums agree.
pub fn example() -> Snapshot {
    let lane = |lane, cpu, node, received, kernel_dropped, calls| LaneSnapshot {
        lane,
        address: "0.0.0.0:514".into(),
        cpu,
        node,
        queue: None,
        engine: "recvmmsg".into(),
        arrived: Some(received + kernel_dropped),
        kernel_dropped: Some(kernel_dropped),
        denied_in_kernel: None,
        wrong_cpu: None,
        planned_cpus: Vec::new(),
        arrived_on: None,
        arrived_by_queue: None,
        counts: LaneTally { received, calls, ..LaneTally::default() },
        receive_buffer_bytes: 8_388_608,
        receive_buffer_used_bytes: 1_280,
        xdp: None,
        senders: Vec::new(),
        removed: false,
    };
    let dropped = json!({ "truncated": 5, "denied": 4, "rate_limited": 3, "no_batch": 2, "unsplit": 1, "unread": 1 });
    let beside = LaneTally { bytes: 98_685_360, truncated: 5, dropped: table(dropped), ..LaneTally::default() };
    let lanes = vec![lane(0, Some(0), Some(0), 1_000_000, 1_000, 50_000), lane(1, Some(12), None, 233_567, 100, 0)];
    let listener = ListenerSnapshot {
        name: "syslog".into(),
        address: "0.0.0.0:514".into(),
        arrived: Some(1_234_667),
        kernel_dropped: Some(1_100),
        kernel_dropped_between: Some(0),
        kernel_dropped_unit: "datagrams".into(),
        gro: "off".into(),
        feed: None,
        counts: LaneTally::sum(lanes.iter().map(|lane| lane.counts).chain([beside])),
        wrong_cpu: None,
        upstream: None,
        shared_with: Some(Vec::new()),
        residual: Some(0),
        sinks: vec![sink("archive", 1_233_000, 400, 0), sink("relay", 1_200_000, 33_500, 51)],
        lanes,
        removed: false,
    };
    let before = BeforeSnapshot {
        pid: 4_711,
        ended: true,
        lost_datagrams_at_most: Some(0),
        lost_bytes_at_most: Some(0),
        in_flight: Some(0),
        kernel_dropped: Some(0),
        dropped: Some(0),
    };
    Snapshot {
        version: "0.1.0".into(),
        uptime_seconds: 12.5,
        before: Some(before),
        listeners: vec![listener],
        host: hostloss::HostReading::default(),
        log_lines_lost: 6,
        last_reload: None,
        draining_since: None,
        readiness: None,
        drain: None,
    }
}

/// Some datagrams that never came.
pub fn upstream() -> UpstreamSnapshot {
    UpstreamSnapshot {
        unit: "datagrams".into(),
        missing: Some(33),
        missing_at_least: 33,
        missing_at_most: 33,
        counts: UpstreamTally { streams: 2, late: 4, ..UpstreamTally::default() },
        unseen: 0,
        unnumbered: 7,
        worst: vec![stream()],
    }
}

/// The stream that lost most of these.
pub fn stream() -> StreamSnapshot {
    StreamSnapshot {
        source: std::net::Ipv4Addr::new(192, 0, 2, 1).into(),
        port: 2055,
        destination: Some(([192, 0, 2, 9], 9995).into()),
        domain: "256".into(),
        protocol: "netflow9".into(),
        unit: "datagrams".into(),
        arrived: 1_200,
        missing: Some(30),
        missing_at_least: 30,
        missing_at_most: 30,
        duplicate: 2,
        reordered: 0,
        late: 4,
        restarts: 1,
        since: 1_700_000_000,
        heard: 1_700_000_600,
        numbers: None,
        losing: true,
        silent: false,
    }
}

/// Two connections, one of which is down, and two kinds of refusals.
pub fn peers() -> PeersSnapshot {
    let connection = |peer: &str, state, on_the_way, error: Option<&str>| {
        let (error_at, error) = (error.map(|_| 1_795_243_000.0), error.map(str::to_owned));
        ConnectionSnapshot { peer: peer.to_owned(), state, since: 1_795_243_000.0, on_the_way, error, error_at }
    };
    let refusal = |reason: &str, datagrams| RefusalSnapshot { reason: reason.to_owned(), datagrams };
    PeersSnapshot {
        connections: vec![
            connection("10.0.0.7:8123", ConnectionState::Up, 7, None),
            connection("10.0.0.8:8123", ConnectionState::Down, 3000, Some("it answered 503")),
        ],
        refusals: vec![refusal("400", 12), refusal("code 27", 3)],
    }
}

/// Calls `visit` with the declarations of each table and with the places where its counters are in a ledger.
pub fn each_table(mut visit: impl FnMut(&'static [LedgerCounter], &[&str])) {
    visit(LaneTally::COUNTERS, &["/listeners/0", "/listeners/0/lanes/0"]);
    visit(ListenerDropped::COUNTERS, &["/listeners/0/dropped", "/listeners/0/lanes/0/dropped"]);
    visit(UpstreamTally::COUNTERS, &["/listeners/0/upstream"]);
    visit(SinkTally::COUNTERS, &["/listeners/0/sinks/0"]);
    visit(SinkDropped::COUNTERS, &["/listeners/0/sinks/0/dropped"]);
    visit(FileTally::COUNTERS, &["/listeners/0/sinks/0/files"]);
    visit(DestinationTally::COUNTERS, &["/listeners/0/sinks/0/destinations/0"]);
}

/// A ledger of one lane and one sink in which each counter has a number of its own, and these.
pub fn numbered() -> (Snapshot, Vec<(&'static LedgerCounter, u64)>) {
    let mut snapshot = example();
    let listener = &mut snapshot.listeners[0];
    listener.lanes.truncate(1);
    listener.sinks.truncate(1);
    listener.upstream = Some(upstream());
    listener.sinks[0].files = Some(FilesSnapshot::default());
    listener.sinks[0].peers = peers();
    listener.sinks[0].destinations =
        vec![DestinationSnapshot { address: "10.0.0.9:514".into(), counts: DestinationTally::default() }];
    let mut json = serde_json::to_value(snapshot).expect("JSON");
    let mut numbers = Vec::new();
    each_table(|counters, places| {
        for counter in counters {
            let number = 7_000_001 + numbers.len() as u64;
            numbers.push((counter, number));
            for place in places {
                let table = json.pointer_mut(place).and_then(Value::as_object_mut).expect(place);
                let before = table.insert(counter.name.to_owned(), number.into());
                assert!(before.is_some(), "the ledger has no {} at {place}", counter.name);
            }
        }
    });
    let snapshot: Snapshot = serde_json::from_value(json.clone()).expect("a ledger");
    assert_eq!(serde_json::to_value(&snapshot).expect("JSON"), json, "each counter has its key");
    (snapshot, numbers)
}
