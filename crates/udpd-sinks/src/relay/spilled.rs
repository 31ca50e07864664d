//! The relay with a spill: which datagrams of a batch no destination has.
//!
//! UDP tells little of that, see `failover`. What the kernel does not take is left, and so is what it took in the same
//! round in which the network refused something: a port without a socket answers to what was sent before, and the
//! datagrams around that one are most likely gone as well. What a silent destination has lost cannot be known.

use std::time::Duration;

use super::failover::ANSWER_TIME;
use super::sink::RelaySink;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::sink::{ConsumerFeeders, Sink};
use udpd_spill::spilling::Attempt;

impl Attempt for RelaySink {
    fn begin(&mut self) {
        Sink::begin(self);
    }

    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let bound = self.scenes[batch.lane].address;
        // With a failover the next destination is there at once.
        for turn in 0..self.destinations.len() {
            let again = std::mem::take(left);
            if turn > 0 && again.is_empty() {
                break;
            }
            self.groups.review(&self.name, &mut self.destinations);
            let mut wanted = again.iter().peekable();
            for (place, datagram) in batch.datagrams.datagrams().enumerate() {
                if turn > 0 && wanted.next_if_eq(&&place).is_none() {
                    continue;
                }
                let chosen = &mut self.destinations[self.groups.choose(&datagram)];
                chosen.begin_datagram(place);
                chosen.push(batch.listener, bound, &datagram, tallies);
            }
            for destination in &mut self.destinations {
                destination.end_batch(batch.listener, tallies, left);
            }
            left.sort_unstable();
        }
    }

    fn answer_time(&self) -> Duration {
        ANSWER_TIME
    }

    fn has_refused(&mut self) -> bool {
        self.destinations.iter_mut().fold(false, |refused, destination| destination.take_refusal() | refused)
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        Sink::go_on_for(self, feeders);
    }
}
