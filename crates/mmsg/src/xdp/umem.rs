//! The memory that a socket of AF_XDP receives into: where a chunk lies in a block of the pool, and a frame in a chunk.
//!
//! ```text
//! block   | preface | name | ...                    ... | what is left |
//! chunk   | headroom: 256 bytes and ours | frame                       |
//! frame                                  | headers | payload           |
//! reader            | name |     | control          | payload           |
//! ```
//!
//! The whole arena is registered, and a chunk is where a block is, so blocks of the ring and of the batches change
//! places without a copy. The kernel writes a frame at a fixed distance from the start of its chunk. Once its headers
//! have been read they are overwritten with what a reader wants to know of the datagram.
//!
//! The length of blocks is no power of two (they would begin in the same sets of the cache), so chunks are those that
//! the kernel calls unaligned. Where the kernel copies frames, they may lie across pages; where the device writes them
//! itself, a chunk must lie within one page, ordinary or huge.
//!
//! Pure arithmetic with addresses: nothing here is read or written.

use std::ptr::NonNull;

use crate::addr::NAME_BYTES;
use crate::arena::Arena;
use crate::region::{Layout, PREFACE_BYTES};

use super::frame::{ETHERNET_BYTES, TAG_BYTES, UDP_BYTES, V4_BYTES};
use super::rings::FilledChunk;

/// What the kernel keeps free before every frame, for programs that add a header (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;

/// The smallest chunk that the kernel takes (`XDP_UMEM_MIN_CHUNK_SIZE`). The longest is a page.
const CHUNK_MIN: usize = 2048;

/// How many bits of an address are the chunk; the others are the offset of the frame in it
/// (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`).
const ADDRESS_BITS: u32 = 48;

/// The shortest headers before a payload.
const HEADERS_MIN: usize = ETHERNET_BYTES + V4_BYTES + UDP_BYTES;

/// What is registered with the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Umem {
    pub(super) base: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) chunk_bytes: usize,
    /// What is kept free behind the kernel's own headroom.
    pub(super) headroom: usize,
    /// The size of its pages.
    page_bytes: usize,
    /// Every region of the arena is laid out like this.
    layout: Layout,
}

/// Where a filled chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FramePlace {
    pub(super) block: *mut u8,
    pub(super) frame: *mut u8,
    pub(super) bytes: usize,
}

impl Umem {
    /// Chunks in the blocks of `layout` in an arena; `longest_chunk` is the kernel's page. `Err`: the bytes that a
    /// block would need.
    pub(super) fn new(layout: &Layout, arena: &Arena, longest_chunk: usize) -> Result<Umem, usize> {
        let chunk_bytes = layout.block_stride().min(longest_chunk);
        // Preface and name lie before the control space, which ends where the payload begins.
        let before_payload = PREFACE_BYTES + NAME_BYTES + layout.control_bytes;
        let headroom = before_payload.saturating_sub(KERNEL_HEADROOM + HEADERS_MIN).next_multiple_of(8);
        let needed = CHUNK_MIN.max(KERNEL_HEADROOM + headroom + CHUNK_MIN / 2);
        if chunk_bytes < needed {
            return Err(needed);
        }
        let (base, bytes, page_bytes) = (arena.base(), arena.bytes(), arena.page_bytes());
        Ok(Umem { base, bytes, chunk_bytes, headroom, page_bytes, layout: *layout })
    }

    /// The longest frame that a chunk has room for.
    pub(super) fn frame_bytes(&self) -> usize {
        self.chunk_bytes - KERNEL_HEADROOM - self.headroom
    }

    /// The highest MTU of an interface whose frames all fit.
    pub(super) fn mtu(&self) -> usize {
        self.frame_bytes() - ETHERNET_BYTES - TAG_BYTES
    }

    /// A block as the kernel is told of it.
    pub(super) fn address(&self, block: *mut u8) -> u64 {
        (block.addr() - self.base.as_ptr().addr()) as u64
    }

    /// Whether a device may write into the chunk of a block by itself.
    pub(super) fn is_on_one_page(&self, block: *mut u8) -> bool {
        block.addr() % self.page_bytes + self.chunk_bytes <= self.page_bytes
    }

    /// About where the kernel says that a frame is, for a prefetch.
    #[inline]
    pub(super) fn about(&self, filled: &FilledChunk) -> *const u8 {
        let at = (filled.address & ((1 << ADDRESS_BITS) - 1)) + (filled.address >> ADDRESS_BITS);
        self.base.as_ptr().wrapping_add(at as usize)
    }

    /// Where the kernel says that a frame is. `None`: it is in no chunk of this memory. The kernel is trusted not to
    /// give the same chunk twice, as with every ring.
    pub(super) fn place(&self, filled: &FilledChunk) -> Option<FramePlace> {
        let block = usize::try_from(filled.address & ((1 << ADDRESS_BITS) - 1)).ok()?;
        let offset = usize::try_from(filled.address >> ADDRESS_BITS).ok()?;
        let bytes = filled.bytes as usize;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.chunk_bytes);
        let is_in_chunk = offset >= self.headroom + KERNEL_HEADROOM && fits;
        (is_in_chunk && self.layout.is_block(block, self.bytes)).then(|| {
            let block = self.base.as_ptr().wrapping_add(block);
            FramePlace { block, frame: block.wrapping_add(offset), bytes }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn layout(slot_bytes: usize, control_bytes: usize) -> Layout {
        Layout { slots: 64, slot_bytes, control_bytes }
    }

    /// Over an arena that is gone: no address is ever used.
    fn umem(layout: &Layout) -> Result<Umem, usize> {
        let (arena, _) = Arena::new(64 * PAGE, false).expect("memory");
        Umem::new(layout, &arena, PAGE)
    }

    #[test]
    fn slots_of_2_kib_take_what_an_ordinary_interface_sends() {
        for control_bytes in [0, 24, 240, 240 + 4096 / 16] {
            let umem = umem(&layout(2048, control_bytes)).expect("long enough");
            assert!(umem.mtu() >= 1500, "{umem:?}");
            assert!(umem.chunk_bytes >= CHUNK_MIN && umem.chunk_bytes <= PAGE);
        }
    }

    #[test]
    fn a_chunk_never_reaches_into_the_next_block_and_name_and_control_fit_before_every_payload() {
        for control_bytes in (0..4400).step_by(if cfg!(miri) { 440 } else { 8 }) {
            for slot_bytes in [1984, 2048, 3000, 4096, 9000, 65_536] {
                let layout = layout(slot_bytes, control_bytes);
                let Ok(umem) = umem(&layout) else { continue };
                assert!(umem.chunk_bytes <= layout.block_stride());
                let payload = KERNEL_HEADROOM + umem.headroom + HEADERS_MIN;
                assert!(PREFACE_BYTES + NAME_BYTES + control_bytes <= payload, "{layout:?} {umem:?}");
                assert!(umem.headroom < umem.chunk_bytes - KERNEL_HEADROOM, "which the kernel refuses");
            }
        }
    }

    #[test]
    fn slots_that_are_too_short_are_refused_with_the_least_that_would_do() {
        assert_eq!(umem(&layout(1500, 0)).expect_err("too short"), CHUNK_MIN);
        assert!(umem(&layout(65_536, 4352)).is_err(), "no page has room for so much control space and a frame");
    }

    #[test]
    fn an_address_leads_back_to_its_block_and_one_outside_leads_nowhere() {
        let umem = umem(&layout(2048, 0)).expect("long enough");
        let blocks: Vec<usize> =
            (0..umem.bytes).step_by(64).filter(|at| umem.layout.is_block(*at, umem.bytes)).collect();
        assert_eq!(blocks.len(), umem.bytes / umem.layout.bytes() * umem.layout.slots);
        let block = umem.base.as_ptr().wrapping_add(blocks[3]);
        let at = umem.address(block);
        let filled = |address, bytes| FilledChunk { address, bytes, options: 0 };
        let distance = 256_u64 << ADDRESS_BITS;
        let place = umem.place(&filled(at | distance, 60)).expect("in a chunk");
        assert_eq!(place, FramePlace { block, frame: block.wrapping_add(256), bytes: 60 });
        assert_eq!(umem.place(&filled(at, 60)), None, "before the headroom");
        assert_eq!(umem.place(&filled((at + 64) | distance, 60)), None, "in the middle of a block");
        assert_eq!(umem.place(&filled(distance, 60)), None, "where the headers are");
        assert_eq!(umem.place(&filled(at | distance, u32::MAX)), None, "longer than there are addresses");
        assert_eq!(
            umem.place(&filled(at | distance, umem.frame_bytes() as u32 + 1)),
            None,
            "over the end of the chunk"
        );
        assert_eq!(umem.place(&filled(umem.bytes as u64 | distance, 60)), None, "behind the memory");
        assert_eq!(umem.place(&filled(u64::MAX, u32::MAX)), None);
    }

    #[test]
    fn a_chunk_across_two_pages_is_not_for_a_device() {
        let umem = umem(&layout(2048, 0)).expect("long enough");
        let block = |offset| umem.base.as_ptr().wrapping_add(offset);
        assert!(umem.is_on_one_page(block(0)) && umem.is_on_one_page(block(PAGE - umem.chunk_bytes)));
        assert!(!umem.is_on_one_page(block(PAGE - umem.chunk_bytes + 1)));
    }
}
