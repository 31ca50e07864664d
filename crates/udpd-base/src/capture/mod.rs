//! Reading captures: the UDP datagrams in a pcapng or pcap file, whichever program wrote it.
//!
//! A capture comes from anywhere, so nothing in it is believed: lengths are bounded before memory is taken for them,
//! and what is not a whole UDP datagram is skipped and counted by its reason. Only damage to the frame of the file
//! itself, which leaves no way to find the next packet, is an error.

pub mod headers;
mod reader;
#[cfg(test)]
mod tests;

pub use reader::{Capture, Captured, Skipped};
