//! The sandbox: what the threads of the daemon give up when they have what they need, so that an attacker who takes one
//! over through a datagram gets little.
//!
//! A thread gives up its capabilities, promises never to gain a privilege again, and lets the kernel restrict it to the
//! paths (Landlock) and the system calls (seccomp) of its roles. All four belong to a thread and not to the process. So
//! each thread enters by itself when its set-up is done: a lane when its socket, ring and memory are made, a consumer
//! when it runs on its cores, the main thread last of all. No thread can leave.
//!
//! A call that is not on the list fails with ENOSYS, as on a kernel that does not have it, and the thread goes on. To
//! kill the process would be the stronger answer, and the wrong one for a collector: the list has what a C library
//! happens to call today. After an update of the library a missing call means that it uses an older one, or that one
//! function fails and says why; killing would lose all that arrives.
#![forbid(unsafe_code)]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

mod call_arguments;
mod capabilities;
mod escape_trial;
mod paths;
pub mod privilege_helper;
mod sandbox;
mod system_calls;

pub use self::capabilities::{give_up_files_of_others, has_locked_memory_counted, has_rights_of};
pub use self::escape_trial::{EscapeAttempt, attempts};
pub use self::paths::{AllowedPaths, Connects};
pub use self::sandbox::{PathRules, Sandbox};

/// Whether there is a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SandboxMode {
    /// As much of it as the kernel has, and one warning where something is missing.
    #[default]
    Auto,
    /// All of it, or no start.
    Require,
    Off,
}
