//! What makes short calls short.
//!
//! Before the kernel runs an XDP program on order it puts it on a list of programs that it may jump to directly, and
//! takes it off again afterwards; both wait until every core has seen it, which takes ten milliseconds and more. A
//! program that is on the list already, because it is attached somewhere, costs nothing. So it is attached where no
//! packet ever comes: to the loopback device, which is down, of a network namespace that is made for this, has nobody
//! in it, and goes when the generator goes.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;

use crate::bpf::calls::{ABOVE_DRIVER, attach_to_interface};
use crate::sys;

/// The loopback device of every namespace.
const LOOPBACK: u32 = 1;
/// The namespace of the thread that opens it.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Keeps a program attached.
#[derive(Debug)]
pub(super) struct Anchor {
    _link: OwnedFd,
    /// Without it the namespace would end with the thread that made it.
    _namespace: File,
}

impl Anchor {
    /// Needs `CAP_SYS_ADMIN`, for the namespace. A thread of its own makes it, so that the caller stays where it is.
    pub(super) fn attach(program: BorrowedFd<'_>) -> io::Result<Self> {
        thread::scope(|scope| {
            let attached = thread::Builder::new().name("anchor".to_owned()).spawn_scoped(scope, || {
                sys::leave_network()?;
                let link = attach_to_interface(program, LOOPBACK, ABOVE_DRIVER)?;
                Ok(Self { _link: link, _namespace: File::open(OWN_NAMESPACE)? })
            })?;
            attached.join().unwrap_or_else(|_| Err(io::Error::other("the thread that attaches a program has panicked")))
        })
    }
}
