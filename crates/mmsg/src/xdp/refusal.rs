//! Why a step towards AF_XDP is refused, and what an operator can do about it.

use std::io;

use crate::refusal::{Obstacle, Refusal};

// The rights, as `/proc/PID/status` numbers them.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To ask for the number, the MTU or the address of an interface.
    Ask,
    /// To make a map or load the program.
    Load,
    /// To attach the program as a part of the driver, or above it.
    AttachNative,
    AttachGeneric,
    /// To have the program attached once more for all queues.
    Replace,
    Socket,
    /// To register the memory.
    Memory,
    /// To make or map the rings.
    Rings,
    Bind,
    /// To have the queue's frames handed over.
    Redirect,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Ask => "ioctl(SIOCGIF...)",
            Step::Load => "bpf: the map or the program",
            Step::AttachNative => "bpf(BPF_LINK_CREATE), native mode",
            Step::AttachGeneric => "bpf(BPF_LINK_CREATE), generic mode",
            Step::Replace => "bpf(BPF_LINK_UPDATE)",
            Step::Socket => "socket(AF_XDP)",
            Step::Memory => "setsockopt(XDP_UMEM_REG)",
            Step::Rings => "the rings of the AF_XDP socket",
            Step::Bind => "bind of the AF_XDP socket",
            Step::Redirect => "bpf(BPF_MAP_UPDATE_ELEM) of the map of sockets",
        }
    }
}

impl Refusal {
    /// The refusal of a step on `subject`, an interface or a queue of one.
    pub(super) fn of(step: Step, subject: &str, error: io::Error) -> Refusal {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let switch = std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").ok();
        let (obstacle, cause) = cause(step, error.raw_os_error(), capabilities(&status), switch.as_deref());
        Refusal::new(obstacle, format!("{} on {subject}", step.name()), error, cause)
    }

    /// The refusal of something that does not fit, found without the kernel.
    pub(super) fn unfit(operation: String, cause: impl Into<String>) -> Refusal {
        Refusal::new(Obstacle::Unfit, operation, io::ErrorKind::InvalidInput.into(), cause)
    }
}

/// The rights in force, from the text of `/proc/self/status`.
fn capabilities(status: &str) -> Option<u64> {
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

/// Cause and cure. `switch` is what kernel.unprivileged_bpf_disabled says.
fn cause(step: Step, errno: Option<i32>, rights: Option<u64>, switch: Option<&str>) -> (Obstacle, String) {
    use Obstacle::{Absent, Forbidden, Taken, Unfit};
    let (obstacle, text) = match (step, errno) {
        (_, Some(libc::EPERM | libc::EACCES)) => return (Forbidden, missing(step, rights, switch)),
        (Step::Ask, Some(libc::ENODEV)) => (Unfit, "there is no interface of that name in this network namespace"),
        (Step::Load | Step::AttachNative | Step::AttachGeneric, Some(libc::ENOSYS)) => {
            (Absent, "this kernel is built without CONFIG_BPF_SYSCALL, or a seccomp filter hides it")
        }
        (Step::AttachNative | Step::AttachGeneric, Some(libc::EBUSY | libc::EEXIST)) => (
            Taken,
            "another XDP program is on this interface, and there is room for one: `ip link show` has its number. One \
             that `bpftool link` shows is a link's: end the process that holds it (bpftool shows which), or `bpftool \
             link detach id LINK`. Any other goes with `ip link set dev INTERFACE xdp off`, in the generic mode \
             `xdpgeneric off`",
        ),
        (Step::AttachNative, Some(libc::ENOSPC)) => (
            Unfit,
            "the other end of the virtual cable sends by more queues than this one receives by: give this end as many \
             (`ethtool -L`), or the other one fewer",
        ),

        (Step::AttachNative, Some(libc::ERANGE)) => (
            Unfit,
            "the MTU is above what the driver takes with an XDP program: lower it (on a virtual cable at both ends)",
        ),
        (Step::AttachNative, Some(libc::EOPNOTSUPP | libc::EINVAL)) => (
            Absent,
            "the driver has no native mode, or not with its present settings (LRO, hardware GRO, too many queues, an \
             MTU above a page), or the kernel is older than 5.10; the generic mode works with every driver, and gains \
             less",
        ),
        (Step::AttachGeneric, Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
            (Absent, "this kernel attaches no XDP program as a link; it needs Linux 5.10")
        }
        (Step::AttachNative | Step::AttachGeneric, Some(libc::ENOTCONN | libc::ENETDOWN)) => {
            (Unfit, "the interface, or the other end of the virtual cable, is not there or not up")
        }
        (Step::Load, Some(libc::EINVAL)) => {
            (Absent, "this kernel does not know the program's kind; it needs Linux 5.10")
        }
        (Step::Socket, Some(libc::EAFNOSUPPORT)) => (
            Absent,
            "this kernel is built without CONFIG_XDP_SOCKETS, or a filter hides it (in a systemd unit \
             RestrictAddressFamilies= needs AF_XDP)",
        ),
        (Step::Memory, Some(libc::ENOBUFS)) => (
            Forbidden,
            "its memory counts as locked, all of the pool, and the limit is reached; raise `ulimit -l` (in a systemd \
             unit LimitMEMLOCK=), or give it CAP_IPC_LOCK",
        ),
        (Step::Memory | Step::Rings, Some(libc::ENOMEM)) => {
            (Forbidden, "there is not so much memory that can be pinned: ask for a smaller pool")
        }
        (Step::Bind, Some(libc::EBUSY)) => (Taken, "another AF_XDP socket has this queue, and a queue can have one"),
        (Step::Bind | Step::Redirect, Some(libc::EINVAL | libc::E2BIG)) => {
            (Unfit, "the interface has no such receive queue: see `ethtool -l`, and ask for fewer")
        }
        (Step::Bind, Some(libc::ENODEV | libc::ENETDOWN)) => (Unfit, "the interface is gone, or not up"),
        (Step::Load | Step::Socket | Step::Rings, Some(libc::EMFILE | libc::ENFILE)) => (
            Forbidden,
            "it needs six files, and two more for each queue; raise `ulimit -n` (in a systemd unit \
             LimitNOFILE=)",
        ),
        (_, None) => (Absent, "the kernel has not taken it as it is; it needs Linux 5.10"),
        _ => (
            Absent,
            "there is no case for this error here: the kernel log may say more; what is needed is Linux 5.10 and a \
             driver that takes XDP programs",
        ),
    };
    (obstacle, text.to_owned())
}

/// Which rights are missing for a step.
fn missing(step: Step, rights: Option<u64>, switch: Option<&str>) -> String {
    let wanted: &[(u32, &str)] = match step {
        Step::Socket => &[(CAP_NET_RAW, "CAP_NET_RAW")],
        _ => &[(CAP_BPF, "CAP_BPF"), (CAP_NET_ADMIN, "CAP_NET_ADMIN")],
    };
    let has = |right: u32| rights.is_some_and(|rights| rights & (1 << right) != 0);
    // What stands for CAP_BPF on kernels before 5.8, and still does.
    let has = |right: u32| has(right) || (right == CAP_BPF && has(CAP_SYS_ADMIN));
    let names: Vec<&str> = wanted.iter().filter(|(right, _)| !has(*right)).map(|(_, name)| *name).collect();
    if names.is_empty() {
        let names: Vec<&str> = wanted.iter().map(|(_, name)| *name).collect();
        // Linux 5.10 says so for maps that do not fit.
        let limit = if step == Step::Load { ", or `ulimit -l` (LimitMEMLOCK=) is too low for a map" } else { "" };
        return format!(
            "{} is there and does not count: a seccomp filter, a security module, kernel lockdown or a user namespace \
             stands before it, as in containers{limit}; run it on the host, or let it pass",
            names.join(" and ")
        );
    }
    let switch = match switch.map(str::trim) {
        Some(value @ ("1" | "2")) if step != Step::Socket => {
            format!(
                " (kernel.unprivileged_bpf_disabled = {value} is no reason: programs at an interface take rights \
                     whatever it says)"
            )
        }
        _ => String::new(),
    };
    format!(
        "{} is missing: run it as root, or give it CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW (in a systemd unit \
         AmbientCapabilities= and CapabilityBoundingSet=){switch}",
        names.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_own_cause_and_cure() {
        let cases = [
            (Step::Ask, libc::ENODEV, Obstacle::Unfit, "no interface of that name"),
            (Step::AttachNative, libc::EBUSY, Obstacle::Taken, "another XDP program"),
            (Step::AttachGeneric, libc::EEXIST, Obstacle::Taken, "another XDP program"),
            (Step::AttachNative, libc::EOPNOTSUPP, Obstacle::Absent, "no native mode"),
            (Step::AttachNative, libc::EBUSY, Obstacle::Taken, "bpftool link detach"),
            (Step::AttachNative, libc::ERANGE, Obstacle::Unfit, "MTU"),
            (Step::AttachNative, libc::ENOSPC, Obstacle::Unfit, "more queues than this one receives by"),
            (Step::Bind, libc::ENOTTY, Obstacle::Absent, "no case for this error"),
            (Step::AttachGeneric, libc::EINVAL, Obstacle::Absent, "Linux 5.10"),
            (Step::Load, libc::ENOSYS, Obstacle::Absent, "CONFIG_BPF_SYSCALL"),
            (Step::Socket, libc::EAFNOSUPPORT, Obstacle::Absent, "RestrictAddressFamilies"),
            (Step::Memory, libc::ENOBUFS, Obstacle::Forbidden, "LimitMEMLOCK"),
            (Step::Bind, libc::EBUSY, Obstacle::Taken, "another AF_XDP socket"),
            (Step::Bind, libc::EINVAL, Obstacle::Unfit, "no such receive queue"),
            (Step::Socket, libc::EMFILE, Obstacle::Forbidden, "LimitNOFILE"),
        ];
        for (step, errno, obstacle, expected) in cases {
            let (found, text) = cause(step, Some(errno), None, None);
            assert!(found == obstacle && text.contains(expected), "{step:?} {errno}: {found:?} {text}");
        }
    }

    #[test]
    fn a_missing_right_is_named_and_one_that_does_not_count_too() {
        let right = |right: u32| 1_u64 << right;
        let text = |step, rights| cause(step, Some(libc::EPERM), Some(rights), Some("2\n")).1;
        assert!(text(Step::Load, 0).starts_with("CAP_BPF and CAP_NET_ADMIN is missing"), "{}", text(Step::Load, 0));
        assert!(text(Step::Load, right(CAP_BPF)).starts_with("CAP_NET_ADMIN is missing"));
        assert!(text(Step::Load, 0).contains("unprivileged_bpf_disabled = 2 is no reason"));
        assert!(text(Step::Socket, 0).starts_with("CAP_NET_RAW is missing"));
        let all = right(CAP_SYS_ADMIN) | right(CAP_NET_ADMIN);
        assert!(text(Step::AttachNative, all).contains("does not count"), "CAP_SYS_ADMIN stands for CAP_BPF");
    }
}
