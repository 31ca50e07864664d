//! What the kernel counts for an AF_XDP socket, also for another thread than that of its engine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys;

/// The numbers that the kernel counts (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) rx_dropped: u64,
    pub(super) rx_invalid_descs: u64,
    pub(super) rx_ring_full: u64,
    pub(super) rx_fill_ring_empty_descs: u64,
}

/// Reads what the kernel has lost of an engine's queue, on any thread.
///
/// It keeps the engine's socket open: the queue is nobody else's to have before both are dropped.
#[derive(Debug)]
pub struct Counter {
    pub(super) fd: OwnedFd,
    pub(super) zero_copy: bool,
}

impl Counter {
    /// Frames that were handed over and lost before they were in the ring, as
    /// [`Statistics::lost`](super::Statistics::lost).
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn lost(&self) -> io::Result<Option<u64>> {
        let counted = read(self.fd.as_fd())?;
        Ok((!self.zero_copy).then_some(counted.rx_dropped + counted.rx_ring_full))
    }

    /// Whether the device writes the frames itself.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }
}

/// What the kernel has counted for a socket.
pub(super) fn read(socket: BorrowedFd<'_>) -> io::Result<Counted> {
    let mut words = [0; 12];
    let written = sys::get_option(socket, libc::SOL_XDP, libc::XDP_STATISTICS, &mut words)?;
    if written < words.len() {
        // Before Linux 5.9 some of the numbers are sums of others.
        return Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT));
    }
    let [rx_dropped, rx_invalid_descs, _, rx_ring_full, rx_fill_ring_empty_descs, _] = doubles(&words);
    Ok(Counted { rx_dropped, rx_invalid_descs, rx_ring_full, rx_fill_ring_empty_descs })
}

/// Numbers of 64 bits, from halves as they lie in memory.
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
