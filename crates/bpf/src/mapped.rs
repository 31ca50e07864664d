//! An array map as memory of this process (`BPF_F_MMAPABLE`, Linux 5.5 and later), which programs in the kernel read
//! and write at the same time. Writing a table here takes no call for each value, and reading a counter takes none at
//! all, so neither takes the right that the array was made with.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault_gate::{Call, gate};

/// The 64-bit numbers of an array map, in memory.
#[derive(Debug)]
pub struct MappedArray {
    address: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it owns its mapping, whose contents are touched as atomics only.
unsafe impl Send for MappedArray {}
// SAFETY: as above.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps the first `count` numbers of the array.
    ///
    /// # Errors
    /// Of the kernel: the array was made without `BPF_F_MMAPABLE`, or is shorter.
    pub fn new(array: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        gate(Call::Mmap, 0)?;
        let (bytes, protection) = (count * size_of::<u64>(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, array.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { address, count })
    }

    /// The numbers.
    pub fn numbers(&self) -> &[AtomicU64] {
        // SAFETY: so many were mapped, at the beginning of a page and as long as this lives; the kernel's programs and
        // this process touch them as atomics only.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.count) }
    }

    /// Writes `numbers` from the beginning, as far as there is room.
    pub fn fill(&self, numbers: impl Iterator<Item = u64>) {
        for (place, number) in self.numbers().iter().zip(numbers) {
            place.store(number, Ordering::Relaxed);
        }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: one whole mapping, and no reference into it outlives this. Should the kernel refuse, it stays mapped
        // to the end of the process, which harms nothing.
        let _ = gate(Call::Munmap, 0).map(|_| unsafe {
            libc::munmap(self.address.as_ptr().cast(), self.count * size_of::<u64>());
        });
    }
}
