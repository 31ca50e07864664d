//! The one system call of this crate that needs unsafe code, the ethtool ioctl. Everything else goes through safe
//! wrappers of others.
//!
//! The kernel writes its answer into a buffer whose length it has only been told, and kernels before December 2025 did
//! not always listen: a driver whose number of counters grew between two calls wrote past the end (CVE-2025-68795). So
//! every request lies at the very end of a mapping, with a page behind it that may not be touched. What would have been
//! memory damage is then an EFAULT.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// `SIOCETHTOOL`.
const ETHTOOL: libc::Ioctl = 0x8946;

/// A request lies on a boundary that suits every field in it.
const ALIGNMENT: usize = 8;

/// What a request may need at most; nothing that a driver says makes us ask for more.
pub(crate) const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Bytes that end where a page begins that may not be touched.
#[derive(Debug)]
pub(crate) struct Guarded {
    mapping: NonNull<libc::c_void>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it alone owns its mapping, which is of the process and of no thread, and it hands out its memory only under
// its own borrow.
unsafe impl Send for Guarded {}

impl Guarded {
    /// `bytes` zeroes. The length is rounded up to a multiple of 8, as the kernel's own structures are.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        if bytes == 0 || bytes > REQUEST_BYTES_MAX {
            let text = format!("a request of {bytes} bytes is not possible: the most is {REQUEST_BYTES_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let page = page_bytes();
        let usable = bytes.next_multiple_of(page);
        let mapped_bytes = usable + page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping, wherever the kernel likes; it overlaps nothing.
        let mapping =
            unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let mapping = match NonNull::new(mapping) {
            Some(mapping) if mapping.as_ptr() != libc::MAP_FAILED => mapping,
            _ => return Err(io::Error::last_os_error()),
        };
        // From here on dropping it unmaps what was mapped.
        // SAFETY: `usable - bytes` is inside the mapping, because `bytes` is at most `usable`.
        let start = unsafe { mapping.cast::<u8>().add(usable - bytes) };
        let guarded = Self { mapping, mapped_bytes, start, bytes };
        // SAFETY: the last page of our own mapping, which holds none of the bytes.
        let result = unsafe { libc::mprotect(mapping.as_ptr().byte_add(usable), page, libc::PROT_NONE) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(guarded) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `bytes` bytes of our own mapping, zeroed by the kernel, until we are dropped.
        // The kernel writes to them only during `ethtool`, which borrows us mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and no borrow of it outlives us. Should the kernel refuse, it stays mapped.
        unsafe { libc::munmap(self.mapping.as_ptr(), self.mapped_bytes) };
    }
}

fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("a page has a size")
}

/// Asks the driver of `interface`.
pub(crate) fn ethtool(socket: BorrowedFd<'_>, interface: &str, request: &mut Guarded) -> io::Result<()> {
    seam::pass()?;
    #[cfg(test)]
    if let Some(answer) = seam::answer(request.bytes_mut()) {
        return answer;
    }
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let mut question: libc::ifreq = unsafe { std::mem::zeroed() };
    // The kernel's names have 15 bytes and a zero.
    if interface.is_empty() || interface.len() >= question.ifr_name.len() || interface.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in question.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    question.ifr_ifru.ifru_data = request.start.as_ptr().cast();
    loop {
        // SAFETY: `question` is a whole `ifreq`, and its data pointer is valid for reads and writes of the request,
        // which is borrowed mutably. A kernel that writes more than the request holds meets the guard page and fails.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL, &raw mut question) };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Where tests make the Nth call of their thread fail.
pub(crate) mod seam {
    #[cfg(test)]
    thread_local! {
        /// Calls to let pass, and the error after them.
        pub(crate) static FAIL: std::cell::Cell<Option<(usize, i32)>> = const { std::cell::Cell::new(None) };
    }

    /// A driver of a test's own.
    #[cfg(test)]
    pub(crate) type Driver = Box<dyn FnMut(&mut [u8]) -> std::io::Result<()>>;

    #[cfg(test)]
    thread_local! {
        /// Answers instead of the kernel.
        pub(crate) static DRIVER: std::cell::RefCell<Option<Driver>> = const { std::cell::RefCell::new(None) };
    }

    #[cfg(test)]
    pub(super) fn answer(request: &mut [u8]) -> Option<std::io::Result<()>> {
        DRIVER.with_borrow_mut(|driver| driver.as_mut().map(|driver| driver(request)))
    }

    #[cfg(test)]
    pub(super) fn pass() -> std::io::Result<()> {
        FAIL.with(|fail| match fail.get() {
            Some((0, errno)) => {
                fail.set(None);
                Err(std::io::Error::from_raw_os_error(errno))
            }
            Some((calls, errno)) => {
                fail.set(Some((calls - 1, errno)));
                Ok(())
            }
            None => Ok(()),
        })
    }

    #[cfg(not(test))]
    #[inline]
    #[expect(clippy::unnecessary_wraps, reason = "the test's version fails")]
    pub(super) fn pass() -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_end_where_the_guard_page_begins() {
        for length in [1, 8, 36, 192, 4096, 5000] {
            let mut guarded = Guarded::new(length).expect("memory");
            assert_eq!(guarded.bytes().len(), length.next_multiple_of(8));
            assert!(guarded.bytes().iter().all(|&byte| byte == 0));
            guarded.bytes_mut().fill(0xff);
            let end = guarded.bytes().as_ptr_range().end.addr();
            assert_eq!(end % page_bytes(), 0);
        }
    }

    #[test]
    fn a_kernel_that_writes_past_the_end_gets_efault() {
        // The kernel is asked to write 16 bytes to a place where 8 are left.
        let guarded = Guarded::new(8).expect("memory");
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let [reader, writer] = pipe;
        // SAFETY: sixteen readable bytes; then a read into memory that the kernel finds unwritable after eight.
        let (written, read) = unsafe {
            let written = libc::write(writer, [1_u8; 16].as_ptr().cast(), 16);
            (written, libc::read(reader, guarded.start.as_ptr().cast(), 16))
        };
        assert_eq!(written, 16);
        assert!(read < 16, "the kernel wrote into the guard page");
        // SAFETY: our own descriptors.
        unsafe {
            libc::close(reader);
            libc::close(writer);
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(Guarded::new(0).is_err());
        assert!(Guarded::new(REQUEST_BYTES_MAX + 1).is_err());
    }
}
