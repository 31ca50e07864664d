//! The two rings between an AF_XDP socket and this process: the fill ring, on which empty chunks go to the kernel, and
//! the receive ring, on which filled ones come back. Two numbers each, one written by either side, and an array.
//!
//! A chunk has one owner at a time: the kernel from [`FillRing::publish`] on, the caller from [`ReceiveRing::next`] on.
//! Only this file touches the shared numbers, which are atomics: what a number covers in the array is written before it
//! (release) and read after it (acquire).
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the parts of a ring lie in its mapping, as the kernel tells (`struct xdp_ring_offset`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) entries: usize,
    pub(super) flags: usize,
}

/// One filled chunk (`struct xdp_desc`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilledChunk {
    /// Where the frame begins, see [`Umem`](super::umem::Umem).
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) options: u32,
}

/// What both kinds of ring consist of.
#[derive(Debug)]
struct Shared {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<u8>,
    size: u32,
}

impl Shared {
    /// # Safety
    /// `base` begins a mapping in which the offsets are those of a ring of `size` entries, a power of two. It stays
    /// mapped as long as this lives, and only the kernel and this write there.
    unsafe fn at(base: NonNull<u8>, offsets: &Offsets, size: u32) -> Shared {
        assert!(size.is_power_of_two(), "the kernel makes no other rings");
        // SAFETY: within the mapping, by the caller, who passes on what the kernel said: aligned for their types.
        unsafe {
            Shared {
                producer: base.add(offsets.producer).cast(),
                consumer: base.add(offsets.consumer).cast(),
                flags: base.add(offsets.flags).cast(),
                entries: base.add(offsets.entries),
                size,
            }
        }
    }

    fn number(&self, of: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: one of the three above: mapped, aligned, and only touched as an atomic.
        unsafe { of.as_ref() }
    }

    /// Entry `index` of the ring, which goes round.
    fn entry<T>(&self, index: u32) -> NonNull<T> {
        // SAFETY: the remainder is below the number of entries, and the array has so many of this type.
        unsafe { self.entries.cast::<T>().add((index & (self.size - 1)) as usize) }
    }
}

/// Empty chunks on their way to the kernel.
#[derive(Debug)]
pub(super) struct FillRing {
    shared: Shared,
    /// The entry that is written next; the kernel knows of those before the last [`publish`](Self::publish).
    next: u32,
    /// How far the kernel had read when that was last looked at.
    read: u32,
}

impl FillRing {
    /// # Safety
    /// As for [`Shared::at`], and it is the fill ring of a socket that is not bound yet.
    pub(super) unsafe fn at(base: NonNull<u8>, offsets: &Offsets, size: u32) -> FillRing {
        // SAFETY: the caller vouches for it.
        FillRing { shared: unsafe { Shared::at(base, offsets, size) }, next: 0, read: 0 }
    }

    /// Writes the address of an empty chunk. `false`: there is no room for it now.
    ///
    /// # Safety
    /// The chunk is the kernel's to write from the next [`publish`](Self::publish) on, until it comes out of the
    /// receive ring: no other code may touch it, and it was not given already.
    pub(super) unsafe fn put(&mut self, address: u64) -> bool {
        if self.next.wrapping_sub(self.read) >= self.shared.size {
            self.read = self.shared.number(self.shared.consumer).load(Ordering::Acquire);
            if self.next.wrapping_sub(self.read) >= self.shared.size {
                return false;
            }
        }
        // SAFETY: an entry of the ring, aligned for it. The kernel has read it, as just looked at, and reads it again
        // only after it is published.
        unsafe { self.shared.entry::<u64>(self.next).write(address) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Gives the kernel what was put.
    pub(super) fn publish(&mut self) {
        self.shared.number(self.shared.producer).store(self.next, Ordering::Release);
    }

    /// Whether the kernel has to be called before it looks at the ring again.
    pub(super) fn needs_call(&self) -> bool {
        self.shared.number(self.shared.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Filled chunks on their way from the kernel.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    shared: Shared,
    /// The entry that is read next; the kernel knows of those before the last [`release`](Self::release).
    next: u32,
    /// How far the kernel had written when that was last looked at.
    written: u32,
}

impl ReceiveRing {
    /// # Safety
    /// As for [`Shared::at`], and it is the receive ring of a socket that is not bound yet.
    pub(super) unsafe fn at(base: NonNull<u8>, offsets: &Offsets, size: u32) -> ReceiveRing {
        // SAFETY: the caller vouches for it.
        ReceiveRing { shared: unsafe { Shared::at(base, offsets, size) }, next: 0, written: 0 }
    }

    /// The next filled chunk.
    #[inline]
    pub(super) fn next(&mut self) -> Option<FilledChunk> {
        if self.next == self.written && self.ready() == 0 {
            return None;
        }
        // SAFETY: an entry of the ring, aligned for it; the kernel wrote it before it said so, and writes it again only
        // after it is released. Any bytes are a valid entry.
        let filled = unsafe { self.shared.entry::<FilledChunk>(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(filled)
    }

    /// The filled chunk that is `ahead` of the next one, as far as the kernel is known to have written.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> Option<FilledChunk> {
        // SAFETY: as in `next`.
        (self.written.wrapping_sub(self.next) > ahead)
            .then(|| unsafe { self.shared.entry::<FilledChunk>(self.next.wrapping_add(ahead)).read() })
    }

    /// How many filled chunks are there.
    pub(super) fn ready(&mut self) -> u32 {
        self.written = self.shared.number(self.shared.producer).load(Ordering::Acquire);
        self.written.wrapping_sub(self.next)
    }

    /// Tells the kernel that what was read may be overwritten.
    pub(super) fn release(&mut self) {
        self.shared.number(self.shared.consumer).store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    const OFFSETS: Offsets = Offsets { producer: 0, consumer: 64, flags: 128, entries: 192 };
    const SIZE: u32 = 4;

    /// A ring in plain memory, and its numbers as the kernel has them.
    struct Kernel(Arena);

    impl Kernel {
        fn new() -> Kernel {
            Kernel(Arena::new(4096, false).expect("memory").0)
        }

        fn number(&self, offset: usize) -> &AtomicU32 {
            // SAFETY: within the arena and aligned; both sides use it as an atomic.
            unsafe { self.0.base().add(offset).cast::<AtomicU32>().as_ref() }
        }

        fn entry<T>(&self, index: u32) -> NonNull<T> {
            // SAFETY: within the arena.
            unsafe { self.0.base().add(OFFSETS.entries).cast::<T>().add((index % SIZE) as usize) }
        }
    }

    /// Puts addresses until there is no room, and returns how many were ever put.
    fn fill(ring: &mut FillRing, given: u64) -> u64 {
        // SAFETY: there is no memory at these addresses, and no kernel that would write there.
        (given..).find(|number| !unsafe { ring.put(1000 + number) }).expect("it is full some time")
    }

    #[test]
    fn the_fill_ring_takes_as_much_as_the_kernel_has_read_and_goes_round() {
        let kernel = Kernel::new();
        // SAFETY: the arena outlives the ring, has room for it, and only the ring writes its producer.
        let mut ring = unsafe { FillRing::at(kernel.0.base(), &OFFSETS, SIZE) };
        let (mut given, mut taken) = (0, 0);
        for round in 0..5_u32 {
            let before = given;
            given = fill(&mut ring, given);
            let shown = kernel.number(OFFSETS.producer).load(Ordering::Acquire);
            assert_eq!(u64::from(shown), before, "not before it is published");
            ring.publish();
            assert_eq!(u64::from(kernel.number(OFFSETS.producer).load(Ordering::Acquire)), given);
            assert_eq!(given, u64::from(taken + SIZE), "no more than there is room for");
            for _ in 0..round.clamp(1, 3) {
                // SAFETY: published, so the kernel's to read.
                assert_eq!(unsafe { kernel.entry::<u64>(taken).read() }, 1000 + u64::from(taken));
                taken += 1;
            }
            kernel.number(OFFSETS.consumer).store(taken, Ordering::Release);
        }
    }

    #[test]
    fn the_receive_ring_hands_out_each_chunk_once_and_in_order() {
        let kernel = Kernel::new();
        // SAFETY: as above.
        let mut ring = unsafe { ReceiveRing::at(kernel.0.base(), &OFFSETS, SIZE) };
        assert_eq!((ring.next(), ring.ready()), (None, 0));
        let mut written = 0;
        for count in [1, 4, 3, 2, 4, 4] {
            for _ in 0..count {
                let filled = FilledChunk { address: u64::from(written) * 2048, bytes: written, options: 0 };
                // SAFETY: not ready, so the kernel's to write.
                unsafe { kernel.entry::<FilledChunk>(written).write(filled) };
                written += 1;
            }
            kernel.number(OFFSETS.producer).store(written, Ordering::Release);
            assert_eq!(ring.ready(), count);
            let read: Vec<u32> = std::iter::from_fn(|| ring.next()).map(|filled| filled.bytes).collect();
            assert_eq!(read, (written - count..written).collect::<Vec<_>>());
            assert_eq!(kernel.number(OFFSETS.consumer).load(Ordering::Acquire), written - count);
            ring.release();
            assert_eq!(kernel.number(OFFSETS.consumer).load(Ordering::Acquire), written);
        }
    }

    #[test]
    fn both_rings_survive_the_end_of_their_numbers() {
        let kernel = Kernel::new();
        for offset in [OFFSETS.producer, OFFSETS.consumer] {
            kernel.number(offset).store(u32::MAX - 1, Ordering::Relaxed);
        }
        // SAFETY: as above.
        let mut ring = unsafe { FillRing::at(kernel.0.base(), &OFFSETS, SIZE) };
        (ring.next, ring.read) = (u32::MAX - 1, u32::MAX - 1);
        assert_eq!(fill(&mut ring, 0), u64::from(SIZE));
        ring.publish();
        assert_eq!(kernel.number(OFFSETS.producer).load(Ordering::Relaxed), 2);
        assert!(!ring.needs_call());
        kernel.number(OFFSETS.flags).store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        assert!(ring.needs_call());
    }
}
