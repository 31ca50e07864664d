//! Every system call of this crate, one wrapper each, each returning `io::Result`.
//!
//! All of them pass [`gate`] first, where a test can make the Nth call of a kind fail.
#![allow(unsafe_code)]
#![cfg_attr(miri, allow(dead_code))] // the interpreter's arenas come from the heap

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};

pub(crate) use bpf::{Call, gate};

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn length_of(bytes: &[u8]) -> io::Result<socklen_t> {
    socklen_t::try_from(bytes.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    gate(Call::Socket, 0)?;
    // SAFETY: takes no pointers.
    let fd = checked(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn bind(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    gate(Call::Bind, 0)?;
    let length = length_of(name)?;
    // SAFETY: `name` is readable for `length` bytes; the kernel copies them, whatever their alignment.
    checked(unsafe { libc::bind(fd.as_raw_fd(), name.as_ptr().cast(), length) }).map(drop)
}

pub(crate) fn connect(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    gate(Call::Connect, 0)?;
    let length = length_of(name)?;
    // SAFETY: as in `bind`.
    checked(unsafe { libc::connect(fd.as_raw_fd(), name.as_ptr().cast(), length) }).map(drop)
}

/// Writes the socket's own address into `name` and returns the part of it that was written.
pub(crate) fn getsockname<'a>(fd: BorrowedFd<'_>, name: &'a mut [u8]) -> io::Result<&'a [u8]> {
    gate(Call::GetSockName, 0)?;
    let mut length = length_of(name)?;
    // SAFETY: `name` is writable for `length` bytes, and the kernel writes no more than that.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), name.as_mut_ptr().cast(), &raw mut length) })?;
    let written = name.len().min(length as usize);
    Ok(&name[..written])
}

/// Sets an option whose value the kernel takes as plain bytes.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: &[u8]) -> io::Result<()> {
    gate(Call::SetSockOpt, 0)?;
    let length = length_of(value)?;
    // SAFETY: `value` is readable for `length` bytes and is copied during the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.as_ptr().cast(), length) }).map(drop)
}

pub(crate) fn set_option_int(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    set_option(fd, level, option, &value.to_ne_bytes())
}

/// Attaches a classic BPF program by one of the options that take one.
pub(crate) fn attach_program(fd: BorrowedFd<'_>, option: c_int, program: &[libc::sock_filter]) -> io::Result<()> {
    gate(Call::SetSockOpt, 0)?;
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel only reads the program; the pointer is mutable because C cannot say so.
    let description = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    let bytes = size_of::<libc::sock_fprog>() as socklen_t;
    let value = (&raw const description).cast::<c_void>();
    // SAFETY: `description` lives through the call and points at `length` instructions, which are copied.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, bytes) }).map(drop)
}

/// Reads an option into `words` and returns how many of them were written.
pub(crate) fn get_option(fd: BorrowedFd<'_>, level: c_int, option: c_int, words: &mut [u32]) -> io::Result<usize> {
    gate(Call::GetSockOpt, 0)?;
    let mut length = size_of_val(words) as socklen_t;
    let value = words.as_mut_ptr().cast::<c_void>();
    // SAFETY: `words` is writable for `length` bytes, and any bytes are valid integers.
    checked(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value, &raw mut length) })?;
    Ok(length as usize / size_of::<u32>())
}

pub(crate) fn get_option_int(fd: BorrowedFd<'_>, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut words = [0];
    get_option(fd, level, option, &mut words)?;
    Ok(words[0].cast_signed())
}

/// Whether a descriptor is closed on `exec`; an error, when it is not open.
pub(crate) fn is_closed_on_exec(number: RawFd) -> io::Result<bool> {
    gate(Call::Fcntl, 0)?;
    // SAFETY: takes no pointers and changes nothing.
    let flags = checked(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    Ok(flags & libc::FD_CLOEXEC != 0)
}

/// Makes a descriptor close on `exec`.
pub(crate) fn close_on_exec(number: RawFd) -> io::Result<()> {
    gate(Call::Fcntl, 0)?;
    // SAFETY: takes no pointers, and this process does not pass descriptors on.
    checked(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }).map(drop)
}

/// Makes a descriptor go through `exec`, like those that are passed.
#[cfg(test)]
pub(crate) fn keep_on_exec(number: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    checked(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }).map(drop)
}

pub(crate) fn shutdown_read(fd: BorrowedFd<'_>) -> io::Result<()> {
    gate(Call::Shutdown, 0)?;
    // SAFETY: takes no pointers.
    checked(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RD) }).map(drop)
}

/// Gives a signal an empty handler, so that it ends a system call and does nothing else. `false`: the process has a
/// handler of its own for it.
pub(crate) fn hear_nothing_of(signal: c_int) -> io::Result<bool> {
    extern "C" fn nothing(_: c_int) {}
    let nothing = nothing as extern "C" fn(c_int) as libc::sighandler_t;
    gate(Call::Sigaction, 0)?;
    // SAFETY: all zeroes is a valid action: the default one, without flags and with an empty mask.
    let (mut before, mut action) = unsafe { std::mem::zeroed::<(libc::sigaction, libc::sigaction)>() };
    // SAFETY: only asks; `before` lives through the call.
    checked(unsafe { libc::sigaction(signal, ptr::null(), &raw mut before) })?;
    if before.sa_sigaction == nothing {
        return Ok(true);
    }
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction) {
        return Ok(false);
    }
    action.sa_sigaction = nothing;
    // SAFETY: the handler touches nothing, so it may run at any moment on any thread. Without SA_RESTART it makes calls
    // end with EINTR, which is its purpose.
    checked(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })?;
    Ok(true)
}

/// Lets a signal reach the calling thread.
pub(crate) fn unblock_signal(signal: c_int) -> io::Result<()> {
    gate(Call::Sigmask, 0)?;
    // SAFETY: all zeroes is a valid set, which is emptied and then holds one signal; it lives through the calls.
    let result = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut())
    };
    // Unlike all others this call returns the error itself.
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// The number of the calling thread.
pub(crate) fn thread_id() -> libc::pid_t {
    // SAFETY: takes no pointers and cannot fail.
    unsafe { libc::gettid() }
}

/// Sends a signal to one thread of this process.
pub(crate) fn signal_thread(thread: libc::pid_t, signal: c_int) -> io::Result<()> {
    gate(Call::Tgkill, 0)?;
    // SAFETY: takes no pointers.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until the socket has data, an error, or its end (`POLLIN`, `POLLERR`, `POLLRDHUP`). 0: the time is over.
pub(crate) fn poll_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<libc::c_short> {
    gate(Call::Poll, 0)?;
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: one entry and one timeout, both alive through the call; no signal mask is given.
    checked(unsafe { libc::ppoll(&raw mut entry, 1, &raw const timeout, ptr::null()) })?;
    Ok(entry.revents)
}

/// Takes one record off the queue of errors that a socket with `IP_RECVERR` keeps.
pub(crate) fn drop_error_record(fd: BorrowedFd<'_>) {
    if gate(Call::Recvmsg, 0).is_err() {
        return;
    }
    // SAFETY: all zeroes is a valid header, with room for nothing.
    unsafe {
        let mut header = std::mem::zeroed::<libc::msghdr>();
        libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    }
}

/// Whether the socket has been shut down for reading.
pub(crate) fn is_shut_down(fd: BorrowedFd<'_>) -> io::Result<bool> {
    gate(Call::Poll, 0)?;
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry, alive through the call.
    checked(unsafe { libc::poll(&raw mut entry, 1, 0) })?;
    Ok(entry.revents & libc::POLLRDHUP != 0)
}

/// Receives up to `count` messages.
///
/// # Safety
/// `headers` must point at `count` headers whose pointers are null or writable for the lengths given with them, and
/// there must be no reference to that memory during the call.
pub(crate) unsafe fn recvmmsg(
    fd: BorrowedFd<'_>,
    headers: *mut libc::mmsghdr,
    count: usize,
    flags: c_int,
) -> io::Result<usize> {
    gate(Call::Recvmmsg, count)?;
    // SAFETY: the caller vouches for the headers. There is no timeout: the kernel looks at it only after a datagram has
    // come, so it would not end a wait.
    let received =
        checked(unsafe { libc::recvmmsg(fd.as_raw_fd(), headers, count as _, flags as _, ptr::null_mut()) })?;
    Ok(received as usize)
}

/// Receives one message under a header and writes its length there. `false`: it has no sender, so it is no datagram.
///
/// # Safety
/// As for [`recvmmsg`], for one header.
pub(crate) unsafe fn recvmsg(fd: BorrowedFd<'_>, header: *mut libc::mmsghdr, flags: c_int) -> io::Result<bool> {
    gate(Call::Recvmsg, 1)?;
    // SAFETY: the caller vouches for the header.
    unsafe {
        let length = libc::recvmsg(fd.as_raw_fd(), &raw mut (*header).msg_hdr, flags);
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        // With MSG_TRUNC the length is that of the message, which is far below the limit of the type.
        (*header).msg_len = u32::try_from(length).unwrap_or(u32::MAX);
        Ok((*header).msg_hdr.msg_namelen > 0)
    }
}

/// Sends up to `count` messages.
///
/// # Safety
/// `headers` must point at `count` headers whose pointers are null or readable for the lengths given with them.
pub(crate) unsafe fn sendmmsg(
    fd: BorrowedFd<'_>,
    headers: *mut libc::mmsghdr,
    count: usize,
    flags: c_int,
) -> io::Result<usize> {
    let count = gate(Call::Sendmmsg, count)?;
    // SAFETY: the caller vouches for the headers.
    let sent = checked(unsafe { libc::sendmmsg(fd.as_raw_fd(), headers, count as _, flags as _) })?;
    Ok(sent as usize)
}

/// Maps zeroed private memory with this protection.
pub(crate) fn mmap(bytes: usize, protection: c_int, extra_flags: c_int) -> io::Result<NonNull<u8>> {
    gate(Call::Mmap, 0)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | extra_flags;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Maps a ring that the kernel has made for a socket, as a whole.
pub(crate) fn map_ring(fd: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<NonNull<u8>> {
    gate(Call::Mmap, 0)?;
    // The fill ring lies at an offset of 33 bits, also on a machine of 32.
    #[cfg(not(target_env = "gnu"))]
    use libc::{mmap as map, off_t as Offset};
    #[cfg(target_env = "gnu")]
    use libc::{mmap64 as map, off64_t as Offset};
    let offset = Offset::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let address = unsafe { map(ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), offset) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Makes the kernel look at the rings of a socket; returns the socket's error.
pub(crate) fn kick(fd: BorrowedFd<'_>) -> io::Result<()> {
    gate(Call::Recvmsg, 0)?;
    // SAFETY: there is no buffer, and no room in it.
    let result = unsafe { libc::recv(fd.as_raw_fd(), ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks about an interface (`SIOCGIF...`). The answer begins at the first byte of the result.
pub(crate) fn ask_interface(fd: BorrowedFd<'_>, name: &str, request: libc::c_ulong) -> io::Result<[u8; 24]> {
    gate(Call::Ioctl, 0)?;
    let mut question = InterfaceRequest { name: [0; libc::IFNAMSIZ], answer: [0; 24] };
    let room = question.name.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ);
    room.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?.copy_from_slice(name.as_bytes());
    // SAFETY: as long as the kernel's `struct ifreq`, and alive through the call. The requests that this crate makes
    // begin with SIOCGIF; they write numbers and addresses there and follow no pointer.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &raw mut question) })?;
    Ok(question.answer)
}

/// `struct ifreq`, whose second half depends on the request.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    answer: [u8; 24],
}

/// How many bytes of a stream its peer has not acknowledged (`SIOCOUTQ`).
pub(crate) fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    gate(Call::Ioctl, 0)?;
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one int there, which lives through the call.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ as _, &raw mut bytes) })?;
    Ok(bytes)
}

/// Lets a range of memory be read and written.
///
/// # Safety
/// The range must lie within a mapping made by [`mmap`].
pub(crate) unsafe fn allow_use(address: NonNull<u8>, bytes: usize) -> io::Result<()> {
    gate(Call::Mprotect, 0)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller vouches for the range, and permitting more than before breaks no use of it.
    checked(unsafe { libc::mprotect(address.as_ptr().cast(), bytes, protection) }).map(drop)
}

/// The size of a page of memory here: 4, 16 or 64 KiB, as the kernel was built. `net.ipv4.udp_mem` and pinned memory
/// are counted in pages.
pub fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("every kernel has pages")
}

/// Gives memory back.
///
/// # Safety
/// `address` and `bytes` must be one whole mapping made by [`mmap`], and nothing may point into it any more.
pub(crate) unsafe fn munmap(address: NonNull<u8>, bytes: usize) -> io::Result<()> {
    gate(Call::Munmap, 0)?;
    // SAFETY: the caller vouches for it.
    checked(unsafe { libc::munmap(address.as_ptr().cast(), bytes) }).map(drop)
}

/// Advises the kernel on a range of memory.
///
/// # Safety
/// The range must lie within a mapping made by [`mmap`], and `advice` must be one that keeps its contents.
pub(crate) unsafe fn madvise(address: NonNull<u8>, bytes: usize, advice: c_int) -> io::Result<()> {
    gate(Call::Madvise, 0)?;
    // SAFETY: the caller vouches for it.
    checked(unsafe { libc::madvise(address.as_ptr().cast(), bytes, advice) }).map(drop)
}

/// Returns after every core has left the kernel code under RCU that it was in when the call was made: a softirq that
/// had looked up a socket by then has queued its datagram. `EINVAL` where the kernel keeps cores free of its tick
/// (`nohz_full`) and so cannot ask them.
pub(crate) fn wait_for_every_core() -> io::Result<()> {
    gate(Call::Membarrier, 0)?;
    // SAFETY: takes no pointers; the flags and the core are 0, as this command wants them.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks the machine to bring the memory at an address near this core. It reads nothing, so any address will do.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that has no effect on the program and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
