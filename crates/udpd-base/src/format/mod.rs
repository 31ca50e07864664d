//! A datagram as bytes: the formats that sinks write, and where a record of each ends.

pub mod boundary;
pub mod encoder;
pub mod jsonl;
pub mod lines;
pub mod pcapng;
pub mod prefix;
pub mod record;

pub use encoder::Format;
