//! The sandbox inside: what the threads of the daemon give up when they have what they need, so that whoever takes one
//! over through a datagram has little to take.
//!
//! A thread gives up its capabilities, promises never to gain a privilege again, and lets the kernel hold it to the
//! paths (Landlock) and the system calls (seccomp) of its role. All four belong to a thread and not to the process,
//! so each thread goes in by itself, when its birth is over: a lane when its socket, ring and memory are made, a
//! consumer when it sits on its cores, the main thread last of all. Nothing leads out again.
//!
//! A call that is not on the list fails with ENOSYS, as on a kernel that has none, and the thread goes on. To kill the
//! process would be the stronger answer, and the wrong one for a collector: what is on the list is what a C library
//! happens to call today. An update of it finds that a call is missing and uses an older one, or it costs one function
//! that says why it fails, never all that arrives.
#![forbid(unsafe_code)]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

mod arguments;
mod calls;
mod capabilities;
mod paths;
pub mod products;
mod trial;
mod walls;
pub mod warden;

pub use self::capabilities::{give_up_files_of_others, has_locked_memory_counted, has_rights_of};
pub use self::paths::{AllowedPaths, Connects};
pub use self::trial::{Attempt, attempts};
pub use self::walls::{PathRules, Sandbox};

/// Whether there is a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// As much of it as the kernel has, and one warning where something is missing.
    #[default]
    Auto,
    /// All of it, or no start.
    Require,
    Off,
}
