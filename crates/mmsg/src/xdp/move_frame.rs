//! One frame into one slot of a batch, as `recvmmsg` would have left a datagram there.
//!
//! A short payload is copied into the slot's own block, and the frame's block is free again. A longer one stays in
//! place: the slot points at the frame's block from then on, and its own becomes free in exchange. Either way the
//! sender and the control messages are written beside the payload, where `datagram.rs` looks for them; in the second
//! case over the headers of the frame, which have been read by then.
#![allow(unsafe_code)]
// The lengths in a header have other types in other C libraries; which of them need a cast depends on that.
#![allow(clippy::unnecessary_cast)]

use std::ptr;
use std::slice;

use libc::mmsghdr;

use crate::region::Layout;

use super::frame::{ChecksumState, FrameError, UdpFrame};
use super::options::{Checksums, Tally};
use super::sender_cmsg::{self, BatchFacts};
use super::umem::{FramePlace, Umem};

/// Moves datagrams from frames into slots.
#[derive(Debug)]
pub(super) struct FrameMover {
    pub(super) umem: Umem,
    pub(super) layout: Layout,
    /// Payloads of up to so many bytes are copied; at most the size of a slot.
    pub(super) copy_up_to: usize,
    pub(super) checksums: Checksums,
    /// Whether a chunk may lie across two pages.
    pub(super) any_page: bool,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// The block that is free now.
    pub(super) block: *mut u8,
    /// Whether the slot is filled. Otherwise the frame was no datagram, and the slot is unchanged.
    pub(super) is_taken: bool,
}

impl FrameMover {
    /// Puts the datagram of a frame under a header.
    ///
    /// # Safety
    /// The header is armed, of our layout and arena, and nothing else reads it or what it points at. The place is of
    /// our memory, its block is the caller's alone, holds the frame, and is not the one that the header points at.
    pub(super) unsafe fn move_frame(
        &self,
        header: *mut mmsghdr,
        place: &FramePlace,
        facts: &BatchFacts,
        tally: &mut Tally,
    ) -> Moved {
        tally.frames += 1;
        // SAFETY: the frame lies within its block (see `Umem::place`), which is ours alone and was zeroed memory before
        // the kernel wrote to it. The slice ends here.
        let udp = unsafe { UdpFrame::read(slice::from_raw_parts(place.frame, place.bytes), self.checksums) };
        let udp = match udp {
            Ok(udp) => udp,
            Err(error) => {
                tally.note(error);
                return Moved { block: place.block, is_taken: false };
            }
        };
        tally.left_to_device += u64::from(udp.checksum_state == ChecksumState::LeftToDevice);
        let length = udp.payload.len();
        let name = sender_cmsg::sender(&udp, facts.interface);
        // SAFETY: the header is ours, by the caller, and armed: its parts are those of its own block. The payload lies
        // within the frame. Two blocks of one arena do not overlap.
        unsafe {
            let inner = &raw mut (*header).msg_hdr;
            let own = Layout::block_of(header);
            let arrived = place.frame.add(udp.payload.start);
            let is_copied = length <= self.copy_up_to || !(self.any_page || self.umem.is_on_one_page(own));
            let (payload, free) = if is_copied {
                let payload = (*(*inner).msg_iov).iov_base.cast::<u8>();
                ptr::copy_nonoverlapping(arrived, payload, length.min(self.layout.slot_bytes));
                (payload, place.block)
            } else {
                self.layout.point_into(header, place.block, arrived);
                (arrived, own)
            };
            (*header).msg_len = length as u32;
            let name = name.as_bytes();
            ptr::copy_nonoverlapping(name.as_ptr(), (*inner).msg_name.cast::<u8>(), name.len());
            (*inner).msg_namelen = name.len() as libc::socklen_t;
            // The control space ends where the payload begins, and lies behind the name in either case: `Umem` keeps as
            // much free before every frame.
            let room = self.layout.control_bytes;
            let space = slice::from_raw_parts_mut(payload.sub(room), room);
            (*inner).msg_controllen = sender_cmsg::write(space, facts, &udp) as _;
            (*inner).msg_flags = 0;
            Moved { block: free, is_taken: true }
        }
    }
}

impl Tally {
    fn note(&mut self, error: FrameError) {
        *match error {
            FrameError::Malformed => &mut self.malformed,
            FrameError::HeaderChecksum => &mut self.header_checksum,
            FrameError::Checksum => &mut self.checksum,
            FrameError::NoChecksum => &mut self.no_checksum,
        } += 1;
    }
}

#[cfg(test)]
#[path = "move_frame_tests.rs"]
mod tests;
