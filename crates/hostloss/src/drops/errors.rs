//! Errors that say what was tried, what the kernel answered, and what an operator can do about it.

use std::fs;
use std::io;

/// The right that is needed, as `/proc/PID/status` numbers it: `CAP_PERFMON`, from Linux 5.8 on.
const CAP_PERFMON: u32 = 38;
/// What stood for it before: `CAP_SYS_ADMIN`.
const CAP_SYS_ADMIN: u32 = 21;

/// `operation: error; cause`, of the same kind.
pub(super) fn explained(operation: &str, error: &io::Error, cause: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{operation}: {error}; {cause}"))
}

/// Why a file of tracefs or sysfs cannot be read.
pub(super) fn of_file(path: &str, error: &io::Error) -> io::Error {
    let cause = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "only root may read the numbers of tracepoints: run this as root, or let root read the file and hand on \
             its text"
        }
        io::ErrorKind::NotFound => {
            "tracefs is not mounted here: mount -t tracefs tracefs /sys/kernel/tracing (if it is, this kernel has no \
             such tracepoint)"
        }
        _ => "the tracepoint cannot be looked up",
    };
    explained(&format!("read {path}"), error, cause)
}

/// Why a call on the events of core `core` failed.
pub(super) fn of_call(operation: &str, core: usize, error: &io::Error) -> io::Error {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let cause = cause(error.raw_os_error(), capabilities(&status));
    explained(&format!("{operation} on core {core}"), error, cause)
}

/// Why there is no memory for the ring of core `core`.
pub(super) fn of_ring(core: usize, error: &io::Error) -> io::Error {
    let cause = "its rings count as locked memory: raise kernel.perf_event_mlock_kb, or end the other watches of this \
                 user";
    explained(&format!("mmap of the events on core {core}"), error, cause)
}

/// The rights in force, from the text of `/proc/self/status`.
fn capabilities(status: &str) -> Option<u64> {
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

fn cause(errno: Option<i32>, capabilities: Option<u64>) -> &'static str {
    let has_right = capabilities.is_some_and(|has| has & (1 << CAP_PERFMON | 1 << CAP_SYS_ADMIN) != 0);
    match errno {
        Some(libc::EPERM | libc::EACCES) if has_right => {
            "the right is there and does not count: a seccomp filter, a security module or a user namespace stands \
             before it, as in containers; run it on the host"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "it needs CAP_PERFMON (before Linux 5.8 CAP_SYS_ADMIN): run it as root, or give it that right alone (in a \
             systemd unit AmbientCapabilities=CAP_PERFMON and CapabilityBoundingSet=CAP_PERFMON)"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "it needs three files for each core; raise `ulimit -n` (in a systemd unit LimitNOFILE=)"
        }
        Some(libc::ENOENT | libc::EINVAL) => {
            "this kernel does not know the tracepoint by that number: numbers change with every boot, read them anew"
        }
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => "this kernel is built without CONFIG_PERF_EVENTS",
        _ => "the kernel does not let the tracepoint be watched",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_names_its_own_cause_and_cure() {
        let none = Some(0);
        let perfmon = Some(1 << CAP_PERFMON);
        for (errno, capabilities, expected) in [
            (libc::EACCES, none, "AmbientCapabilities=CAP_PERFMON"),
            (libc::EPERM, None, "AmbientCapabilities=CAP_PERFMON"),
            (libc::EACCES, perfmon, "seccomp"),
            (libc::EPERM, Some(1 << CAP_SYS_ADMIN), "seccomp"),
            (libc::EMFILE, perfmon, "LimitNOFILE"),
            (libc::EINVAL, perfmon, "every boot"),
            (libc::ENOSYS, perfmon, "CONFIG_PERF_EVENTS"),
        ] {
            let text = cause(Some(errno), capabilities);
            assert!(text.contains(expected), "errno {errno}: {text}");
        }
    }

    #[test]
    fn a_missing_file_is_told_from_one_that_only_root_may_read() {
        for (kind, expected) in [
            (io::ErrorKind::NotFound, "mount -t tracefs"),
            (io::ErrorKind::PermissionDenied, "run this as root"),
            (io::ErrorKind::NotFound, "read /sys/kernel/tracing/x: "),
        ] {
            let error = of_file("/sys/kernel/tracing/x", &kind.into());
            assert!(error.kind() == kind && error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn the_rights_in_force_are_read() {
        assert_eq!(capabilities("CapPrm:\t0000000000000000\nCapEff:\t0000004000000000\n"), Some(1 << CAP_PERFMON));
        assert_eq!(capabilities("nothing"), None);
    }
}
