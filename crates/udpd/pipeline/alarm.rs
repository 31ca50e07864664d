//! Says that a thread of the pipeline has panicked. A daemon with a dead receiver or consumer must not look healthy: the
//! main thread hears of it, closes the books and ends, and the service manager starts a new one.

use std::thread;

use crossbeam_channel::Sender;

use super::Event;

/// Held by a thread for as long as it lives.
#[derive(Debug)]
pub(super) struct Alarm {
    events: Sender<Event>,
}

impl Alarm {
    /// For the calling thread.
    pub(super) fn new(events: Sender<Event>) -> Self {
        Self { events }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let name = thread::current().name().unwrap_or("without a name").to_owned();
            let _ = self.events.send(Event::ThreadPanicked(name));
        }
    }
}
