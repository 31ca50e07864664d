//! One sink as it will be built: its consumers, who feeds them, and the files that makes.

use std::collections::BTreeSet;

use crate::config::ListenerConfig;
use crate::config::feeders::Feeder;

/// One sink as it will be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkPlan {
    /// How many consumers it has; none where no listener names it.
    pub consumers: usize,
    /// They are no threads: it runs on the receivers of the lanes that feed it, and nothing waits for it.
    pub is_inline: bool,
    /// How many threads look up names for its consumers, wherever these run.
    pub lookup_threads: usize,
    /// The lanes that feed it, in order.
    pub feeders: Vec<Feeder>,
}

impl SinkPlan {
    /// How many threads its consumers have.
    pub fn threads(&self) -> usize {
        let own = if self.is_inline { 0 } else { self.consumers };
        own + self.lookup_threads
    }

    /// Every file that is written where its lanes and consumers fill in `path`, with the codes for the time still in
    /// it.
    pub fn files(&self, listeners: &[ListenerConfig], sink: &str, path: &str) -> BTreeSet<String> {
        self.feeders.iter().map(|lane| lane.file(listeners, sink, path)).collect()
    }
}
