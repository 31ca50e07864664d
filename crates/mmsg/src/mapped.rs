//! An array of the kernel as memory of this process (`BPF_F_MMAPABLE`, Linux 5.5 and later): programs in the kernel
//! read and write it at the same time. To write a table here takes no call for each of its values, and to read a
//! counter none at all, so neither takes the right that the array was made with.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys;

/// The numbers of an array, 64 bits each.
#[derive(Debug)]
pub(crate) struct Mapped {
    address: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it owns its mapping, and whatever is in there is touched as atomics only.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the first `count` numbers of the array.
    pub(crate) fn new(array: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let address = sys::map_ring(array, count * size_of::<u64>(), 0)?.cast();
        Ok(Self { address, count })
    }

    /// The numbers.
    pub(crate) fn numbers(&self) -> &[AtomicU64] {
        // SAFETY: so many were mapped, at the beginning of a page and as long as this lives; the kernel's programs and
        // this process touch them as atomics only.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.count) }
    }

    /// Writes them all. There are as many as were mapped.
    pub(crate) fn fill(&self, numbers: impl Iterator<Item = u64>) {
        for (place, number) in self.numbers().iter().zip(numbers) {
            place.store(number, Ordering::Relaxed);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: one whole mapping, and nobody holds a reference into what is dropped. Should the kernel keep it, it
        // stays mapped to the end of the process, which harms nobody.
        let _ = unsafe { sys::munmap(self.address.cast(), self.count * size_of::<u64>()) };
    }
}
