//! The sink that counts and forgets: what everything else costs is measured against it.

use super::contract::{Sink, deliver};
use super::settings::{Opened, Opening, SinkSettings, Target};
use crate::exit::Failure;
use crate::handover::pool::LaneBatch;
use crate::ledger::Tally;

/// Takes everything, keeps nothing, and has no settings.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullSink;

impl SinkSettings for NullSink {
    fn target(&self) -> Target<'_> {
        Target::Nowhere
    }

    fn open(&self, _: Opening<'_>) -> Result<Opened, Failure> {
        Ok(Opened::new(*self))
    }
}

impl Sink for NullSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]) {
        deliver(&mut tallies[batch.listener], batch.datagrams.summary().datagrams);
    }
}
