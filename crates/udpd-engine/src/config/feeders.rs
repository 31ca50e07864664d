//! How many lanes a listener gets, which consumer of a sink each lane feeds, and which file that consumer writes.
//!
//! The plan, the check for two writers of one file, the daemon and the bench all take these answers from here, so they
//! cannot differ.

use super::listener::{Lanes, ListenerConfig};
use super::sinks::ConsumerCount;
use super::steer::SteerConfig;
use udpd_file::template;
use udpd_file::template::PathNames;

/// What one lane is taken to receive, in datagrams per second, when nothing else says how many lanes are needed.
const LANE_RATE: u64 = 500_000;

/// The most lanes that a rate alone asks for.
const LANES_FOR_RATE_MAX: u64 = 256;

/// The lanes of all listeners, by address and number; their order is the order of the lanes in the plan.
#[derive(Debug)]
pub struct LaneFeeds<'c> {
    listeners: &'c [ListenerConfig],
    /// By listener: how many each of its addresses gets.
    lanes_on_address: Vec<usize>,
    /// By listener: how many more there are, each for a receive queue that AF_XDP takes past the kernel's stack.
    lanes_past_the_stack: Vec<usize>,
}

/// One lane that feeds a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feeder {
    pub lane: usize,
    /// Index of its listener.
    pub listener: usize,
    pub number: usize,
    pub consumer: usize,
}

impl<'c> LaneFeeds<'c> {
    /// `receive_queues` is the number that an interface has, where it is known, and `cores` the number that udpd may
    /// use. More receivers than cores would only take turns, so with more queues than cores each lane takes several. A
    /// listener with dedicated receive queues has a lane for each, and the other listeners have none for those.
    pub fn new(
        listeners: &'c [ListenerConfig],
        steer: &SteerConfig,
        receive_queues: impl Fn(&str) -> Option<usize>,
        cores: Option<usize>,
    ) -> Self {
        let count = |listener: &ListenerConfig| {
            let needed = || listener.absorb.rate.div_ceil(LANE_RATE).clamp(1, LANES_FOR_RATE_MAX) as usize;
            let one_each = |queues: usize| cores.filter(|&cores| cores > 0).map_or(queues, |cores| queues.min(cores));
            let shared = |interface: &str| {
                // As many as it will have once it is steered: steering must not change the number of lanes.
                let asked = steer.queues_asked(interface).or_else(|| receive_queues(interface));
                asked.map(|queues| queues.saturating_sub(steer.dedicated_on(interface)).max(1))
            };
            match (listener.lanes, &listener.interface) {
                // Its sockets receive only what the program at the interface lets pass.
                _ if listener.is_past_the_stack() => 1,
                (Lanes::Count(count), _) => count.get(),
                (Lanes::Auto, _) if steer.dedicated_to(listener).is_some() => steer.own_queues(listener),
                (Lanes::Auto, Some(interface)) => shared(interface).map_or_else(needed, one_each),
                (Lanes::Auto, None) => needed(),
            }
        };
        // Each queue needs an engine of its own, however many cores there are.
        let past_the_stack = |listener: &ListenerConfig| match &listener.interface {
            Some(interface) if listener.is_past_the_stack() => receive_queues(interface).unwrap_or(1).max(1),
            _ => 0,
        };
        Self {
            listeners,
            lanes_on_address: listeners.iter().map(count).collect(),
            lanes_past_the_stack: listeners.iter().map(past_the_stack).collect(),
        }
    }

    pub fn listeners(&self) -> &'c [ListenerConfig] {
        self.listeners
    }

    /// How many lanes each address of a listener gets.
    pub fn lanes_on_address(&self, listener: usize) -> usize {
        self.lanes_on_address[listener]
    }

    /// How many lanes a listener gets.
    pub fn lanes(&self, listener: usize) -> usize {
        let on_addresses = self.lanes_on_address[listener].saturating_mul(self.listeners[listener].addresses.len());
        on_addresses.saturating_add(self.lanes_past_the_stack[listener])
    }

    /// How many of these take a receive queue past the kernel's stack. They come after those of its addresses.
    pub fn lanes_past_the_stack(&self, listener: usize) -> usize {
        self.lanes_past_the_stack[listener]
    }

    /// The listeners that feed a sink, by index.
    pub fn listeners_of(&self, sink: usize) -> impl Iterator<Item = usize> {
        (0..self.listeners.len()).filter(move |&listener| self.listeners[listener].sinks.contains(&sink))
    }

    /// How many consumers a sink has: never more than lanes that feed it.
    pub fn consumers(&self, sink: usize, asked: ConsumerCount) -> usize {
        let lanes = self.listeners_of(sink).map(|listener| self.lanes(listener)).sum();
        match asked {
            ConsumerCount::Count(count) => count.get().min(lanes),
            ConsumerCount::PerLane => lanes,
        }
    }

    /// The lanes that feed a sink, in their order: lane i feeds consumer i mod N.
    pub fn of_sink(&self, sink: usize, asked: ConsumerCount) -> impl Iterator<Item = Feeder> {
        let consumers = self.consumers(sink, asked).max(1);
        let mut next = 0;
        let lanes_of = move |listener| {
            let first = next;
            next += self.lanes(listener);
            let lanes = if self.listeners[listener].sinks.contains(&sink) { next - first } else { 0 };
            (0..lanes).map(move |number| (first + number, listener, number))
        };
        let feeding = (0..self.listeners.len()).flat_map(lanes_of).enumerate();
        feeding.map(move |(place, (lane, listener, number))| Feeder {
            lane,
            listener,
            number,
            consumer: place % consumers,
        })
    }
}

impl Feeder {
    /// The file that gets what this lane receives, with the codes for the time still in its name.
    pub fn file(&self, listeners: &[ListenerConfig], sink: &str, path: &str) -> String {
        let listener = &listeners[self.listener].name;
        template::expand(path, &PathNames { listener, lane: self.number, consumer: self.consumer, sink })
    }
}
