//! The names of the system calls of this crate: what the gate before each of them is told, and which of them a test
//! makes fail.

/// The kinds of system calls that can be made to fail.
#[cfg_attr(not(mmsg_faults), allow(unreachable_pub, dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `socket`
    Socket,
    /// `bind`
    Bind,
    /// `connect`
    Connect,
    /// `getsockname`
    GetSockName,
    /// `setsockopt`, whatever the option
    SetSockOpt,
    /// `getsockopt`, whatever the option
    GetSockOpt,
    /// `fcntl`
    Fcntl,
    /// `shutdown`
    Shutdown,
    /// `rt_sigaction`
    Sigaction,
    /// `rt_sigprocmask`
    Sigmask,
    /// `tgkill`
    Tgkill,
    /// `ppoll`
    Poll,
    /// `recvmmsg`
    Recvmmsg,
    /// `recvmsg`
    Recvmsg,
    /// `sendmmsg`
    Sendmmsg,
    /// `ioctl`, about an interface
    Ioctl,
    /// `mmap`
    Mmap,
    /// `mprotect`
    Mprotect,
    /// `munmap`
    Munmap,
    /// `madvise`
    Madvise,
    /// `membarrier`
    Membarrier,
    /// `unshare`
    Unshare,
    /// `bpf`, whatever the command
    Bpf,
    /// `perf_event_open`
    PerfEventOpen,
    /// `ioctl` and `read` on an event
    PerfEventControl,
    /// `io_uring_setup`
    IoUringSetup,
    /// `io_uring_register`, whatever the command
    IoUringRegister,
    /// `io_uring_enter`
    IoUringEnter,
}
