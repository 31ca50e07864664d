//! Why io_uring cannot be used here, in words that an operator can act on. Reads one file under /proc, nothing else.

use std::fmt;
use std::io;

const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Why there is no io_uring here: what was tried, the error, the cause and the cure.
#[derive(Debug)]
pub struct Refusal {
    operation: &'static str,
    error: io::Error,
    cause: String,
}

impl Refusal {
    /// A refusal of `operation` with this error.
    #[cfg_attr(not(feature = "io_uring"), allow(dead_code))]
    pub(crate) fn of(operation: &'static str, error: io::Error) -> Refusal {
        let cause = cause(error.raw_os_error(), std::fs::read_to_string(SWITCH).ok().as_deref());
        Refusal { operation, error, cause }
    }

    /// The refusal of a build without the engine.
    #[cfg_attr(feature = "io_uring", allow(dead_code))]
    pub(crate) fn not_built() -> Refusal {
        let cause =
            "this program is built without the engine; build the crate mmsg with its feature io_uring".to_owned();
        Refusal { operation: "io_uring", error: io::ErrorKind::Unsupported.into(), cause }
    }

    /// Whether a setting, a filter or a limit forbids it. Otherwise the kernel or the build does not have it.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOMEM | libc::EMFILE))
    }

    /// The error of the kernel; of kind `Unsupported` where the crate is built without the engine.
    pub fn error(&self) -> &io::Error {
        &self.error
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}; {}", self.operation, self.error, self.cause)
    }
}

/// An error of the same kind that holds the refusal, and says what it says.
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
fn cause(errno: Option<i32>, switch: Option<&str>) -> String {
    match (errno, switch.map(str::trim)) {
        (Some(libc::EPERM | libc::EACCES), Some("2")) => {
            "kernel.io_uring_disabled = 2 forbids it to every process; sysctl kernel.io_uring_disabled=0 permits it"
                .to_owned()
        }
        (Some(libc::EPERM | libc::EACCES), Some("1")) => {
            "kernel.io_uring_disabled = 1 forbids it to processes without CAP_SYS_ADMIN and outside the group of \
             kernel.io_uring_group; set that to a group of this process, or sysctl kernel.io_uring_disabled=0"
                .to_owned()
        }
        (Some(libc::EPERM | libc::EACCES), _) => {
            "a seccomp filter or a security module forbids it, as container runtimes do by default; let it pass \
             io_uring_setup, io_uring_register and io_uring_enter (in a systemd unit with SystemCallFilter=)"
                .to_owned()
        }
        (Some(libc::ENOSYS), _) => {
            "this kernel is built without CONFIG_IO_URING, or a seccomp filter hides it; it needs Linux 6.1".to_owned()
        }
        (Some(libc::EINVAL), _) => {
            "this kernel lacks IORING_SETUP_SINGLE_ISSUER and IORING_SETUP_DEFER_TASKRUN; it needs Linux 6.1".to_owned()
        }
        (Some(libc::ENOMEM), _) => {
            "its rings count as locked memory, a few pages for each engine, and the limit is reached; raise `ulimit \
             -l` (in a systemd unit LimitMEMLOCK=)"
                .to_owned()
        }
        (Some(libc::EMFILE), _) => {
            "each engine needs one more file; raise `ulimit -n` (in a systemd unit LimitNOFILE=)".to_owned()
        }
        _ => "it needs Linux 6.1".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_own_cause_and_cure() {
        let cases = [
            (libc::EPERM, Some("2\n"), "sysctl kernel.io_uring_disabled=0 permits it"),
            (libc::EPERM, Some("1\n"), "kernel.io_uring_group"),
            (libc::EPERM, Some("0\n"), "seccomp"),
            (libc::EPERM, None, "seccomp"),
            (libc::ENOSYS, None, "CONFIG_IO_URING"),
            (libc::EINVAL, Some("0"), "Linux 6.1"),
            (libc::ENOMEM, Some("0"), "LimitMEMLOCK"),
            (libc::EMFILE, Some("0"), "LimitNOFILE"),
        ];
        for (errno, switch, expected) in cases {
            let text = cause(Some(errno), switch);
            assert!(text.contains(expected), "errno {errno}, switch {switch:?}: {text}");
        }
    }

    #[test]
    fn a_build_without_the_engine_says_how_to_get_it_and_that_nobody_forbids_it() {
        let error = io::Error::from(Refusal::not_built());
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>()).expect("it is in there");
        assert!(!refusal.is_forbidden() && refusal.to_string().contains("feature io_uring"), "{refusal}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads a file under /proc")]
    fn a_refusal_says_what_was_tried_and_whether_it_is_forbidden_or_absent() {
        let refusal = Refusal::of("io_uring_setup", io::Error::from_raw_os_error(libc::ENOSYS));
        assert!(refusal.to_string().starts_with("io_uring_setup: "), "{refusal}");
        assert!(!refusal.is_forbidden());
        assert!(Refusal::of("io_uring_setup", io::Error::from_raw_os_error(libc::EPERM)).is_forbidden());
    }
}
