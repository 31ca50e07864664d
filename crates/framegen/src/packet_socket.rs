//! The same frames from user space, by a packet socket: slower by an order of magnitude, and for every kernel and
//! interface.
//!
//! `sendmmsg` on a socket that passes by the queueing discipline tells of every frame whether the driver took it, so
//! the count is as exact as that of the live frames. A ring of the kernel (`PACKET_TX_RING`) would save a copy of a few
//! cache lines and tell less: it marks frames as done, not as sent.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{io, thread};

use mmsg::{SendBatch, Socket};

use crate::frame_template::{FrameTime, FrameWriter};
use crate::live::LiveSent;
use crate::spec::FrameSpec;

/// Frames that go in one call.
const FRAMES_A_CALL: usize = 64;

/// How long to wait when the driver has no room, and how often before it counts as refused.
const ROOM_REST: Duration = Duration::from_micros(50);
const ROOM_TRIES: u32 = 200;

/// A generator of frames in user space, with the counts of [`LiveFrames`](super::LiveFrames).
#[derive(Debug)]
pub struct PacketFrames {
    socket: Socket,
    writer: FrameWriter,
    frame: Vec<u8>,
    payload_at: usize,
    batch: SendBatch,
    realtime_offset_ns: i64,
    refusals: BTreeMap<i32, u64>,
}

impl PacketFrames {
    /// Makes everything, and sends nothing yet. Frames leave by the interface of this index. Needs `CAP_NET_RAW`.
    pub fn new(interface: u32, spec: &FrameSpec) -> io::Result<Self> {
        let writer = FrameWriter::new(spec)?;
        let socket = Socket::of_frames(interface)?;
        let frame = writer.buffer();
        let batch = SendBatch::new(FRAMES_A_CALL, frame.len())?;
        let payload_at = spec.header_bytes();
        Ok(Self { socket, writer, frame, payload_at, batch, realtime_offset_ns: 0, refusals: BTreeMap::new() })
    }

    /// From now on frames say that CLOCK_REALTIME is so far ahead of CLOCK_MONOTONIC.
    pub fn set_clock_offset(&mut self, realtime_offset_ns: i64) {
        self.realtime_offset_ns = realtime_offset_ns;
    }

    /// Makes and sends `count` frames, which say that they were sent at `monotonic_ns`.
    pub fn send(&mut self, count: u32, monotonic_ns: u64) -> LiveSent {
        let time = FrameTime { monotonic_ns, realtime_offset_ns: self.realtime_offset_ns };
        let mut sent = LiveSent::default();
        let mut left = count as usize;
        while left > 0 && sent.error.is_none() {
            let frames = left.min(FRAMES_A_CALL);
            for _ in 0..frames {
                let length = self.writer.write(&mut self.frame, time);
                sent.bytes += (length - self.payload_at) as u64;
                // There is a slot for each, as long as the longest.
                let _ = self.batch.push(&self.frame[..length], None);
            }
            sent.offered += frames as u64;
            left -= frames;
            self.flush(&mut sent);
        }
        sent
    }

    fn flush(&mut self, sent: &mut LiveSent) {
        let mut tries = 0;
        loop {
            let outcome = self.batch.flush(&self.socket);
            for failure in self.batch.failures() {
                *self.refusals.entry(failure.errno).or_default() += failure.datagrams as u64;
            }
            let error = match outcome {
                Ok(report) => {
                    sent.taken += report.datagrams as u64;
                    return;
                }
                Err(refusal) => {
                    sent.taken += refusal.report.datagrams as u64;
                    tries = if refusal.report.datagrams > 0 { 0 } else { tries + 1 };
                    refusal.error
                }
            };
            let errno = error.raw_os_error().unwrap_or(0);
            let has_no_room = matches!(errno, libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM);
            if has_no_room && tries < ROOM_TRIES {
                thread::sleep(ROOM_REST);
                continue;
            }
            *self.refusals.entry(errno).or_default() += self.batch.len() as u64;
            self.batch.clear();
            sent.error = (!has_no_room).then_some(error);
            return;
        }
    }

    /// What was refused since the beginning, by the number of the error.
    pub fn refusals(&self) -> Vec<(i32, u64)> {
        self.refusals.iter().map(|(errno, count)| (*errno, *count)).collect()
    }
}
