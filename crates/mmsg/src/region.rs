//! The memory of each batch: a region of an arena, laid out for `recvmmsg` or `sendmmsg`.
//!
//! ```text
//! arena   | region 0                            | region 1 ...
//! region  | mmsghdr x n | iovec x n | block x n |
//! block   | preface | name | control | payload |
//! header i --> iovec i --> payload of a block,  --> its name,  --> its control
//! ```
//!
//! A block is laid out as io_uring fills one, so that `recvmmsg` and io_uring can fill the same blocks; the preface is
//! io_uring's. At first header `i` points at block `i` of its own region. A batch may exchange a block for another one
//! of the same arena and layout ([`Layout::point`]); each block is in one place at any time. AF_XDP fills a block its
//! own way: payload and control then lie elsewhere in it ([`Layout::point_into`]) until the header is armed again. The
//! pointers stay valid because the arena never moves. All access is by raw pointers from its base: no reference to
//! memory that the kernel may write is ever made here.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use libc::{iovec, mmsghdr};

use crate::addr::NAME_BYTES;
use crate::arena::{Arena, PAGE};

/// Blocks and payloads start on a cache line.
const LINE: usize = 64;
/// What io_uring writes before the name: four lengths and flags, as 32-bit numbers (`io_uring_recvmsg_out`).
pub(crate) const PREFACE_BYTES: usize = 16;

/// How a region is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) control_bytes: usize,
}

impl Layout {
    fn iovecs_at(&self) -> usize {
        self.slots.saturating_mul(size_of::<mmsghdr>())
    }

    fn blocks_at(&self) -> usize {
        let end = self.iovecs_at().saturating_add(self.slots.saturating_mul(size_of::<iovec>()));
        end.checked_next_multiple_of(LINE).unwrap_or(usize::MAX)
    }

    /// Whether a block begins at this offset in an arena of so many bytes, all of whose regions have this layout.
    pub(crate) fn is_block(&self, offset: usize, arena_bytes: usize) -> bool {
        let Some(inside) = (offset % self.bytes()).checked_sub(self.blocks_at()) else { return false };
        let is_whole_region = offset - offset % self.bytes() <= arena_bytes.saturating_sub(self.bytes());
        is_whole_region && inside % self.block_stride() == 0 && inside / self.block_stride() < self.slots
    }

    /// Where the payload begins in a block.
    pub(crate) fn payload_offset(&self) -> usize {
        let end = (PREFACE_BYTES + NAME_BYTES).saturating_add(self.control_bytes);
        end.checked_next_multiple_of(LINE).unwrap_or(usize::MAX)
    }

    /// Where the control space begins in a block: it ends where the payload begins.
    pub(crate) fn control_offset(&self) -> usize {
        self.payload_offset() - self.control_bytes
    }

    /// The room for a name: what is left between preface and control, at least the longest name.
    #[cfg_attr(not(feature = "io_uring"), allow(dead_code))]
    pub(crate) fn name_room(&self) -> usize {
        self.control_offset() - PREFACE_BYTES
    }

    /// A whole block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.payload_offset().saturating_add(self.slot_bytes)
    }

    /// From block to block. An odd number of cache lines moves each block to other cache sets than its neighbour:
    /// blocks of exactly 2 KiB would all begin in the same few sets, and their first lines, which are read, would evict
    /// each other.
    pub(crate) fn block_stride(&self) -> usize {
        let lines = self.block_bytes().div_ceil(LINE) | 1;
        lines.saturating_mul(LINE)
    }

    /// The whole region; saturates instead of overflowing, and no arena has that size.
    pub(crate) fn bytes(&self) -> usize {
        let end = self.blocks_at().saturating_add(self.slots.saturating_mul(self.block_stride()));
        end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
    }
}

/// One batch's share of an arena. It hands out raw pointers; the batch decides when they may be used.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    layout: Layout,
    arena: Arc<Arena>,
}

// SAFETY: only a region has pointers to its headers and to the blocks they point at, and shared methods write nothing
// that another thread may read: `point` is called by the exclusive owner of the batch.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Divides an arena into one region per layout. It consumes the arena, so no two regions overlap.
    pub(crate) fn carve(arena: Arena, layouts: &[Layout]) -> Vec<Region> {
        let arena = Arc::new(arena);
        let mut offset = 0_usize;
        let mut regions = Vec::with_capacity(layouts.len());
        for &layout in layouts {
            let end = offset.checked_add(layout.bytes()).filter(|end| *end <= arena.bytes());
            let end = end.unwrap_or_else(|| panic!("an arena of {} bytes cannot hold {layouts:?}", arena.bytes()));
            // SAFETY: `offset` is within the mapping, as just checked.
            let base = unsafe { arena.base().add(offset) };
            let region = Region { base, layout, arena: Arc::clone(&arena) };
            region.build_headers();
            regions.push(region);
            offset = end;
        }
        regions
    }

    #[inline]
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Header `slot`; valid to dereference while `slot` is below the number of slots, as for the next three.
    #[inline]
    pub(crate) fn header(&self, slot: usize) -> *mut mmsghdr {
        self.base.as_ptr().cast::<mmsghdr>().wrapping_add(slot)
    }

    #[inline]
    pub(crate) fn iovec(&self, slot: usize) -> *mut iovec {
        self.base.as_ptr().wrapping_add(self.layout.iovecs_at()).cast::<iovec>().wrapping_add(slot)
    }

    /// Name, control and payload of the block that the region was made with.
    pub(crate) fn name(&self, slot: usize) -> *mut u8 {
        self.own_block(slot).wrapping_add(PREFACE_BYTES)
    }

    pub(crate) fn control(&self, slot: usize) -> *mut u8 {
        self.own_block(slot).wrapping_add(self.layout.control_offset())
    }

    pub(crate) fn payload(&self, slot: usize) -> *mut u8 {
        self.own_block(slot).wrapping_add(self.layout.payload_offset())
    }

    /// Writes two parts, one after the other, into the payload of `slot` from its byte `at` on.
    ///
    /// # Safety
    /// `slot` is below the number of slots, its payload has room for both, neither part lies in the arena, and nothing
    /// else reads it.
    pub(crate) unsafe fn write_payload(&self, slot: usize, at: usize, [first, second]: [&[u8]; 2]) {
        // SAFETY: there is room, and nothing overlaps, by the caller.
        unsafe {
            let to = self.payload(slot).add(at);
            ptr::copy_nonoverlapping(first.as_ptr(), to, first.len());
            ptr::copy_nonoverlapping(second.as_ptr(), to.add(first.len()), second.len());
        }
    }

    fn own_block(&self, slot: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.layout.blocks_at() + slot * self.layout.block_stride())
    }

    /// Name, control and payload of the block that header `slot` points at now.
    ///
    /// # Safety
    /// `slot` is below the number of slots, and no code writes the headers meanwhile.
    #[inline]
    pub(crate) unsafe fn parts(&self, slot: usize) -> (*const u8, *const u8, *const u8) {
        // SAFETY: header and iovec of this region, by the caller; `point` has written both.
        let (name, payload) =
            unsafe { ((*self.header(slot)).msg_hdr.msg_name.cast::<u8>(), (*self.iovec(slot)).iov_base.cast::<u8>()) };
        // Computed, because the header has null where there is no room for any.
        (name, payload.wrapping_sub(self.layout.control_bytes), payload)
    }

    /// The block that header `slot` points at now.
    ///
    /// # Safety
    /// As for [`parts`](Self::parts).
    pub(crate) unsafe fn block(&self, slot: usize) -> *mut u8 {
        // SAFETY: a header of this region, by the caller.
        unsafe { Layout::block_of(self.header(slot)) }
    }

    /// Restores what a receive call has overwritten in header `slot`, so that the next one finds all the room.
    ///
    /// # Safety
    /// `slot` is below the number of slots, and no code reads the header or what it points at.
    #[inline]
    pub(crate) unsafe fn arm(&self, slot: usize) {
        let header = self.header(slot);
        // SAFETY: a header of this region, by the caller, and its iovec and block.
        unsafe {
            (*header).msg_hdr.msg_namelen = NAME_BYTES as libc::socklen_t;
            (*header).msg_hdr.msg_controllen = self.layout.control_bytes as _;
            (*header).msg_hdr.msg_flags = 0;
            // AF_XDP may have left the payload elsewhere in the block.
            let payload = Layout::block_of(header).wrapping_add(self.layout.payload_offset());
            (*self.iovec(slot)).iov_base = payload.cast();
        }
    }

    /// The whole arena, of which this is a part.
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether both lie in one arena, so that they may exchange blocks.
    pub(crate) fn shares_arena_with(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.arena, &other.arena)
    }

    /// Points every header at its own block, as a receiver needs it.
    fn build_headers(&self) {
        for slot in 0..self.layout.slots {
            let (header, iovec) = (self.header(slot), self.iovec(slot));
            // SAFETY: header and iovec `slot` are inside the region, aligned (the region starts on a page, and their
            // sizes are multiples of their alignment) and zeroed, which is a valid value for both.
            unsafe {
                (*iovec).iov_len = self.layout.slot_bytes;
                (*header).msg_hdr.msg_namelen = NAME_BYTES as libc::socklen_t;
                (*header).msg_hdr.msg_iov = iovec;
                (*header).msg_hdr.msg_iovlen = 1;
                (*header).msg_hdr.msg_controllen = self.layout.control_bytes as _;
                self.layout.point(header, self.own_block(slot));
            }
        }
    }
}

impl Layout {
    /// Points a header at a block.
    ///
    /// # Safety
    /// The header is one of a region of this layout and nothing else reads it; the block is one of the same arena and
    /// layout, and no other header points at it.
    pub(crate) unsafe fn point(&self, header: *mut mmsghdr, block: *mut u8) {
        let control = match self.control_bytes {
            0 => ptr::null_mut(),
            _ => block.wrapping_add(self.control_offset()),
        };
        // SAFETY: the caller vouches for the header; its iovec is in the same region, see `build_headers`.
        unsafe {
            (*(*header).msg_hdr.msg_iov).iov_base = block.wrapping_add(self.payload_offset()).cast();
            (*header).msg_hdr.msg_name = block.wrapping_add(PREFACE_BYTES).cast();
            (*header).msg_hdr.msg_control = control.cast();
        }
    }

    /// Points a header at a block whose payload begins at `payload`, with the control space before it. [`Region::arm`]
    /// undoes it.
    ///
    /// # Safety
    /// As for [`point`](Self::point), and `payload` lies in the block: behind name and control, and with as many bytes
    /// behind it as the header will claim.
    pub(crate) unsafe fn point_into(&self, header: *mut mmsghdr, block: *mut u8, payload: *mut u8) {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.point(header, block);
            (*(*header).msg_hdr.msg_iov).iov_base = payload.cast();
        }
    }

    /// The block that a header points at: its name always comes right after the preface.
    ///
    /// # Safety
    /// The header is one of a region, and no code writes it meanwhile.
    pub(crate) unsafe fn block_of(header: *const mmsghdr) -> *mut u8 {
        // SAFETY: the caller vouches for the header; `point` has written it.
        unsafe { (*header).msg_hdr.msg_name.cast::<u8>().wrapping_sub(PREFACE_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Layout = Layout { slots: 3, slot_bytes: 100, control_bytes: 24 };

    #[test]
    fn the_parts_of_a_region_do_not_overlap() {
        let (arena, _) = Arena::new(SMALL.bytes(), false).expect("memory");
        let regions = Region::carve(arena, &[SMALL]);
        let region = &regions[0];
        let mut parts = Vec::new();
        for slot in 0..SMALL.slots {
            parts.push((region.header(slot).addr(), size_of::<mmsghdr>()));
            parts.push((region.iovec(slot).addr(), size_of::<iovec>()));
            parts.push((region.name(slot).addr(), NAME_BYTES));
            parts.push((region.control(slot).addr(), SMALL.control_bytes));
            parts.push((region.payload(slot).addr(), SMALL.slot_bytes));
        }
        parts.sort_unstable();
        assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:?}");
        let start = region.base.as_ptr().addr();
        assert!(parts.iter().all(|(at, bytes)| *at >= start && at + bytes <= start + SMALL.bytes()));
    }

    #[test]
    fn slots_start_on_cache_lines_of_different_sets() {
        let layout = Layout { slots: 8, slot_bytes: 2048, control_bytes: 0 };
        let (arena, _) = Arena::new(layout.bytes(), false).expect("memory");
        let region = &Region::carve(arena, &[layout])[0];
        let mut sets: Vec<usize> = (0..8).map(|slot| region.payload(slot).addr() / LINE % 64).collect();
        assert!((0..8).all(|slot| region.payload(slot).addr().is_multiple_of(LINE)));
        sets.sort_unstable();
        sets.dedup();
        assert_eq!(sets.len(), 8);
    }

    #[test]
    fn absurd_layouts_saturate_instead_of_wrapping() {
        let layout = Layout { slots: usize::MAX / 2, slot_bytes: usize::MAX, control_bytes: 1 };
        assert_eq!(layout.bytes(), usize::MAX);
    }

    #[test]
    #[should_panic(expected = "cannot hold")]
    fn an_arena_is_never_carved_beyond_its_end() {
        let (arena, _) = Arena::new(SMALL.bytes(), false).expect("memory");
        Region::carve(arena, &[SMALL, SMALL]);
    }
}
