//! A socket of AF_XDP: its memory registered, its two rings mapped, bound to one queue of an interface.
//!
//! The kernel pins the pages of the memory when it is registered and releases them after the socket is closed, with
//! zero-copy a moment later. Until then they have no other use, whatever this process unmaps: what a device still
//! writes goes into memory without an owner. So a socket can be dropped at any time, and nothing is leaked.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use super::refusal::Step;
use super::rings::{FillRing, FilledChunk, Offsets, ReceiveRing};
use super::umem::Umem;
use crate::refusal::Refusal;
use crate::sys;

/// `AF_XDP`, which some C libraries lack.
const FAMILY: libc::c_int = 44;

/// Frames are only received, but the kernel binds no socket without a ring for sent ones.
const COMPLETION_ENTRIES: u32 = 2;

/// Makes a socket for an engine, here or in another process that passes it on. It takes `CAP_NET_RAW`; using it takes
/// no right.
pub fn socket() -> Result<OwnedFd, Refusal> {
    make("a socket for a receive queue")
}

pub(super) fn make(subject: &str) -> Result<OwnedFd, Refusal> {
    sys::socket(FAMILY, libc::SOCK_RAW, 0).map_err(|error| Refusal::of(Step::Socket, subject, error))
}

/// The socket, its rings and its memory.
#[derive(Debug)]
pub(super) struct XdpSocket {
    // The rings come first, so that they are gone before their mappings.
    pub(super) fill: FillRing,
    pub(super) received: ReceiveRing,
    fd: OwnedFd,
    zero_copy: bool,
    _mappings: [Mapping; 2],
}

impl XdpSocket {
    /// A socket that is not bound yet, with rings for so many chunks of `umem`, from one that was just [made](make).
    /// `subject` is what a refusal is about.
    ///
    /// # Safety
    /// The memory of `umem` is mapped as long as the socket lives. From the moment that a chunk is put on the fill ring
    /// until it comes out of the receive ring, or the socket is dropped, no code reads or writes it.
    pub(super) unsafe fn new(fd: OwnedFd, umem: &Umem, chunks: usize, subject: &str) -> Result<XdpSocket, Refusal> {
        let refuse = |step| move |error| Refusal::of(step, subject, error);
        register(fd.as_fd(), umem).map_err(refuse(Step::Memory))?;
        // The kernel says late how far it has read the fill ring. With twice the chunks there is always room for one.
        let entries = |count: usize| {
            let count = count.checked_next_power_of_two().and_then(|count| u32::try_from(count).ok());
            count.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
        };
        let rings = || -> io::Result<_> {
            let (fill, receive) = (entries(2 * chunks)?, entries(chunks)?);
            let set = |option, entries: u32| sys::set_option(fd.as_fd(), libc::SOL_XDP, option, &entries.to_ne_bytes());
            set(libc::XDP_UMEM_FILL_RING, fill)?;
            set(libc::XDP_UMEM_COMPLETION_RING, COMPLETION_ENTRIES)?;
            set(libc::XDP_RX_RING, receive)?;
            let [of_receive, _, of_fill, _] = offsets(fd.as_fd())?;
            let place = libc::XDP_UMEM_PGOFF_FILL_RING;
            let fill_map = Mapping::of(fd.as_fd(), of_fill.entries + fill as usize * size_of::<u64>(), place)?;
            let place = libc::XDP_PGOFF_RX_RING as u64;
            let bytes = of_receive.entries + receive as usize * size_of::<FilledChunk>();
            let receive_map = Mapping::of(fd.as_fd(), bytes, place)?;
            // SAFETY: each mapping is that of a ring of so many entries, divided as the kernel has just said, and lives
            // beside the ring. The socket is new and has no other owner.
            let rings = unsafe {
                (FillRing::at(fill_map.base, &of_fill, fill), ReceiveRing::at(receive_map.base, &of_receive, receive))
            };
            Ok((rings, [fill_map, receive_map]))
        };
        let ((fill, received), _mappings) = rings().map_err(refuse(Step::Rings))?;
        Ok(XdpSocket { fill, received, fd, zero_copy: false, _mappings })
    }

    /// Binds it to a queue. With `zero_copy` the device writes the frames, or the call fails.
    pub(super) fn bind(&mut self, interface: u32, queue: u32, zero_copy: bool) -> io::Result<()> {
        let how = if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let mut name = [0; 16];
        name[..2].copy_from_slice(&(FAMILY as u16).to_ne_bytes());
        name[2..4].copy_from_slice(&(how | libc::XDP_USE_NEED_WAKEUP).to_ne_bytes());
        name[4..8].copy_from_slice(&interface.to_ne_bytes());
        name[8..12].copy_from_slice(&queue.to_ne_bytes());
        sys::bind(self.fd.as_fd(), &name)?;
        self.zero_copy = zero_copy;
        Ok(())
    }

    /// Gives the kernel the chunks on the fill ring, and calls it if it does not look by itself.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        self.fill.publish();
        if self.fill.needs_call() { self.kick() } else { Ok(()) }
    }

    /// Lets the kernel work for this socket: poll the device where busy polling is on, and look at the fill ring.
    pub(super) fn kick(&self) -> io::Result<()> {
        match sys::kick(self.fd.as_fd()) {
            // An interface that is down comes up again; one that is gone does not (ENXIO). Linux 5.10 cannot be asked
            // (EOPNOTSUPP): there a wait lets it work. After a signal the next frames bring another call.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENETDOWN | libc::EAGAIN | libc::EBUSY | libc::EOPNOTSUPP | libc::EINTR)
                ) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Waits until a frame is there. `false`: the time is over, or a signal came.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        match sys::poll_readable(self.fd.as_fd(), timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            result => result.map(|events| events != 0),
        }
    }

    /// Makes waits poll the device's queue for so long before they sleep.
    pub(super) fn set_busy_poll_us(&self, microseconds: u32) -> io::Result<()> {
        let value = libc::c_int::try_from(microseconds).unwrap_or(libc::c_int::MAX);
        sys::set_option_int(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_BUSY_POLL, value)
    }

    /// What the kernel has counted.
    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        Statistics::read(self.fd.as_fd(), self.zero_copy)
    }

    /// Reads the same from other threads.
    pub(super) fn counter(&self) -> io::Result<Counter> {
        Ok(Counter { fd: self.fd.try_clone()?, zero_copy: self.zero_copy })
    }

    /// The number of its descriptor, as the map of sockets takes it.
    pub(super) fn number(&self) -> [u8; 4] {
        self.fd.as_raw_fd().to_ne_bytes()
    }
}

/// Tells the kernel of the memory (`struct xdp_umem_reg`).
fn register(fd: BorrowedFd<'_>, umem: &Umem) -> io::Result<()> {
    let mut bytes = [0; 32];
    // The address leaves our sight here: the kernel writes there.
    bytes[..8].copy_from_slice(&(umem.base.as_ptr().expose_provenance() as u64).to_ne_bytes());
    bytes[8..16].copy_from_slice(&(umem.bytes as u64).to_ne_bytes());
    bytes[16..20].copy_from_slice(&(umem.chunk_bytes as u32).to_ne_bytes());
    bytes[20..24].copy_from_slice(&(umem.headroom as u32).to_ne_bytes());
    bytes[24..28].copy_from_slice(&libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG.to_ne_bytes());
    sys::set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &bytes)
}

/// The parts of the rings for receiving, sending, filling and completing (`struct xdp_mmap_offsets`).
fn offsets(fd: BorrowedFd<'_>) -> io::Result<[Offsets; 4]> {
    let mut words = [0; 32];
    if sys::get_option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut words)? < words.len() {
        // Linux before 5.4 has no flags in its rings.
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let numbers: [u64; 16] = doubles(&words);
    Ok(std::array::from_fn(|ring| {
        let number = |field: usize| numbers[4 * ring + field] as usize;
        Offsets { producer: number(0), consumer: number(1), entries: number(2), flags: number(3) }
    }))
}

/// A ring's memory, which the kernel shares.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn of(fd: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<Mapping> {
        let bytes = bytes.next_multiple_of(sys::page_bytes());
        Ok(Mapping { base: sys::map_ring(fd, bytes, offset)?, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` got, and the ring over it goes first. If the kernel refuses, it stays mapped.
        let _ = unsafe { sys::munmap(self.base, self.bytes) };
    }
}

/// What the kernel has counted of a queue since its engine was made (`struct xdp_statistics`).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Whether the device writes the frames itself; otherwise the kernel copies them.
    pub zero_copy: bool,
    /// Frames for which the kernel had no chunk, or none as long as the frame (`rx_dropped`).
    pub rx_dropped: u64,
    /// Frames for which the receive ring had no room (`rx_ring_full`). It has room for every chunk, so this stays 0.
    pub rx_ring_full: u64,
    /// How often a chunk was wanted and the fill ring empty. Where the kernel copies, `rx_dropped` includes each of
    /// these: never add the two. Where the device writes, it counts attempts and not frames.
    pub rx_fill_ring_empty_descs: u64,
    /// Entries of the rings that the kernel refused; stays 0.
    pub rx_invalid_descs: u64,
}

impl Statistics {
    /// Frames that were handed over and lost before they were in the ring. `None` where the device writes them by
    /// itself: then the device's own counters of the queue tell.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        (!self.zero_copy).then_some(self.rx_dropped + self.rx_ring_full)
    }

    /// Asks the kernel about a socket.
    pub(super) fn read(socket: BorrowedFd<'_>, zero_copy: bool) -> io::Result<Statistics> {
        let mut words = [0; 12];
        let written = sys::get_option(socket, libc::SOL_XDP, libc::XDP_STATISTICS, &mut words)?;
        if written < words.len() {
            // Before Linux 5.9 some of the numbers are sums of others.
            return Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT));
        }
        let [rx_dropped, rx_invalid_descs, _, rx_ring_full, rx_fill_ring_empty_descs, _] = doubles(&words);
        Ok(Statistics { zero_copy, rx_dropped, rx_ring_full, rx_fill_ring_empty_descs, rx_invalid_descs })
    }
}

/// Reads what the kernel has lost of an engine's queue, on any thread.
///
/// It keeps the engine's socket open: another socket gets the queue only after both are dropped.
#[derive(Debug)]
pub struct Counter {
    pub(super) fd: OwnedFd,
    pub(super) zero_copy: bool,
}

impl Counter {
    /// See [`Statistics::lost`].
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn lost(&self) -> io::Result<Option<u64>> {
        Statistics::read(self.fd.as_fd(), self.zero_copy).map(|statistics| statistics.lost())
    }

    /// Whether the device writes the frames itself.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }
}

/// 64-bit numbers from their halves in memory.
pub(super) fn doubles<const N: usize>(words: &[u32]) -> [u64; N] {
    std::array::from_fn(|place| {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&words[2 * place].to_ne_bytes());
        bytes[4..].copy_from_slice(&words[2 * place + 1].to_ne_bytes());
        u64::from_ne_bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_64_bits_is_read_as_it_lies_in_memory() {
        let bytes = 0x0123_4567_89ab_cdef_u64.to_ne_bytes();
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        assert_eq!(doubles::<1>(&[word(0), word(4)]), [0x0123_4567_89ab_cdef]);
    }
}
