//! `[sink.NAME]`, validated: what every sink has, whatever its type. The rest is its type's own.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::handover::route::FullPolicy;
use crate::settings::kinds::{Count, Or, Words};
use crate::settings::settings;
use crate::sink::{AnySettings, SinkSettings};

/// `[sink.NAME]`.
#[derive(Debug, Clone)]
pub struct Sink {
    /// Unique, `[A-Za-z0-9_.-]{1,64}`; of a relay to several destinations there is one for each, `NAME@ADDRESS:PORT`.
    pub name: String,
    /// What its type has of its own.
    pub settings: AnySettings,
    pub consumers: Consumers,
    /// Depth of each consumer's channel, in batches, 1 to 65,536.
    pub queue_batches: usize,
    /// What happens when that is full.
    pub when_full: FullPolicy,
}

impl Sink {
    /// A sink of which only the name and what its type needs are written.
    pub fn new(name: impl Into<String>, settings: impl SinkSettings) -> Self {
        Self::with(name, Arc::new(settings), Common::default())
    }

    pub(crate) fn with(name: impl Into<String>, settings: AnySettings, common: Common) -> Self {
        let Common { consumers, queue_batches, when_full } = common;
        Self { name: name.into(), settings, consumers, queue_batches, when_full }
    }
}

settings! {
    /// The keys that every sink has.
    #[derive(Debug, Clone)]
    pub(crate) struct Common {
        /// How many consumer threads: so many, or one for each lane that feeds the sink.
        consumers: Consumers = 1,
            Or(&[("per_lane", Consumers::PerLane)], Count(1..=1024), count), elsewhere "threads workers";
        /// How many batches wait for each consumer.
        queue_batches: usize = 256, Count(1..=65_536), elsewhere "queue_size";
        /// What happens to a batch when they are that many.
        when_full: FullPolicy = "drop_newest", Words(POLICIES), elsewhere "overflow";
    }
}

fn count(count: usize) -> Consumers {
    Consumers::Count(NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN))
}

const POLICIES: &[(&str, FullPolicy)] =
    &[("drop_newest", FullPolicy::DropNewest), ("drop_oldest", FullPolicy::DropOldest), ("block", FullPolicy::Block)];

/// How many consumers a sink has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumers {
    /// This many; lane i feeds consumer i mod N.
    Count(NonZeroUsize),
    /// One for each lane that feeds the sink.
    PerLane,
}
