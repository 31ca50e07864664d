//! The sums that must hold in every ledger, checked on the JSON that a script would see.
//!
//! Each message names the listener, the sum and both sides, because a ledger that does not close is the worst thing
//! this program can do and the first thing to be asked is by how much.

use serde_json::Value;

/// Checks that the ledger closes over `sent` datagrams: nothing missing, nothing double, nothing under way.
///
/// With several listeners `sent` is what was sent to all of them together.
#[track_caller]
pub(crate) fn assert_closed(ledger: &Value, sent: u64) {
    let listeners = list(ledger, "listeners");
    assert!(!listeners.is_empty(), "a ledger without a listener closes over nothing: {ledger:#}");
    let arrived: u64 = listeners.iter().map(|listener| count(listener, "arrived")).sum();
    assert_eq!(arrived, sent, "arrived (left) and sent (right) differ: {ledger:#}");
    for listener in listeners {
        assert_listener_closed(listener);
    }
}

#[track_caller]
fn assert_listener_closed(listener: &Value) {
    let received = count(listener, "received");
    let arrived = count(listener, "arrived");
    assert_eq!(
        arrived,
        received + count(listener, "kernel_dropped"),
        "arrived = received + kernel_dropped: {listener:#}"
    );
    assert_eq!(listener["residual"].as_i64(), Some(0), "residual: {listener:#}");
    let dropped = sum(&listener["dropped"]);
    let sinks = list(listener, "sinks");
    assert!(!sinks.is_empty(), "a listener feeds at least one sink: {listener:#}");
    for sink in sinks {
        let offered = count(sink, "offered");
        let in_flight = count(sink, "in_flight");
        let settled = count(sink, "delivered") + sum(&sink["dropped"]) + count(sink, "spilled");
        let offered_or_found = offered + count(sink, "spilled_before");
        assert_eq!(received, offered + dropped, "received = offered + dropped: {listener:#}");
        assert_eq!(
            offered_or_found,
            settled + in_flight,
            "offered + spilled_before = delivered + dropped + spilled + in_flight: {listener:#}"
        );
        assert_eq!(in_flight, 0, "nothing is under way once all is done: {listener:#}");
    }
    let lanes = list(listener, "lanes");
    for key in ["arrived", "received", "kernel_dropped"] {
        let of_lanes: u64 = lanes.iter().map(|lane| count(lane, key)).sum();
        assert_eq!(of_lanes, count(listener, key), "the lanes' {key} add up to the listener's: {listener:#}");
    }
}

/// The first listener.
pub(crate) fn listener(ledger: &Value) -> &Value {
    &ledger["listeners"][0]
}

/// The sinks of the first listener.
#[track_caller]
pub(crate) fn sinks(ledger: &Value) -> &[Value] {
    list(listener(ledger), "sinks")
}

/// The first sink of the first listener.
pub(crate) fn sink(ledger: &Value) -> &Value {
    &listener(ledger)["sinks"][0]
}

/// The listener of this name.
#[track_caller]
pub(crate) fn listener_named<'a>(ledger: &'a Value, name: &str) -> &'a Value {
    named(list(ledger, "listeners"), name)
}

/// The sink of this name of the first listener.
#[track_caller]
pub(crate) fn sink_named<'a>(ledger: &'a Value, name: &str) -> &'a Value {
    named(sinks(ledger), name)
}

/// The one of this name that a reload has not removed, or else the one that it has.
#[track_caller]
pub(crate) fn named<'a>(list: &'a [Value], name: &str) -> &'a Value {
    let own = || list.iter().filter(|one| one["name"] == name);
    own().find(|one| one["removed"] != true).or(own().next()).unwrap_or_else(|| panic!("no {name} in {list:#?}"))
}

/// The lanes of the first listener.
#[track_caller]
pub(crate) fn lanes(ledger: &Value) -> &[Value] {
    list(listener(ledger), "lanes")
}

/// What the first listener has received.
#[track_caller]
pub(crate) fn received(ledger: &Value) -> u64 {
    count(listener(ledger), "received")
}

/// What has come to the sockets of the first listener.
#[track_caller]
pub(crate) fn arrived(ledger: &Value) -> u64 {
    count(listener(ledger), "arrived")
}

/// What the first sink of the first listener has delivered.
#[track_caller]
pub(crate) fn delivered(ledger: &Value) -> u64 {
    count(sink(ledger), "delivered")
}

/// What a listener or a sink has dropped for this reason.
#[track_caller]
pub(crate) fn dropped(of: &Value, reason: &str) -> u64 {
    count(&of["dropped"], reason)
}

/// The number under `key`; a missing one is a failure, never a zero.
#[track_caller]
pub(crate) fn count(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or_else(|| panic!("no count `{key}` in {object:#}"))
}

/// The array under `key`.
#[track_caller]
pub(crate) fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object[key].as_array().unwrap_or_else(|| panic!("no list `{key}` in {object:#}"))
}

/// The sum of an object of counts by reason.
#[track_caller]
pub(crate) fn sum(reasons: &Value) -> u64 {
    let reasons = reasons.as_object().unwrap_or_else(|| panic!("not an object of reasons: {reasons:#}"));
    reasons.iter().map(|(name, value)| value.as_u64().unwrap_or_else(|| panic!("`{name}` is no count: {value}"))).sum()
}
