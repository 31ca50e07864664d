//! Why io_uring or AF_XDP cannot be used here, in words that an operator can act on.

use std::fmt;
use std::io;

/// What kind of obstacle it is: what a program does about it depends on that.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A right is missing, or a setting, a filter, a security module or a limit forbids it.
    Forbidden,
    /// The build, the kernel or the driver does not have it.
    Absent,
    /// Another program has the interface or its queue.
    Taken,
    /// What was asked for does not fit this interface: no such interface or queue, an MTU above the chunk.
    Unfit,
}

/// Why an engine cannot be used: what was tried, on what, the error, the cause and the cure.
#[derive(Debug)]
pub struct Refusal {
    obstacle: Obstacle,
    operation: String,
    error: io::Error,
    cause: String,
}

impl Refusal {
    pub(crate) fn new(
        obstacle: Obstacle,
        operation: impl Into<String>,
        error: io::Error,
        cause: impl Into<String>,
    ) -> Refusal {
        Refusal { obstacle, operation: operation.into(), error, cause: cause.into() }
    }

    /// The refusal of a call of io_uring.
    #[cfg_attr(not(feature = "io_uring"), allow(dead_code))]
    pub(crate) fn of_uring(operation: &'static str, error: io::Error) -> Refusal {
        let switch = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        let (obstacle, cause) = uring_cause(error.raw_os_error(), switch.as_deref());
        Refusal::new(obstacle, operation, error, cause)
    }

    /// The refusal of a build without io_uring.
    #[cfg_attr(feature = "io_uring", allow(dead_code))]
    pub(crate) fn uring_not_built() -> Refusal {
        let cause = "this program is built without the engine; build the crate mmsg with its feature io_uring";
        Refusal::new(Obstacle::Absent, "io_uring", io::ErrorKind::Unsupported.into(), cause)
    }

    /// What kind of obstacle it is.
    pub fn obstacle(&self) -> Obstacle {
        self.obstacle
    }

    /// Whether a missing right, a setting, a filter or a limit forbids it.
    pub fn is_forbidden(&self) -> bool {
        self.obstacle == Obstacle::Forbidden
    }

    /// The error of the kernel; of kind `InvalidInput` for what cannot be and was not asked of the kernel, of kind
    /// `Unsupported` for an engine that the crate is built without.
    pub fn error(&self) -> &io::Error {
        &self.error
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}; {}", self.operation, self.error, self.cause)
    }
}

/// An error of the same kind and text that holds the refusal.
impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        io::Error::new(refusal.error.kind(), refusal)
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Cause and cure. `switch` is what kernel.io_uring_disabled says; kernels before 6.6 do not have it.
#[cfg_attr(not(feature = "io_uring"), allow(dead_code))]
fn uring_cause(errno: Option<i32>, switch: Option<&str>) -> (Obstacle, &'static str) {
    use Obstacle::{Absent, Forbidden};
    match (errno, switch.map(str::trim)) {
        (Some(libc::EPERM | libc::EACCES), Some("2")) => (
            Forbidden,
            "kernel.io_uring_disabled = 2 forbids it to every process; sysctl kernel.io_uring_disabled=0 permits it",
        ),
        (Some(libc::EPERM | libc::EACCES), Some("1")) => (
            Forbidden,
            "kernel.io_uring_disabled = 1 forbids it to processes without CAP_SYS_ADMIN and outside the group of \
             kernel.io_uring_group; set that to a group of this process, or sysctl kernel.io_uring_disabled=0",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => (
            Forbidden,
            "a seccomp filter or a security module forbids it, as container runtimes do by default; let it pass \
             io_uring_setup, io_uring_register and io_uring_enter (in a systemd unit with SystemCallFilter=)",
        ),
        (Some(libc::ENOSYS), _) => {
            (Absent, "this kernel is built without CONFIG_IO_URING, or a seccomp filter hides it; it needs Linux 6.1")
        }
        (Some(libc::EINVAL), _) => {
            (Absent, "this kernel lacks IORING_SETUP_SINGLE_ISSUER and IORING_SETUP_DEFER_TASKRUN; it needs Linux 6.1")
        }
        (Some(libc::ENOMEM), _) => (
            Forbidden,
            "its rings count as locked memory, a few pages for each engine, and the limit is reached; raise `ulimit \
             -l` (in a systemd unit LimitMEMLOCK=)",
        ),
        (Some(libc::EMFILE), _) => {
            (Forbidden, "each engine needs one more file; raise `ulimit -n` (in a systemd unit LimitNOFILE=)")
        }
        _ => (Absent, "it needs Linux 6.1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_a_ring_names_its_own_cause_and_cure() {
        use Obstacle::{Absent, Forbidden};
        for (errno, switch, obstacle, expected) in [
            (libc::EPERM, Some("2\n"), Forbidden, "sysctl kernel.io_uring_disabled=0 permits it"),
            (libc::EPERM, Some("1\n"), Forbidden, "kernel.io_uring_group"),
            (libc::EPERM, Some("0\n"), Forbidden, "seccomp"),
            (libc::EPERM, None, Forbidden, "seccomp"),
            (libc::ENOSYS, None, Absent, "CONFIG_IO_URING"),
            (libc::EINVAL, Some("0"), Absent, "Linux 6.1"),
            (libc::ENOMEM, Some("0"), Forbidden, "LimitMEMLOCK"),
            (libc::EMFILE, Some("0"), Forbidden, "LimitNOFILE"),
        ] {
            let (found, text) = uring_cause(Some(errno), switch);
            assert!(found == obstacle && text.contains(expected), "errno {errno}, switch {switch:?}: {text}");
        }
    }

    #[test]
    fn a_refusal_keeps_its_kind_and_its_text_inside_an_error() {
        let error = io::Error::from(Refusal::uring_not_built());
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>()).expect("it is in there");
        assert!(!refusal.is_forbidden() && refusal.to_string().contains("feature io_uring"), "{refusal}");
        assert!(refusal.to_string().starts_with("io_uring: "), "{refusal}");
    }
}
