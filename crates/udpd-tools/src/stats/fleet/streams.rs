//! The streams of a fleet: an exporter whose datagrams came to one member and then to another sends one stream, and
//! what is missing of it is what no member has.
//!
//! Each member publishes from which number to which a stream has come to it, and how many of these came. The numbers of
//! one stream go from the lowest of all members to the highest, and what none of them received is missing: on the way,
//! at a socket of a member, or at a member that is gone. That is exact as long as the exporter has not begun anew, each
//! datagram came to one member only, and less than half of all numbers are between the members. Where it is not known
//! it is said why.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use udpd_base::ledger::snapshot::{NumberSpan, StreamSnapshot};

/// All streams of a listener that count the same, over all members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct StreamSums {
    pub(super) unit: String,
    pub(super) streams: u64,
    /// How many of them came to several members.
    pub(super) moved: u64,
    /// By the numbers of the exporters.
    pub(super) sent: Option<u64>,
    /// What members received of that, each number once.
    pub(super) received: Option<u64>,
    pub(super) missing: Option<u64>,
    /// Why that is not known.
    pub(super) unknown: Vec<String>,
}

impl StreamSums {
    pub(super) fn forget(&mut self) {
        (self.sent, self.received, self.missing) = (None, None, None);
    }
}

/// What tells a stream from others, at whichever member it comes in.
type StreamKey = (String, u16, Option<u16>, String, String);

fn key(stream: &StreamSnapshot) -> StreamKey {
    let StreamSnapshot { source, port, destination, domain, protocol, .. } = stream;
    (source.to_string(), *port, destination.map(|to| to.port()), domain.clone(), protocol.clone())
}

/// The streams of this listener.
pub(super) fn sums(ledgers: &[&Value], listener: &str) -> Vec<StreamSums> {
    let mut unknown: Vec<String> = Vec::new();
    let mut found: BTreeMap<StreamKey, Vec<(usize, StreamSnapshot)>> = BTreeMap::new();
    let mut is_followed = false;
    for (member, ledger) in ledgers.iter().enumerate() {
        let named = |part: &&Value, key: &str| part[key] == listener;
        let own = ledger["listeners"].as_array().into_iter().flatten().find(|own| named(own, "name"));
        let Some(upstream) = own.map(|own| &own["upstream"]).filter(|upstream| upstream.is_object()) else { continue };
        is_followed = true;
        if upstream["forgotten"] != 0 {
            unknown.push("a member has forgotten streams".to_owned());
        }
        let all = ledger["streams"].as_array().into_iter().flatten().find(|all| named(all, "listener"));
        match all.map(|all| Vec::<StreamSnapshot>::deserialize(&all["streams"])) {
            Some(Ok(streams)) => {
                streams.into_iter().for_each(|one| found.entry(key(&one)).or_default().push((member, one)))
            }
            Some(Err(error)) => unknown.push(format!("a member names streams in another way: {error}")),
            None => unknown.push("a member does not name its streams".to_owned()),
        }
    }
    let mut sums: BTreeMap<String, StreamSums> = BTreeMap::new();
    for parts in found.into_values() {
        let unit = parts[0].1.unit.clone();
        let known = || StreamSums { sent: Some(0), received: Some(0), missing: Some(0), ..StreamSums::default() };
        let sum = sums.entry(unit.clone()).or_insert_with(|| StreamSums { unit, ..known() });
        sum.streams += 1;
        sum.moved += u64::from(parts.len() > 1);
        match merged(&parts) {
            Ok((sent, received)) => {
                let add = |sum: &mut Option<u64>, count| *sum = sum.map(|sum| sum + count);
                add(&mut sum.sent, sent);
                add(&mut sum.received, received);
                add(&mut sum.missing, sent - received);
            }
            Err(why) => {
                sum.forget();
                sum.unknown.push(format!("{} port {}: {why}", parts[0].1.source, parts[0].1.port));
            }
        }
    }
    if sums.is_empty() && is_followed {
        sums.insert(String::new(), StreamSums::default());
    }
    let with_unknown = |mut sum: StreamSums| {
        if !unknown.is_empty() {
            sum.forget();
            sum.unknown.splice(0..0, unknown.iter().cloned());
        }
        sum
    };
    sums.into_values().map(with_unknown).collect()
}

/// How many numbers an exporter has used for what came of this stream, and how many of them came.
fn merged(parts: &[(usize, StreamSnapshot)]) -> Result<(u64, u64), &'static str> {
    let received: u64 = parts.iter().map(|(_, part)| part.arrived.saturating_sub(part.duplicate)).sum();
    let spans: Option<Vec<NumberSpan>> =
        parts.iter().map(|(_, part)| part.numbers.filter(|_| part.restarts == 0)).collect();
    let Some(spans) = spans else {
        let [(_, only)] = parts else {
            return Err("it began anew, or its numbers are not published, and it has moved");
        };
        let missing = only.missing.ok_or("its member knows only bounds")?;
        return Ok((received + missing, received));
    };
    let mut members: Vec<usize> = parts.iter().map(|(member, _)| *member).collect();
    members.dedup();
    if members.len() < parts.len() {
        return Err("a member has two streams of it");
    }
    let unused = 64 - spans[0].bits.clamp(1, 64);
    let half = 1_i128 << (63 - unused);
    // By the shorter way round from the first member's.
    let place = |number: u64| i128::from((number.wrapping_sub(spans[0].first) << unused).cast_signed() >> unused);
    let begin = spans.iter().map(|span| place(span.first)).min().unwrap_or(0);
    let end = spans.iter().map(|span| place(span.first) + i128::from(span.next.wrapping_sub(span.first))).max();
    let sent = end.unwrap_or(0) - begin;
    if parts.len() > 1 && sent >= half {
        return Err("its numbers may have gone round between members");
    }
    let sent = u64::try_from(sent).map_err(|_| "its numbers contradict each other")?;
    if sent < received {
        return Err("more came than was sent: some came to several members");
    }
    Ok((sent, received))
}
