//! The memory of batches: one anonymous mapping, cut into regions, each region laid out for `recvmmsg` or `sendmmsg`.
//!
//! ```text
//! arena   | region 0                            | region 1 ...
//! region  | mmsghdr x n | iovec x n | block x n |
//! block   | preface | name | control | payload |
//! header i --> iovec i --> payload of a block,  --> its name,  --> its control
//! ```
//!
//! A block is laid out as io_uring fills one, so that `recvmmsg` and io_uring can fill the same blocks; the preface is
//! io_uring's. Header `i` points at block `i` of its own region when the region is made. A batch may exchange a block
//! for another one of the same arena and layout ([`Region::point`]); each block is in one place at any time. The
//! pointers stay true because the mapping never moves. Everything is reached by raw pointers that start from the base
//! of the mapping: no reference to memory the kernel may write is ever made here. The memory is zeroed when it comes,
//! so nothing in it is uninitialised.
#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libc::{iovec, mmsghdr};

use crate::addr::NAME_BYTES;
use crate::backing::Backing;

/// Regions, blocks and payloads start on a cache line.
const LINE: usize = 64;
/// Regions start on a page, so that two batches never share one.
const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// Asks for that very size: the machine's default may be 1 GiB, and a mapping of whole 2 MiB pages none of those.
const RESERVED_HUGE: libc::c_int = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
const _: () = assert!(HUGE_PAGE == 1 << (libc::MAP_HUGE_2MB >> libc::MAP_HUGE_SHIFT));
/// What io_uring writes before the name: four lengths and flags, as 32-bit numbers.
pub(crate) const PREFACE_BYTES: usize = 16;

/// Zeroed memory at a fixed place, given back when the last region of it is dropped.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Start of the part in use: the mapping's start, or the first huge-page boundary in it.
    base: NonNull<u8>,
    bytes: usize,
    mapping: NonNull<u8>,
    mapped_bytes: usize,
}

// SAFETY: an arena is an address range that it owns. It never reads or writes what is in it after construction; the
// regions do, and no two of them overlap.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps and touches `bytes` of memory, so that its pages belong to the node of the calling thread.
    pub(crate) fn new(bytes: usize, huge_pages: bool) -> io::Result<(Arena, Backing)> {
        if !huge_pages {
            let arena = Arena::map(bytes, bytes, 0)?;
            arena.touch()?;
            return Ok((arena, Backing::Ordinary { why: None }));
        }
        if bytes < HUGE_PAGE {
            let arena = Arena::map(bytes, bytes, 0)?;
            arena.touch()?;
            let why = format!("the pool has {bytes} bytes, less than one huge page of {HUGE_PAGE}");
            return Ok((arena, Backing::Ordinary { why: Some(why) }));
        }
        match Arena::reserved_huge(bytes) {
            Ok(arena) => Ok((arena, Backing::HugePages)),
            Err(no_reserved) => Arena::transparent_huge(bytes, &no_reserved),
        }
    }

    /// Huge pages set aside by the administrator. Touching them through the kernel matters here: if a memory policy
    /// leaves none for this thread, that is an error to fall back from, where a plain write would be a SIGBUS.
    fn reserved_huge(bytes: usize) -> io::Result<Arena> {
        let arena = Arena::map(bytes, huge_multiple(bytes)?, RESERVED_HUGE)?;
        arena.populate()?;
        Ok(arena)
    }

    /// Ordinary memory on a huge-page boundary, with a request to the kernel to back it by huge pages.
    fn transparent_huge(bytes: usize, no_reserved: &io::Error) -> io::Result<(Arena, Backing)> {
        let with_slack = huge_multiple(bytes)?.checked_add(HUGE_PAGE).ok_or_else(too_large)?;
        let arena = Arena::map(bytes, with_slack, 0)?;
        let advice = arena.advise(libc::MADV_HUGEPAGE);
        arena.touch()?;
        let why_not = match advice {
            Err(error) => format!("transparent ones are unavailable ({error})"),
            Ok(()) if arena.is_mostly_transparent_huge() => return Ok((arena, Backing::HugePages)),
            Ok(()) => "the kernel had no transparent ones to give".to_owned(),
        };
        let why = format!(
            "no reserved huge pages for {bytes} bytes ({no_reserved}; see vm.nr_hugepages), and {why_not} \
             (see /sys/kernel/mm/transparent_hugepage/enabled)"
        );
        Ok((arena, Backing::Ordinary { why: Some(why) }))
    }

    fn is_mostly_transparent_huge(&self) -> bool {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let huge = crate::backing::transparent_bytes(&smaps, self.base.as_ptr().addr());
        huge.is_some_and(|huge| huge >= self.bytes / 2)
    }

    /// Makes every page present, by the calling thread.
    fn touch(&self) -> io::Result<()> {
        match self.populate() {
            // Linux before 5.14 cannot do it in one call.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for offset in (0..self.bytes).step_by(PAGE) {
                    // SAFETY: inside the mapping, which is ours alone and still zero.
                    unsafe { self.base.as_ptr().add(offset).write_volatile(0) };
                }
                Ok(())
            }
            result => result,
        }
    }

    fn populate(&self) -> io::Result<()> {
        self.advise(libc::MADV_POPULATE_WRITE)
    }

    /// The start of the part in use, on a page boundary; for memory that is not cut into regions.
    #[cfg_attr(not(feature = "io_uring"), allow(dead_code))]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Cuts the arena into one region per layout. It takes the arena, so this happens once, and no two regions overlap.
    pub(crate) fn carve(self, layouts: &[Layout]) -> Vec<Region> {
        let arena = Arc::new(self);
        let mut offset = 0_usize;
        let mut regions = Vec::with_capacity(layouts.len());
        for &layout in layouts {
            let end = offset.checked_add(layout.bytes()).filter(|end| *end <= arena.bytes);
            let end = end.unwrap_or_else(|| panic!("an arena of {} bytes cannot hold {layouts:?}", arena.bytes));
            // SAFETY: `offset` is within the mapping, as just checked.
            let base = unsafe { arena.base.add(offset) };
            let region = Region { base, layout, arena: Arc::clone(&arena) };
            region.build_headers();
            regions.push(region);
            offset = end;
        }
        regions
    }
}

#[cfg(not(miri))]
impl Arena {
    /// A mapping of `mapped_bytes`. If it is larger than needed, the part in use starts on a huge-page boundary.
    fn map(bytes: usize, mapped_bytes: usize, flags: libc::c_int) -> io::Result<Arena> {
        let mapping = crate::sys::mmap(mapped_bytes, flags)?;
        let slack = mapping.as_ptr().align_offset(HUGE_PAGE);
        let base = if slack <= mapped_bytes - bytes {
            // SAFETY: `slack` is within the mapping.
            unsafe { mapping.add(slack) }
        } else {
            mapping
        };
        Ok(Arena { base, bytes, mapping, mapped_bytes })
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is within our mapping, and the advices used keep its contents.
        unsafe { crate::sys::madvise(self.base, self.bytes, advice) }
    }
}

#[cfg(not(miri))]
impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` got. Regions keep the arena alive, so none is left. Should the kernel refuse, the
        // memory stays mapped: a leak, and nothing to be done about it.
        let _ = unsafe { crate::sys::munmap(self.mapping, self.mapped_bytes) };
    }
}

/// Under the interpreter there is no `mmap`: the heap stands in for it.
#[cfg(miri)]
impl Arena {
    fn heap_layout(mapped_bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(mapped_bytes, PAGE).expect("a sane size")
    }

    fn map(bytes: usize, mapped_bytes: usize, flags: libc::c_int) -> io::Result<Arena> {
        if flags != 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        // SAFETY: the size is not zero, a layout has at least one header.
        let mapping = NonNull::new(unsafe { std::alloc::alloc_zeroed(Arena::heap_layout(mapped_bytes)) });
        let mapping = mapping.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Arena { base: mapping, bytes, mapping, mapped_bytes })
    }

    fn advise(&self, _advice: libc::c_int) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }
}

#[cfg(miri)]
impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated by `map` with this layout.
        unsafe { std::alloc::dealloc(self.mapping.as_ptr(), Arena::heap_layout(self.mapped_bytes)) };
    }
}

/// Whole huge pages for so many bytes. Near the end of the address space there are none, and to wrap there would make a
/// mapping smaller than what is written to it.
fn huge_multiple(bytes: usize) -> io::Result<usize> {
    bytes.checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_large)
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a pool of that size is not possible: ask for fewer or smaller batches")
}

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

    /// Where the payload begins in a block.
    pub(crate) fn payload_offset(&self) -> usize {
        let end = (PREFACE_BYTES + NAME_BYTES).saturating_add(self.control_bytes);
        end.checked_next_multiple_of(LINE).unwrap_or(usize::MAX)
    }

    /// Where the control space begins in a block: it ends where the payload begins.
    pub(crate) fn control_offset(&self) -> usize {
        self.payload_offset() - self.control_bytes
    }

    /// The room for a name, which is what is left between preface and control; never less than the longest name.
    #[cfg_attr(not(feature = "io_uring"), allow(dead_code))]
    pub(crate) fn name_room(&self) -> usize {
        self.control_offset() - PREFACE_BYTES
    }

    /// A whole block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.payload_offset().saturating_add(self.slot_bytes)
    }

    /// From block to block. An odd number of lines moves each block to other cache sets than its neighbour: blocks of
    /// exactly 2 KiB would all begin in the same few sets, and the first lines, those that are read, would evict their
    /// like.
    fn block_stride(&self) -> usize {
        let lines = self.block_bytes().div_ceil(LINE) | 1;
        lines.saturating_mul(LINE)
    }

    /// The whole region; saturates instead of overflowing, and no arena has that size.
    pub(crate) fn bytes(&self) -> usize {
        let end = self.blocks_at().saturating_add(self.slots.saturating_mul(self.block_stride()));
        end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
    }
}

/// One batch's share of an arena. Hands out raw pointers only; what may be done with them when is up to the batch.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    layout: Layout,
    arena: Arc<Arena>,
}

// SAFETY: a region is the only one with pointers to its headers and to the blocks they point at, and shared methods
// write nothing that another thread may read: `point` is called by who has the batch to itself.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Header `slot`; valid to dereference while `slot` is below the number of slots, as for the next three.
    pub(crate) fn header(&self, slot: usize) -> *mut mmsghdr {
        self.base.as_ptr().cast::<mmsghdr>().wrapping_add(slot)
    }

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

    fn own_block(&self, slot: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.layout.blocks_at() + slot * self.layout.block_stride())
    }

    /// The block that header `slot` points at now.
    ///
    /// # Safety
    /// `slot` is below the number of slots, and nobody writes the headers meanwhile.
    pub(crate) unsafe fn block(&self, slot: usize) -> *mut u8 {
        // SAFETY: an iovec of this region, by the caller; `point` has written it.
        unsafe { (*self.iovec(slot)).iov_base.cast::<u8>().wrapping_sub(self.layout.payload_offset()) }
    }

    /// Whether both lie in one arena, so that they may exchange blocks.
    #[cfg_attr(not(feature = "io_uring"), allow(dead_code))]
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
    /// The header is one of a region of this layout and nobody else looks at it; the block is one of the same arena and
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Layout = Layout { slots: 3, slot_bytes: 100, control_bytes: 24 };

    #[test]
    fn the_parts_of_a_region_do_not_overlap() {
        let (arena, _) = Arena::new(SMALL.bytes(), false).expect("memory");
        let regions = arena.carve(&[SMALL]);
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
        let region = &arena.carve(&[layout])[0];
        let mut sets: Vec<usize> = (0..8).map(|slot| region.payload(slot).addr() / LINE % 64).collect();
        assert!((0..8).all(|slot| region.payload(slot).addr() % LINE == 0));
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
        arena.carve(&[SMALL, SMALL]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs mmap")]
    fn a_size_near_the_end_of_the_address_space_is_refused_and_does_not_wrap() {
        for bytes in [usize::MAX, usize::MAX - PAGE, usize::MAX - HUGE_PAGE + 1, usize::MAX - 2 * HUGE_PAGE] {
            assert!(Arena::new(bytes, true).is_err(), "{bytes}");
        }
    }

    #[test]
    fn a_small_pool_says_why_it_has_no_huge_pages() {
        let (_arena, backing) = Arena::new(PAGE, true).expect("memory");
        let Backing::Ordinary { why: Some(why) } = backing else { panic!("{backing:?}") };
        assert!(why.contains("less than one huge page"), "{why}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs mmap")]
    fn a_large_pool_gets_huge_pages_or_says_why_not() {
        let (arena, backing) = Arena::new(5 * HUGE_PAGE / 2, true).expect("memory");
        match backing {
            Backing::HugePages => assert_eq!(arena.base.as_ptr().addr() % HUGE_PAGE, 0),
            Backing::Ordinary { why } => assert!(why.expect("a reason").contains("vm.nr_hugepages")),
        }
    }
}
