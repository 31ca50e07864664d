//! Relays in a circle. udpd refuses to send to itself, but cannot see what the host behind a relay does. Where that one
//! relays back, a handful of datagrams fills the way between the two, and no counter calls that a loss. So udpd says it
//! when nearly all that a listener receives came before word for word, and most of it comes from an address to which
//! the same listener relays.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use udpd_base::ledger::Echoes;

/// So many datagrams of the sample decide.
const SAMPLE: u64 = 200;

/// What a listener that relays has received.
#[derive(Debug)]
pub struct Relayed<'a> {
    pub listener: &'a str,
    /// Where it relays to, by sink.
    pub destinations: Vec<(&'a str, SocketAddr)>,
    pub echoes: Echoes,
}

/// What was seen of each listener by now.
#[derive(Debug, Default)]
pub struct LoopWatch {
    /// When the sample that decides next began; `None` where it was said already.
    seen: BTreeMap<String, Option<Echoes>>,
}

impl LoopWatch {
    /// The line that is due for a listener, once: to be called once a second. `busiest` says who sends more than half
    /// of what it receives, if there is one.
    pub fn look(&mut self, relayed: &Relayed<'_>, busiest: impl FnOnce() -> Option<IpAddr>) -> Option<String> {
        let begun = self.seen.entry(relayed.listener.to_owned()).or_insert(Some(Echoes::default()));
        let before = begun.as_mut()?;
        if relayed.echoes.datagrams < before.datagrams {
            // Its lanes were made anew.
            *before = Echoes::default();
        }
        let datagrams = relayed.echoes.datagrams - before.datagrams;
        if datagrams < SAMPLE {
            return None;
        }
        let repeated = relayed.echoes.repeated - before.repeated;
        *before = relayed.echoes;
        let busiest = (repeated * 4 >= datagrams * 3).then(busiest)??;
        let is_busiest = |(_, destination): &&(&str, SocketAddr)| destination.ip().to_canonical() == busiest;
        let (sink, destination) = relayed.destinations.iter().find(is_busiest)?;
        *begun = None;
        Some(format!(
            "listener {}: {repeated} of {datagrams} datagrams of a sample came before, word for word, most of them \
             from {busiest}, and sink {sink} relays to {destination}: if that host relays back, each datagram goes \
             round for ever; take one of the two relays out, or write deny = [\"{busiest}\"] where nothing else \
             comes from there; logged once",
            relayed.listener
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(watch: &mut LoopWatch, datagrams: u64, repeated: u64, busiest: &str) -> Option<String> {
        let destinations = vec![("relay", "192.0.2.7:514".parse().expect("an address"))];
        let relayed = Relayed { listener: "in", destinations, echoes: Echoes { datagrams, repeated } };
        watch.look(&relayed, || busiest.parse().ok())
    }

    #[test]
    fn a_circle_is_said_once_with_the_host_that_relays_back_and_the_sink() {
        let mut watch = LoopWatch::default();
        assert_eq!(look(&mut watch, 199, 199, "192.0.2.7"), None, "too few");
        let line = look(&mut watch, 400, 390, "192.0.2.7").expect("a circle");
        assert!(line.contains("390 of 400") && line.contains("sink relay relays to 192.0.2.7:514"), "{line}");
        assert_eq!(look(&mut watch, 4_000, 3_900, "192.0.2.7"), None, "said already");
    }

    #[test]
    fn other_senders_and_what_is_new_are_no_circle() {
        let mut watch = LoopWatch::default();
        assert_eq!(look(&mut watch, 400, 400, "192.0.2.8"), None, "nothing is relayed there");
        assert_eq!(look(&mut watch, 800, 401, "192.0.2.7"), None, "what is new");
        // Lanes that were made anew begin at nothing.
        assert_eq!(look(&mut watch, 100, 100, "192.0.2.7"), None);
        assert!(look(&mut watch, 300, 300, "192.0.2.7").is_some());
    }
}
