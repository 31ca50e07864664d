//! Plain bytes of an arena: spans that never overlap, each owned by one holder.
//!
//! Batches reach their memory by raw pointers, because the kernel writes it. Only the holder of a span writes
//! what is in it, so a span can be a slice like any other, while its pages are still those of one mapping, on the
//! memory node of the thread that asked for them.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::Arena;
use crate::arena::Backing;

/// Bytes of an arena.
#[derive(Debug)]
pub(crate) struct Span {
    base: NonNull<u8>,
    bytes: usize,
    /// Keeps the mapping.
    _arena: Arc<Arena>,
}

// SAFETY: a span is the only one with a pointer to its bytes, as a `Box<[u8]>` is.
unsafe impl Send for Span {}
// SAFETY: as above; shared methods only read.
unsafe impl Sync for Span {}

impl Span {
    /// `count` spans of `bytes` each in one arena, whose pages belong to the node of the calling thread.
    pub(crate) fn pool(count: usize, bytes: usize, huge_pages: bool) -> io::Result<(Vec<Span>, Backing)> {
        let whole = bytes.checked_mul(count).filter(|whole| *whole > 0).ok_or_else(|| {
            let text = format!("a pool of {count} packed batches of {bytes} bytes is not possible: ask for fewer");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        let (arena, backing) = Arena::new(whole, huge_pages)?;
        let arena = Arc::new(arena);
        let span = |index: usize| {
            // SAFETY: `index` is below `count`, and the arena has `count` times `bytes`.
            let base = unsafe { arena.base().add(index * bytes) };
            Span { base, bytes, _arena: Arc::clone(&arena) }
        };
        Ok(((0..count).map(span).collect(), backing))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is within a mapping that lives as long as the span; it was zeroed when it came, and no
        // other span covers it. Writing needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}
