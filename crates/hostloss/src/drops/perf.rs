//! The events of one core, and the ring into which the kernel writes their records: `perf_event_open(2)`.
//!
//! The kernel writes between the position that it publishes and the one that we publish, and nowhere else. So new bytes
//! are copied before our position moves on, and only the copy is parsed.
#![allow(unsafe_code)]
#![cfg_attr(miri, allow(dead_code))] // the interpreter has no events

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_ulong, c_void};

use super::records::pieces;

// Types, flags and requests of `perf_event_open(2)`, which libc does not have, each with its name in
// linux/perf_event.h.
/// `PERF_TYPE_TRACEPOINT`
const TYPE_TRACEPOINT: u32 = 2;
/// `PERF_SAMPLE_RAW`: the record of the tracepoint, and nothing else.
const SAMPLE_RAW: u64 = 1 << 10;
/// `disabled`, the first bit of the flags: the event waits until it is enabled.
const DISABLED: u64 = 1;
/// `PERF_FLAG_FD_CLOEXEC`
const CLOSE_ON_EXEC: c_ulong = 1 << 3;
/// `PERF_EVENT_IOC_ENABLE`
const ENABLE: libc::Ioctl = libc::_IO(b'$' as u32, 0);
/// `PERF_EVENT_IOC_SET_OUTPUT`
const SET_OUTPUT: libc::Ioctl = libc::_IO(b'$' as u32, 5);
/// `PERF_EVENT_IOC_SET_FILTER`
const SET_FILTER: libc::Ioctl = libc::_IOW::<*const c_void>(b'$' as u32, 6);

/// Where `struct perf_event_mmap_page` has `data_head` and `data_tail`.
const HEAD_OFFSET: usize = 1024;
const TAIL_OFFSET: usize = 1032;

/// `struct perf_event_attr` as it was at first (`PERF_ATTR_SIZE_VER0`), which every kernel takes.
#[repr(C)]
#[derive(Debug, Default)]
struct PerfEventAttr {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_kind: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_kind: u32,
    breakpoint_address: u64,
}

/// A tracepoint on one core, for every process. Counts how often it fires.
#[derive(Debug)]
pub(super) struct PerfEvent {
    file: File,
}

impl PerfEvent {
    /// Opens tracepoint `id` on a core, with records of each time it fires, or only counted. It is not yet on.
    pub(super) fn open(id: u64, core: usize, has_records: bool) -> io::Result<PerfEvent> {
        let attributes = PerfEventAttr {
            kind: TYPE_TRACEPOINT,
            bytes: size_of::<PerfEventAttr>() as u32,
            config: id,
            sample_period: u64::from(has_records),
            sample_kind: if has_records { SAMPLE_RAW } else { 0 },
            // Big-endian machines count bits from the other end.
            flags: if cfg!(target_endian = "little") { DISABLED } else { DISABLED.reverse_bits() },
            ..PerfEventAttr::default()
        };
        let core = c_int::try_from(core).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        let (every_process, no_group): (libc::pid_t, c_int) = (-1, -1);
        // SAFETY: the attributes are readable for the length given in them and are copied during the call.
        let fd = unsafe {
            let attributes: *const PerfEventAttr = &raw const attributes;
            libc::syscall(libc::SYS_perf_event_open, attributes, every_process, core, no_group, CLOSE_ON_EXEC)
        };
        let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
        Ok(PerfEvent { file: File::from(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// Makes the kernel ignore what does not match `filter`: neither recorded nor counted.
    pub(super) fn set_filter(&self, filter: &str) -> io::Result<()> {
        let filter = CString::new(filter)?;
        // SAFETY: the text is readable up to its zero and is copied during the call.
        checked(unsafe { libc::ioctl(self.file.as_raw_fd(), SET_FILTER, filter.as_ptr()) })
    }

    /// Writes into the ring of `other`, which is on the same core.
    pub(super) fn write_into_ring_of(&self, other: &PerfEvent) -> io::Result<()> {
        // SAFETY: takes no pointers.
        checked(unsafe { libc::ioctl(self.file.as_raw_fd(), SET_OUTPUT, other.file.as_raw_fd()) })
    }

    pub(super) fn enable(&self) -> io::Result<()> {
        // SAFETY: takes no pointers.
        checked(unsafe { libc::ioctl(self.file.as_raw_fd(), ENABLE, 0) })
    }

    /// How many times it has fired since it was enabled.
    pub(super) fn count(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        (&self.file).read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

/// The size of a page of memory here.
pub(super) fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("every kernel has pages")
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The ring of an event: a page of positions and then the records.
#[derive(Debug)]
pub(super) struct PerfRing {
    start: NonNull<u8>,
    page_bytes: usize,
    /// A power of two of pages.
    record_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and the kernel does not care which thread reads it.
unsafe impl Send for PerfRing {}

impl PerfRing {
    /// Maps a ring for the records of `event`, of `record_bytes`, which must be a power of two of pages.
    pub(super) fn map(event: &PerfEvent, record_bytes: usize) -> io::Result<PerfRing> {
        let page_bytes = page_bytes();
        let (bytes, protection) = (page_bytes + record_bytes, libc::PROT_READ | libc::PROT_WRITE);
        let fd = event.file.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(PerfRing { start, page_bytes, record_bytes })
    }

    /// Appends the bytes that are new to `bytes`, and gives their place back to the kernel.
    pub(super) fn take(&mut self, bytes: &mut Vec<u8>) {
        // SAFETY: both positions lie in the first page of the mapping, which is aligned as pages are and lives as long
        // as this value. Our side touches them only here, the kernel's only as atomic words.
        let (head, tail) = unsafe {
            let page = self.start.as_ptr();
            (AtomicU64::from_ptr(page.add(HEAD_OFFSET).cast()), AtomicU64::from_ptr(page.add(TAIL_OFFSET).cast()))
        };
        // What was written before the position was published is visible after it.
        let to = head.load(Ordering::Acquire);
        let from = tail.load(Ordering::Relaxed);
        if let Some((first, second)) = pieces(from, to, self.record_bytes) {
            for piece in [first, second] {
                // SAFETY: `pieces` keeps within `record_bytes`, which lie behind the first page in this mapping. The
                // kernel does not write there before `tail` says that it may, and `bytes` is memory of its own.
                let new = unsafe {
                    let records = self.start.as_ptr().add(self.page_bytes);
                    std::slice::from_raw_parts(records.add(piece.start), piece.len())
                };
                bytes.extend_from_slice(new);
            }
        }
        tail.store(to, Ordering::Release);
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: one whole mapping, made by `map`; nothing points into it any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.page_bytes + self.record_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring on the heap, so that the interpreter can check every access; 8 bytes aligned, as pages are.
    struct Kernel {
        memory: Vec<u64>,
        head: u64,
    }

    const PAGE: usize = 2048;
    const RECORDS: usize = 64;

    impl Kernel {
        fn new() -> Kernel {
            Kernel { memory: vec![0; (PAGE + RECORDS) / 8], head: 0 }
        }

        fn ring(&mut self) -> std::mem::ManuallyDrop<PerfRing> {
            let start = NonNull::new(self.memory.as_mut_ptr().cast()).expect("memory");
            std::mem::ManuallyDrop::new(PerfRing { start, page_bytes: PAGE, record_bytes: RECORDS })
        }

        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                let at = PAGE + (self.head % RECORDS as u64) as usize;
                let mut word = self.memory[at / 8].to_ne_bytes();
                word[at % 8] = *byte;
                self.memory[at / 8] = u64::from_ne_bytes(word);
                self.head += 1;
            }
            self.memory[HEAD_OFFSET / 8] = self.head;
        }

        fn tail(&self) -> u64 {
            self.memory[TAIL_OFFSET / 8]
        }
    }

    #[test]
    fn everything_that_is_written_is_taken_once_and_in_order_around_the_end_of_the_ring() {
        let mut kernel = Kernel::new();
        let (mut written, mut taken) = (Vec::new(), Vec::new());
        for round in 0..40_u8 {
            let new: Vec<u8> = (0..u8::try_from((round as usize * 7) % (RECORDS + 1)).expect("small")).collect();
            kernel.write(&new);
            written.extend_from_slice(&new);
            kernel.ring().take(&mut taken);
            assert_eq!(kernel.tail(), kernel.head, "its place is given back");
        }
        assert_eq!(taken, written);
    }

    #[test]
    fn a_position_that_cannot_be_is_believed_in_nothing_and_the_next_ones_count_again() {
        let mut kernel = Kernel::new();
        let mut taken = Vec::new();
        kernel.head = 1000;
        kernel.memory[HEAD_OFFSET / 8] = 1000;
        kernel.ring().take(&mut taken);
        assert!(taken.is_empty());
        kernel.write(b"again");
        kernel.ring().take(&mut taken);
        assert_eq!(taken, b"again");
    }

    #[test]
    fn the_layout_is_that_of_the_kernel() {
        assert_eq!(size_of::<PerfEventAttr>(), 64);
        assert_eq!(ENABLE, 0x2400);
        assert_eq!(SET_OUTPUT, 0x2405);
    }
}
