//! Whether what comes to a lane has come before, word for word: counted on a sample, for a listener that relays. Where
//! the host behind the relay sends back what it gets, the same datagrams go round for ever and nothing else is seen.
//!
//! A table of hashes remembers some hundred payloads. Short ones are left out: many senders say "ping".

use std::hash::{BuildHasher as _, Hasher as _};

use super::keyed::Keyed;

/// How many hashes are remembered, each at a place of its own.
const PLACES: usize = 1024;

/// What is shorter says too little.
const PAYLOAD_BYTES_MIN: usize = 16;

/// So much of a payload is looked at.
const LOOKED_AT_BYTES: usize = 256;

/// What has been seen in the sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Echoes {
    pub datagrams: u64,
    /// Those of them that had come before.
    pub repeated: u64,
}

/// What counts them.
#[derive(Debug)]
pub(super) struct EchoesSeen {
    hasher: Keyed,
    hashes: Box<[u64]>,
    seen: Echoes,
}

impl EchoesSeen {
    pub(super) fn new() -> Self {
        Self { hasher: Keyed::new(), hashes: vec![0; PLACES].into(), seen: Echoes::default() }
    }

    pub(super) fn count(&mut self, payload: &[u8]) {
        if payload.len() < PAYLOAD_BYTES_MIN {
            return;
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write_usize(payload.len());
        hasher.write(&payload[..payload.len().min(LOOKED_AT_BYTES)]);
        let hash = hasher.finish();
        let place = &mut self.hashes[hash as usize % PLACES];
        self.seen.datagrams += 1;
        self.seen.repeated += u64::from(*place == hash);
        *place = hash;
    }

    pub(super) fn read(&self) -> Echoes {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(payloads: impl Iterator<Item = String>) -> Echoes {
        let mut seen = EchoesSeen::new();
        payloads.for_each(|payload| seen.count(payload.as_bytes()));
        seen.read()
    }

    #[test]
    fn what_goes_round_has_come_before_and_what_is_new_has_not() {
        let round = seen((0..5_000).map(|number| format!("datagram number {}", number % 50)));
        assert!(round.datagrams == 5_000 && round.repeated > 4_000, "{round:?}");
        let new = seen((0..5_000).map(|number| format!("datagram number {number}")));
        assert_eq!((new.datagrams, new.repeated), (5_000, 0));
    }

    #[test]
    fn short_ones_say_nothing() {
        assert_eq!(seen((0..100).map(|_| "ping".to_owned())), Echoes::default());
    }
}
