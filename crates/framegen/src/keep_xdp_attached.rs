//! Keeps the program attached to an unused interface, so that each run of it takes no longer than its frames.
//!
//! Before the kernel runs an XDP program on order it puts it on a list of programs that it may jump to directly, and
//! afterwards removes it; both wait until every core has seen it, ten milliseconds and more. An attached program is on
//! that list already. So it is attached where no packet ever comes: to the loopback device, which is down, of a new and
//! empty network namespace, which ends with the generator.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;

use bpf::{Call, XDP_GENERIC, attach_to_interface, gate};
use nix::sched::{CloneFlags, unshare};

/// The loopback device of every namespace.
const LOOPBACK: u32 = 1;
/// The namespace of the thread that opens it.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Keeps a program attached until it is dropped.
#[derive(Debug)]
pub(crate) struct Attachment {
    _link: OwnedFd,
    /// Keeps the namespace, which would otherwise end with the thread that made it.
    _namespace: File,
}

impl Attachment {
    /// Needs `CAP_SYS_ADMIN`, for the namespace. A thread of its own makes it, so that the caller stays in its own.
    pub(crate) fn new(program: BorrowedFd<'_>) -> io::Result<Self> {
        thread::scope(|scope| {
            let attached = thread::Builder::new().name("xdp-namespace".to_owned()).spawn_scoped(scope, || {
                gate(Call::Unshare, 0)?;
                unshare(CloneFlags::CLONE_NEWNET)?;
                let link = attach_to_interface(program, LOOPBACK, XDP_GENERIC)?;
                Ok(Self { _link: link, _namespace: File::open(OWN_NAMESPACE)? })
            })?;
            attached.join().unwrap_or_else(|_| Err(io::Error::other("the thread that attaches a program has panicked")))
        })
    }
}
