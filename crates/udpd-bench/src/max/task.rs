//! What a search for the highest rate is asked to do, as the command line says it.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::search::Bounds;
use crate::cable::Cable;
use crate::sizes::Sizes;

/// How to search.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Task {
    pub(super) bounds: Bounds,
    pub(super) duration: Duration,
    /// How much may be lost, in percent.
    pub(super) loss_percent: f64,
    pub(super) sizes: Sizes,
    pub(super) flows: usize,
    pub(super) gso: Option<NonZeroUsize>,
    pub(super) threads: usize,
    /// The sender's cores; `None`: those that no lane has.
    pub(super) cpus: Option<Vec<usize>>,
    /// What is measured on; none: loopback.
    pub(super) cable: Option<Cable>,
}
