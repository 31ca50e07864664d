//! Which destination gets what a source sends, with `distribute = "by_source"`: see [`mmsg::shares`]. The name of a
//! destination there is its address as the configuration and the ledger have it.

use mmsg::shares::Shares;

use udpd_base::settings::kinds::WholeNumber;
use udpd_base::settings::{Field, Findings, TomlTable, ValueKind, WrittenKeys};
use udpd_base::text::address::{PeerAddress, parse_peer};

/// Destinations that get more than one share.
pub(crate) type PeerWeights = Vec<(PeerAddress, u32)>;

/// Each unit costs as much time for each datagram as a destination does.
const WEIGHT_MAX: u64 = 16;

/// A table of destinations and how many shares each gets.
#[derive(Debug)]
pub(crate) struct Weights;

impl ValueKind<PeerWeights> for Weights {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<PeerWeights> {
        let table = TomlTable::open(field, findings, "a table of destinations")?;
        let mut weights = PeerWeights::new();
        for (name, field) in table.fields() {
            let peer = findings.accept(parse_peer(&name.value), &name.place);
            let weight = WholeNumber(1..=WEIGHT_MAX).read(&field, findings);
            let (Some(peer), Some(weight)) = (peer, weight) else { continue };
            if weights.iter().any(|(other, _)| *other == peer) {
                findings.say(&name.place, format!("{peer} is named twice"), "name it once");
            } else {
                weights.push((peer, weight));
            }
        }
        Some(weights)
    }

    fn bounds(&self) -> String {
        format!("for each destination 1 to {WEIGHT_MAX}")
    }
}

/// Weights are of destinations that there are, and of use only where sources are shared out.
pub(crate) fn check(
    weights: &[(PeerAddress, u32)],
    are_shared: bool,
    peers: &[&PeerAddress],
    written: &WrittenKeys<'_>,
    findings: &mut Findings<'_>,
) {
    let Some(place) = written.place("weights").filter(|_| !weights.is_empty()) else { return };
    if !are_shared {
        findings.say(&place, "there are no shares", "write distribute = \"by_source\", or remove it");
    }
    for (peer, _) in weights.iter().filter(|(peer, _)| !peers.contains(&peer)) {
        findings.say(&place, format!("{peer} is no destination of this sink"), "name one of its destinations");
    }
}

/// The shares of these destinations, known by their places.
pub(crate) fn shares<'a>(peers: impl IntoIterator<Item = &'a PeerAddress>, weights: &[(PeerAddress, u32)]) -> Shares {
    let weight_of = |peer| weights.iter().find(|(other, _)| other == peer).map_or(1, |(_, weight)| *weight);
    let named: Vec<_> = peers.into_iter().map(|peer| (peer.to_string(), weight_of(peer))).collect();
    Shares::new(named.iter().map(|(name, weight)| (name.as_str(), *weight)))
}
