//! Readings of which each sum is known.

use super::*;
use udpd_base::ledger::ResidenceTally;
use udpd_base::ledger::testing::example;

/// The example at a time, after so many more datagrams on lane 1.
fn reading(uptime_seconds: f64, more: u64) -> Snapshot {
    let mut snapshot = example();
    snapshot.uptime_seconds = uptime_seconds;
    let listener = &mut snapshot.listeners[0];
    let lane = &mut listener.lanes[1];
    lane.counts.received += 10 * more;
    lane.counts.calls += more;
    lane.counts.dropped.denied += more;
    lane.kernel_dropped = lane.kernel_dropped.map(|dropped| dropped + 2 * more);
    listener.sinks[0].counts.delivered += 8 * more;
    listener.sinks[0].counts.dropped.queue_full += more;
    snapshot
}

fn model(readings: impl IntoIterator<Item = Snapshot>) -> Model {
    let mut model = Model::default();
    readings.into_iter().for_each(|reading| model.read(reading, Instant::now()));
    model
}

#[test]
fn rates_are_by_the_clock_of_the_daemon_and_by_lane_and_sink() {
    let model = model([reading(10.0, 0), reading(12.0, 50)]);
    let lane = &model.lanes[1];
    let rates = [lane.received, lane.calls, lane.refused, lane.socket_lost].map(|flow| flow.rate);
    assert_eq!(rates, [Some(250.0), Some(25.0), Some(25.0), Some(50.0)]);
    assert_eq!(lane.lost().rate, Some(75.0));
    let sink = &model.listeners[0].sinks[0];
    assert_eq!((sink.delivered.rate, sink.lost.rate), (Some(200.0), Some(25.0)));
    assert_eq!(model.lanes[0].received.rate, Some(0.0));
    assert_eq!((model.received.rate, model.layers.socket.total), (Some(250.0), Some(1_200)));
}

#[test]
fn one_reading_has_sums_and_no_rates() {
    let model = model([reading(10.0, 0)]);
    assert_eq!((model.received.rate, model.received.total), (None, Some(1_233_567)));
    assert_eq!(model.restarts, 0);
    assert!(!model.layers.socket.is_partial);
    let mut unknown = reading(10.0, 0);
    unknown.listeners[0].lanes[1].kernel_dropped = None;
    let socket = self::model([unknown]).layers.socket;
    assert!(socket.total.is_some() && socket.is_partial, "a sum of what is known is at least that: {socket:?}");
}

#[test]
fn a_restart_is_told_and_no_rate_is_ever_negative() {
    let mut before = model([reading(100.0, 50), reading(101.0, 100)]);
    before.read(reading(2.0, 0), Instant::now());
    assert_eq!((before.restarts, before.received.rate), (1, None));
    before.read(reading(3.0, 1), Instant::now());
    assert_eq!((before.restarts, before.received.rate), (1, Some(10.0)));
    // The same daemon with a lane made anew: its count went back.
    let mut later = reading(4.0, 5);
    later.listeners[0].lanes[1].counts.received = 3;
    before.read(later, Instant::now());
    assert_eq!((before.lanes[1].received.rate, before.received.is_partial), (None, true));
}

#[test]
fn a_daemon_that_began_while_nobody_looked_is_another_one_however_long_it_has_run() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut model = Model::default();
    model.read(reading(100.0, 50), start);
    model.read(reading(103.0, 50), after(8));
    assert_eq!(model.restarts, 0, "an answer may be slow");
    model.read(reading(2_000.0, 60), after(7_200));
    assert_eq!((model.restarts, model.received.rate), (1, None));
}

#[test]
fn what_nobody_knows_is_not_zero() {
    let mut unknown = [reading(10.0, 0), reading(11.0, 0)];
    for reading in &mut unknown {
        reading.listeners[0].lanes[0].kernel_dropped = None;
    }
    let model = model(unknown);
    assert_eq!(model.lanes[0].socket_lost, RateAndTotal::default());
    assert_eq!(model.lanes[1].socket_lost.rate, Some(0.0));
    let at_least = RateAndTotal { rate: Some(0.0), total: Some(100), is_partial: true };
    assert_eq!(model.layers.socket, at_least, "a sum of which a part is not known is at least the rest");
    assert_eq!(sum([RateAndTotal::default(), RateAndTotal::default()].into_iter()), RateAndTotal::default());
}

#[test]
fn a_history_follows_its_lane_and_has_a_gap_where_nothing_was_read() {
    let mut model = model([reading(10.0, 0), reading(11.0, 1)]);
    model.miss();
    let mut later = reading(12.0, 3);
    later.listeners[0].lanes.remove(0);
    model.read(later, Instant::now());
    assert_eq!(model.lanes.len(), 1);
    let received: Vec<_> = model.histories(0).expect("lane 1").received.last(10).collect();
    assert_eq!(received, [None, Some(10.0), None, Some(20.0)]);
    for second in 13..1_000 {
        model.read(reading(f64::from(second), 3), Instant::now());
    }
    assert_eq!(model.whole.received.last(usize::MAX).len(), HISTORY);
}

#[test]
fn residence_is_that_of_the_last_interval() {
    let mut tally = ResidenceTally::default();
    let mut readings = Vec::new();
    for (second, micros) in [(10_u32, 900), (11, 90)] {
        tally.observe(std::time::Duration::from_micros(micros), 1_000);
        let mut reading = reading(f64::from(second), 0);
        reading.listeners[0].sinks[0].residence = tally.read();
        readings.push(reading);
    }
    let quiet = Snapshot { uptime_seconds: 12.0, ..readings[1].clone() };
    let p99 = |model: &Model| model.listeners[0].sinks[0].residence.as_ref().and_then(|found| found.p99_seconds);
    let mut model = model(readings);
    assert_eq!(p99(&model), Some(1e-4));
    model.read(quiet, Instant::now());
    assert_eq!(p99(&model), Some(1e-3), "without a new sample that of the whole run");
}

#[test]
fn what_cards_and_cores_lost_is_known_where_somebody_tells_it() {
    let with_host = |uptime, at_nic, at_cores: [Option<u64>; 2]| {
        let mut snapshot = reading(uptime, 0);
        let loss = |count| {
            serde_json::json!({ "layer": "nic", "counter": "rx_missed_errors", "place": "eth0",
            "count": count, "unit": "packets" })
        };
        let cores = at_cores.map(|dropped| serde_json::json!({ "dropped": dropped }));
        let host = serde_json::json!({ "nic": { "eth0": {} }, "softnet": { "0": cores[0], "1": cores[1] },
            "lost": { "lost": [loss(at_nic), loss(5)] } });
        snapshot.host = serde_json::from_value(host).expect("a reading");
        snapshot
    };
    let flow = |rate, total| RateAndTotal { rate: Some(rate), total: Some(total), is_partial: false };
    let both = model([with_host(10.0, 100, [Some(1), Some(2)]), with_host(12.0, 300, [Some(1), Some(8)])]);
    assert_eq!((both.layers.nic, both.layers.softnet), (flow(100.0, 305), flow(3.0, 9)));
    let one = model([with_host(10.0, 100, [Some(1), None]), with_host(12.0, 300, [Some(1), None])]);
    assert_eq!(one.layers.softnet, RateAndTotal::default());
    let mut silent = reading(10.0, 0);
    silent.host = HostReading::default();
    assert_eq!(
        model([silent]).layers.nic,
        RateAndTotal::default(),
        "no card is known, which is not that none lost anything"
    );
}
