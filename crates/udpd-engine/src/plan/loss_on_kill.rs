//! The most datagrams that a process of this plan can hold: received, and not yet at the destination of a sink. A
//! process that is killed loses no more than that, and the next one can say so.
//!
//! The capacity is counted, not its use, because nothing can be counted at the moment of a kill. So it is an upper
//! bound.

use serde::{Deserialize, Serialize};

use mmsg::{BatchShape, MAX_SEGMENTS, PackedBatch};

use super::lane::LanePlan;
use super::{PipelinePlan, SinkPlan, sink_bytes};
use crate::config::{Config, SinkConfig};

/// The shortest record of a datagram: the end of a line that is empty otherwise.
const RECORD_BYTES_MIN: usize = 1;

/// An upper bound of what a process holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub datagrams: u64,
    /// Memory for datagrams and for records of them, which is more than their payload.
    pub bytes: u64,
}

impl PipelinePlan {
    /// The most that it can hold in batches, in blocks and in sinks.
    pub fn held_at_most(&self, config: &Config) -> Held {
        let in_batches: usize = self.lanes.iter().map(|lane| lane.batches() * datagrams_of(&lane.shape)).sum();
        // As if all that waits were the shortest datagrams that any lane can pack.
        let shortest = self.lanes.iter().map(shortest_packed).min();
        let blocks = self.pool.blocks_bytes() / self.pool.block_bytes.max(1);
        let in_blocks = shortest.map_or(0, |bytes| blocks * (self.pool.block_bytes / bytes));
        let memory = self.memory();
        let datagrams = in_batches + in_blocks + self.in_sinks(config);
        Held { datagrams: datagrams as u64, bytes: (memory.pool_bytes() + memory.sink_bytes) as u64 }
    }

    /// The most datagrams in all sinks: the number that a sink states, or else its memory in shortest records.
    fn in_sinks(&self, config: &Config) -> usize {
        let of_sink = |(sink, plan): (&SinkConfig, &SinkPlan)| {
            let by_bytes = || sink_bytes(&config.listeners, sink, plan) / RECORD_BYTES_MIN;
            sink.settings.datagrams_max(plan.consumers).unwrap_or_else(by_bytes)
        };
        config.sinks.iter().zip(&self.sinks).map(of_sink).sum()
    }
}

/// How many datagrams a batch of this shape brings at most.
fn datagrams_of(shape: &BatchShape) -> usize {
    if shape.control.gro { shape.slots * MAX_SEGMENTS } else { shape.slots }
}

/// What a datagram without payload takes in a block, with the control messages that come with every one.
fn shortest_packed(lane: &LanePlan) -> usize {
    // Trains are split before they are packed, and a count of drops comes now and then.
    // A queue brings IPv4 as it is, also where the listener's address is one of IPv6.
    PackedBatch::bytes_expected(&lane.shape.control, lane.address.is_ipv6() && lane.has_socket(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineKind;
    use crate::plan::testing::plan_of;

    /// What a plan with these keys of its listener and of its sink can hold.
    fn held(listener: &str, sink: &str, kind: EngineKind) -> (PipelinePlan, Held) {
        let text = format!(
            "[daemon]\npool_bytes = \"8MiB\"\n[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:5140\"\nsinks = \
             [\"s\"]\nbatch_size = 32\nmax_length = \"512B\"\n{listener}\n[sink.s]\n{sink}\n"
        );
        let (config, plan) = plan_of(&text, kind);
        let held = plan.held_at_most(&config);
        (plan, held)
    }

    #[test]
    fn what_can_be_held_is_the_room_in_batches_and_in_blocks() {
        let (plan, held) = held("", "type = \"null\"", EngineKind::Recvmmsg);
        let blocks = plan.pool.blocks_bytes() / plan.pool.block_bytes;
        // 12 before each, 16 of the source, to 8.
        let expected = plan.lanes[0].batches * 32 + blocks * (plan.pool.block_bytes / 32);
        assert_eq!(held.datagrams, expected as u64);
        assert_eq!(held.bytes, plan.memory().pool_bytes() as u64);
        assert!(blocks > 2, "{plan:?}");
    }

    #[test]
    fn trains_rings_and_sinks_hold_more() {
        let alone = held("", "type = \"null\"", EngineKind::Recvmmsg).1;
        let (plan, ring) = held("", "type = \"null\"", EngineKind::IoUring);
        assert!(plan.lanes[0].batches() > plan.lanes[0].batches, "what the ring has is among them");
        assert!(ring.bytes <= 8 << 20 && alone.bytes <= 8 << 20, "pool_bytes is all of it");
        let (plan, trains) = held("gro = \"on\"", "type = \"null\"", EngineKind::Recvmmsg);
        let (slots, batches) = (plan.lanes[0].shape.slots, plan.lanes[0].batches);
        assert!(trains.datagrams >= (slots * batches * MAX_SEGMENTS) as u64);
        let (plan, file) = held("", "type = \"stdout\"", EngineKind::Recvmmsg);
        assert!(plan.sink_bytes > 0 && file.datagrams >= plan.sink_bytes as u64, "each byte may be a record");
        let relay = held("", "type = \"udp\"\ndestinations = [\"127.0.0.1:9\"]", EngineKind::Recvmmsg).1;
        assert!(relay.datagrams < file.datagrams, "a relay has so many places");
    }
}
