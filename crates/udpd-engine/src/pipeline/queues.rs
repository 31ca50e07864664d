//! How the receive queues fare that go past the kernel's stack, for the main thread that looks after them, and what it
//! can do where an interface came back: the program is put there again. The engines are made anew with the lanes, by an
//! heir of the pipeline, because an interface that came back may have other queues than before.

use std::ops::Add;

use super::running::{Lane, Pipeline};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::{QueueState, Trains};
use udpd_sandbox::products::Product;
use udpd_sandbox::warden;

/// The queues of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queues {
    pub listener: String,
    pub interface: String,
    /// The number of the interface that the program stands at.
    pub stands_at: Option<u32>,
    /// The number of the one that the sockets beside it are bound to.
    pub bound_to: Option<u32>,
    /// How many have a lane.
    pub lanes: usize,
    /// How many of these have an engine.
    pub running: usize,
}

impl Pipeline {
    /// The trains that the lanes of a listener have seen in their samples.
    pub fn trains_of(&self, listener: usize) -> Trains {
        self.lanes_of(listener).map(|lane| lane.ledger.trains()).fold(Trains::default(), Trains::add)
    }

    /// Those of every listener that has some.
    pub fn queues(&self) -> Vec<Queues> {
        let listeners = self.config.listeners.iter().enumerate().filter(|(_, listener)| listener.is_past_the_stack());
        let queues = listeners.map(|(index, listener)| {
            let of_queues = || self.lanes_of(index).filter(|lane| !lane.setup.plan.has_socket());
            let runs = |lane: &&Lane| lane.ledger.queue().is_some_and(|queue| queue.is_running);
            Queues {
                listener: listener.name.clone(),
                interface: listener.interface.clone().unwrap_or_default(),
                stands_at: self.bypasses.stands_at(&listener.name),
                bound_to: self.lanes_of(index).find_map(Lane::bound_interface),
                lanes: of_queues().count(),
                running: of_queues().filter(runs).count(),
            }
        });
        queues.collect()
    }

    /// Puts the program of a listener at its interface again, and finds out whether its queues can have sockets: all
    /// that may be refused for want of a right, before anybody is disturbed for it.
    pub fn attach_again(&self, listener: &str) -> Result<(), Failure> {
        self.bypasses.attach_again(listener)?;
        let refused = |error| Failure::new(ExitCode::Permission, format!("listener {listener}: {error}"));
        warden::have_made(Product::QueueSocket, &[]).map(drop).map_err(refused)
    }

    /// Writes down why the queues of a listener have no engine.
    pub fn note_queues(&self, listener: &str, state: QueueState) {
        let own = self.lanes.iter().filter(|lane| lane.setup.listener.name == listener);
        own.for_each(|lane| lane.ledger.note_queue_state(state));
    }
}
