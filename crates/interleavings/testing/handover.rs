//! The files of the hand-over, with `sync` from here. `within` opens to the tests what the hand-over keeps to itself.

#[path = "../../udpd-base/src/handover/batch.rs"]
pub mod batch;
#[path = "../../udpd-base/src/handover/channel.rs"]
pub mod channel;
#[path = "../../udpd-base/src/handover/pool.rs"]
pub mod pool;
#[path = "../../udpd-base/src/handover/route.rs"]
pub mod route;
mod sync;
pub mod within;
