//! The memory of batches: one anonymous mapping, on huge pages where they were asked for and there are some.
//!
//! The memory is zeroed at first, so nothing in it is uninitialised, and it never moves. `region.rs` has its layout.
//!
//! An unusable page lies before it and another behind it. Without them the kernel joins the mapping to its neighbours,
//! such as the stack of a new thread, and a huge page that the thread gets there takes a part of the pool along to the
//! wrong memory node.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// The smallest page of any machine.
pub(crate) const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// Asks for that very size: the default of the machine may be 1 GiB, which a mapping of whole 2 MiB pages never has.
const RESERVED_HUGE: libc::c_int = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
const _: () = assert!(HUGE_PAGE == 1 << (libc::MAP_HUGE_2MB >> libc::MAP_HUGE_SHIFT));

/// Zeroed memory at a fixed place, freed when the last region of it is dropped.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Start of the part in use: the mapping's start, or the first huge-page boundary in it.
    base: NonNull<u8>,
    bytes: usize,
    mapping: NonNull<u8>,
    mapped_bytes: usize,
    /// On reserved huge pages: then none of its pages is small.
    is_reserved_huge: bool,
}

// SAFETY: an arena owns an address range. It does not touch the contents after construction; the regions do, and no two
// of them overlap.
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

    /// Reserved huge pages. Touching them through the kernel matters here: if a memory policy leaves none for this
    /// thread, that is an error to fall back from, where a plain write would be a SIGBUS.
    fn reserved_huge(bytes: usize) -> io::Result<Arena> {
        let mut arena = Arena::map(bytes, huge_multiple(bytes)?, RESERVED_HUGE)?;
        arena.is_reserved_huge = true;
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
        let huge = transparent_bytes(&smaps, self.base.as_ptr().addr());
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

    /// The start of the part in use, on a page boundary.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The size of its pages, as far as that is certain.
    pub(crate) fn page_bytes(&self) -> usize {
        if self.is_reserved_huge { HUGE_PAGE } else { PAGE }
    }

    /// How long the part in use is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(not(miri))]
impl Arena {
    /// A mapping with `usable_bytes`. If those are more than needed, the part in use starts on a huge-page boundary.
    fn map(bytes: usize, usable_bytes: usize, flags: libc::c_int) -> io::Result<Arena> {
        if flags & libc::MAP_HUGETLB != 0 {
            // The kernel does not join these, and a page at each end would be a huge one.
            let mapping = crate::sys::mmap(usable_bytes, libc::PROT_READ | libc::PROT_WRITE, flags)?;
            return Ok(Arena { base: mapping, bytes, mapping, mapped_bytes: usable_bytes, is_reserved_huge: false });
        }
        let page = crate::sys::page_bytes();
        let usable_bytes = usable_bytes.checked_next_multiple_of(page).ok_or_else(too_large)?;
        let mapped_bytes = usable_bytes.checked_add(2 * page).ok_or_else(too_large)?;
        let mapping = crate::sys::mmap(mapped_bytes, libc::PROT_NONE, flags)?;
        // SAFETY: the first page is within the mapping.
        let usable = unsafe { mapping.add(page) };
        // Owned from here on, so that it is freed on an error.
        let mut arena = Arena { base: usable, bytes, mapping, mapped_bytes, is_reserved_huge: false };
        // SAFETY: what is used lies in the mapping, between its first page and its last.
        unsafe { crate::sys::allow_use(usable, usable_bytes) }?;
        let slack = usable.as_ptr().align_offset(HUGE_PAGE);
        if slack <= usable_bytes - bytes {
            // SAFETY: `slack` is within what may be used.
            arena.base = unsafe { usable.add(slack) };
        }
        Ok(arena)
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is within our mapping, and the advices used keep its contents.
        unsafe { crate::sys::madvise(self.base, self.bytes, advice) }
    }
}

#[cfg(not(miri))]
impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` got. Regions keep the arena alive, so none is left. If the kernel refuses, the
        // memory is leaked.
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
        Ok(Arena { base: mapping, bytes, mapping, mapped_bytes, is_reserved_huge: false })
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

/// Whole huge pages for so many bytes. Near the end of the address space there are none, and wrapping there would map
/// less memory than is written.
fn huge_multiple(bytes: usize) -> io::Result<usize> {
    bytes.checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_large)
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a pool of that size is not possible: ask for fewer or smaller batches")
}

/// Makes the allocator return to the kernel what it keeps of freed memory, in all of its arenas. glibc has an arena for
/// each of a few threads and keeps what was freed last in each, so many short-lived threads leave some mebibytes each.
/// Other allocators return memory by themselves, and nothing is done.
pub fn give_back_freed_memory() {
    // SAFETY: `malloc_trim` has no condition; any thread may call it at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The pages behind a pool of batches.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages, reserved or transparent.
    HugePages,
    /// Ordinary pages.
    Ordinary {
        /// Why there are no huge pages, when they were asked for.
        why: Option<String>,
    },
}

/// How many bytes of the mapping that holds `address` are transparent huge pages. `None` when the text does not say.
fn transparent_bytes(smaps: &str, address: usize) -> Option<usize> {
    let mut lines = smaps.lines();
    lines.find(|line| range_of(line).is_some_and(|(start, end)| (start..end).contains(&address)))?;
    let kibibytes = lines.take_while(|line| range_of(line).is_none()).find_map(|line| {
        line.strip_prefix("AnonHugePages:")?.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    })?;
    Some(kibibytes * 1024)
}

/// The address range, if this line opens a mapping.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "needs mmap")]
    fn a_size_near_the_end_of_the_address_space_is_refused_and_does_not_wrap() {
        for bytes in [usize::MAX, usize::MAX - PAGE, usize::MAX - HUGE_PAGE + 1, usize::MAX - 2 * HUGE_PAGE] {
            assert!(Arena::new(bytes, true).is_err(), "{bytes}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs mmap")]
    fn no_neighbour_is_joined_to_a_pool() {
        let page = crate::sys::page_bytes();
        for (bytes, huge_pages) in [(1, false), (3 * page, false), (page, true)] {
            let (arena, _) = Arena::new(bytes, huge_pages).expect("memory");
            let (first, behind) = (arena.mapping.addr().get(), arena.mapping.addr().get() + arena.mapped_bytes);
            let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
            let no_use = |address: usize| {
                maps.lines().any(|line| {
                    let (range, rest) = line.split_once(' ').expect("a range comes first");
                    let (start, end) = range.split_once('-').expect("two ends");
                    let of = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
                    (of(start)..of(end)).contains(&address) && rest.starts_with("---p")
                })
            };
            assert!(no_use(first) && no_use(behind - 1), "{bytes} {huge_pages}: {maps}");
            assert!(arena.base.addr().get() > first && arena.base.addr().get() + bytes <= behind - page);
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

    const SMAPS: &str = "\
55d0a0000000-55d0a0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
AnonHugePages:         0 kB
7f0000000000-7f0000600000 rw-p 00000000 00:00 0
Size:               6144 kB
Rss:                6144 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac sd hg
7f0000600000-7f0000601000 r--p 00000000 00:00 0
Size:                  4 kB
";

    #[test]
    fn the_figure_is_that_of_the_mapping_asked_about() {
        assert_eq!(transparent_bytes(SMAPS, 0x7f00_0020_0000), Some(4 << 20));
        assert_eq!(transparent_bytes(SMAPS, 0x55d0_a000_0000), Some(0));
    }

    #[test]
    fn an_address_between_mappings_or_a_mapping_without_the_line_has_no_figure() {
        assert_eq!(transparent_bytes(SMAPS, 0x1000), None);
        assert_eq!(transparent_bytes(SMAPS, 0x7f00_0060_0000), None);
        assert_eq!(transparent_bytes("", 0), None);
    }
}
