//! One frame into one slot of a batch, as `recvmmsg` would have left a datagram there.
//!
//! A payload that is short is copied into the slot's own block, and the frame's block is free again. A longer one stays
//! where it is: the slot points at the frame's block from then on, and its own becomes free in exchange. Either way the
//! sender and the control messages are written beside it, where `datagram.rs` looks for them. In the second case that
//! is over the headers of the frame, which have been read by then.
#![allow(unsafe_code)]
// The lengths in a header have other types with other C libraries; where a cast is needed depends on which.
#![allow(clippy::unnecessary_cast)]

use std::ptr;
use std::slice;

use libc::mmsghdr;

use crate::region::Layout;

use super::control::{self, Said};
use super::frame::{Damage, Heading, Proof};
use super::options::{Checksums, Tally};
use super::umem::{Place, Umem};

/// Moves datagrams from frames into slots.
#[derive(Debug)]
pub(super) struct Depot {
    pub(super) umem: Umem,
    pub(super) layout: Layout,
    /// Payloads of up to so many bytes are copied; no more than a slot has.
    pub(super) copy_up_to: usize,
    pub(super) checksums: Checksums,
    /// Whether any block will do as a chunk, or only one that lies on one page.
    pub(super) any_page: bool,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deposited {
    /// The block that is free now, in exchange for what was taken.
    pub(super) block: *mut u8,
    /// Whether the slot is filled. Otherwise the frame was no datagram, and the slot is as it was.
    pub(super) is_taken: bool,
}

impl Depot {
    /// Puts the datagram of a frame under a header.
    ///
    /// # Safety
    /// The header is armed, of our layout and arena, and nobody looks at it or at what it points at. The place is of
    /// our memory, its block is the caller's alone, holds the frame, and is not the one that the header points at.
    pub(super) unsafe fn deposit(
        &self,
        header: *mut mmsghdr,
        place: &Place,
        said: &Said,
        tally: &mut Tally,
    ) -> Deposited {
        tally.frames += 1;
        // SAFETY: the frame lies within its block (see `Umem::place`), which is ours alone and was zeroed memory before
        // the kernel wrote to it. The slice ends here.
        let heading = unsafe { Heading::read(slice::from_raw_parts(place.frame, place.bytes), self.checksums) };
        let heading = match heading {
            Ok(heading) => heading,
            Err(damage) => {
                tally.note(damage);
                return Deposited { block: place.block, is_taken: false };
            }
        };
        tally.left_to_device += u64::from(heading.proof == Proof::LeftToDevice);
        let length = heading.payload.len();
        let name = control::sender(&heading, said.interface);
        // SAFETY: the header is ours, by the caller, and armed: its parts are those of its own block. The payload lies
        // within the frame. Two blocks of one arena do not overlap.
        unsafe {
            let inner = &raw mut (*header).msg_hdr;
            let own = Layout::block_of(header);
            let arrived = place.frame.add(heading.payload.start);
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
            (*inner).msg_controllen = control::write(space, said, &heading) as _;
            (*inner).msg_flags = 0;
            Deposited { block: free, is_taken: true }
        }
    }
}

impl Tally {
    fn note(&mut self, damage: Damage) {
        *match damage {
            Damage::Malformed => &mut self.malformed,
            Damage::HeaderChecksum => &mut self.header_checksum,
            Damage::Checksum => &mut self.checksum,
            Damage::NoChecksum => &mut self.no_checksum,
        } += 1;
    }
}

#[cfg(test)]
#[path = "deposit_tests.rs"]
mod tests;
