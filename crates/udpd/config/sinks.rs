//! `[sink.NAME]`, validated: what every sink has, whatever its type. The rest is its type's own.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::handover::channel::FullPolicy;
use crate::sink::{Settings, SinkSettings};

/// `[sink.NAME]`.
#[derive(Debug, Clone)]
pub struct Sink {
    /// Unique, `[A-Za-z0-9_.-]{1,64}`; of a relay to several destinations there is one for each, `NAME@ADDRESS:PORT`.
    pub name: String,
    /// What its type has of its own.
    pub settings: Settings,
    pub consumers: Consumers,
    /// Depth of each consumer's channel, in batches, 1 to 65,536.
    pub queue_batches: usize,
    /// What happens when that is full.
    pub when_full: FullPolicy,
}

impl Sink {
    /// A sink of which only the name and what its type needs are written.
    pub fn new(name: impl Into<String>, settings: impl SinkSettings) -> Self {
        Self {
            name: name.into(),
            settings: Arc::new(settings),
            consumers: Consumers::Count(NonZeroUsize::MIN),
            queue_batches: 256,
            when_full: FullPolicy::default(),
        }
    }
}

/// How many consumers a sink has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumers {
    /// This many; lane i feeds consumer i mod N.
    Count(NonZeroUsize),
    /// One for each lane that feeds the sink.
    PerLane,
}
