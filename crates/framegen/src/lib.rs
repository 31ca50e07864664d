//! Frames of millions of flows, made and sent from one core: UDP datagrams with all their headers, for tests of
//! receivers.
//!
//! [`LiveFrames`] makes them in the kernel, by an XDP program that is assembled for the task: which flow, which
//! sequence in it, how long, from which address and port, with which checksum. They need no socket and no route: a
//! frame is what [`FrameSpec`] says.
//!
//! [`PacketFrames`] makes the same frames in user space, for kernels and interfaces without live frames.
//!
//! Everything is counted: how many frames were made, how many of them the driver of the interface took, and why it
//! refused the others.
//!
//! ```no_run
//! use udpd_framegen::{FrameSpec, LiveFrames, Mix, PayloadMarks, SizeOrder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = FrameSpec {
//!     destination_mac: [2, 0, 0, 0, 0, 2],
//!     source_mac: [2, 0, 0, 0, 0, 1],
//!     destination: "10.8.0.1:5140".parse()?,
//!     first_source: "198.18.0.0".parse()?,
//!     sources: 1 << 17,
//!     flows: 1_000_000,
//!     mix: Mix::Uniform,
//!     sizes: vec![64],
//!     size_order: SizeOrder::InTurn,
//!     checksum: true,
//!     marks: PayloadMarks { magic: [0xb5, 2], run: 7, factors: [3, 5, 7, 11], flow_bits: 24 },
//!     body: vec![0; 64],
//!     seed: 1,
//! };
//! let mut frames = LiveFrames::new(3, &spec)?;
//! let sent = frames.send(100_000)?;
//! assert_eq!(sent.taken + frames.refusals()?.iter().map(|(_, count)| count).sum::<u64>(), sent.offered);
//! # Ok(())
//! # }
//! ```
//!
//! # The files
//!
//! From the top down; imports run downwards and never back. There is no `unsafe`.
//!
//! - `packet_socket`: [`PacketFrames`], from user space (`AF_PACKET`, `PACKET_QDISC_BYPASS`)
//! - `live`: [`LiveFrames`], from the kernel (`BPF_F_TEST_XDP_LIVE_FRAMES`); the program stays attached, so that runs
//!   are short (`unshare`)
//! - `driver_verdicts`: the programs that count what the driver takes (`xdp_devmap_xmit`, `xdp_redirect_err`)
//! - `program`: the program that makes a frame
//! - `state`: what the programs remember
//! - `frame_template`: frames as bytes, and their sums, pure
//! - `draw`, `spec`: chance, pure; what the frames are
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("udpd-framegen is written against the system calls of Linux and builds for no other system");

mod draw;
mod driver_verdicts;
mod frame_template;
mod live;
mod packet_socket;
mod program;
mod spec;
mod state;

pub use live::{LiveError, LiveFrames, LiveSent, LiveStep};
pub use packet_socket::PacketFrames;
pub use spec::{FLOWS_MAX, FRAME_BYTES_MAX, FrameSpec, Mix, NUMBERED_BYTES, PayloadMarks, SizeOrder, TIMED_BYTES};
