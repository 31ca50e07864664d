//! What lies before a sink that is opened: it may never be used, and it may have to wait for another.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a sink that is opened has before it.
#[derive(Debug, Clone)]
pub struct OpenContext {
    /// Set when its pipeline receives. What was made for one that never does is removed again.
    pub is_in_force: Arc<AtomicBool>,
    /// A sink of before writes the same, and has ended when [`Sink::begin`](super::Sink::begin) is called. Until then
    /// this one finds out what would keep it from writing there, and changes nothing.
    pub has_predecessor: bool,
}

impl Default for OpenContext {
    /// For a sink that is used whatever comes, and that replaces no other.
    fn default() -> Self {
        Self { is_in_force: Arc::new(AtomicBool::new(true)), has_predecessor: false }
    }
}
