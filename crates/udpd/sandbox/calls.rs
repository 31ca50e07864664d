//! seccomp: the system calls of each duty.
//!
//! The lists are made of groups. What every thread of a C library's process calls is in `ALWAYS`; the rest says what it
//! is for. A call that is allowed whatever its arguments costs nothing to speak of: the kernel (5.11 and later)
//! remembers that the filter always says yes to it and runs the filter no more. Only rare calls are judged by their
//! arguments.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::os::duty::Duty;

/// What the standard library and the C library call on any thread: locks, memory, the clock, a descriptor that is open,
/// the end of a thread, and what a panic does.
const ALWAYS: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Receiving, and asking the socket what the kernel has dropped.
const RECEIVE: &[i64] =
    &[libc::SYS_recvmmsg, libc::SYS_recvmsg, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_ppoll];

/// Receiving by a ring, which is made again for a socket that is made again.
const RING: &[i64] = &[libc::SYS_io_uring_enter, libc::SYS_io_uring_setup, libc::SYS_io_uring_register];

/// Receiving from a queue past the kernel's stack: the kernel is called, and waited for at the end.
const QUEUE: &[i64] = &[libc::SYS_recvfrom, libc::SYS_membarrier];

/// A socket of one's own: connected, sent on, asked.
const SEND: &[i64] = &[
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_ioctl,
    libc::SYS_ppoll,
];

/// Reading files, directories and the own limits, as far as Landlock lets.
const LOOK: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_prlimit64,
    libc::SYS_ppoll,
];

/// Making, finishing and removing files and directories.
const KEEP: &[i64] = &[
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fadvise64,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_linkat,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_umask,
];

/// Writing a file beside another one, at the lowest priority and on the cores where no receiver is.
const COMPRESS: &[i64] = &[
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fadvise64,
    libc::SYS_fstatfs,
    libc::SYS_utimensat,
    libc::SYS_unlinkat,
    libc::SYS_setpriority,
    libc::SYS_sched_setaffinity,
];

/// Answering clients of sockets that listen, and seeing the end of one that takes over.
const SERVE: &[i64] = &[
    libc::SYS_pidfd_open,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ioctl,
];

/// Starting threads.
const THREADS: &[i64] =
    &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_prctl, libc::SYS_set_tid_address, libc::SYS_membarrier];

/// Going into a sandbox, and making what a thread has before it goes in.
const CONFINE: &[i64] = &[
    libc::SYS_seccomp,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_inotify_init1,
    libc::SYS_mlock,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_get_mempolicy,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_listen,
];

/// What the main thread does once a second and at the end: it puts threads on cores, replaces sockets and asks the
/// kernel about interfaces.
const HOUSEKEEPING: &[i64] = &[
    libc::SYS_pipe2,
    libc::SYS_sched_setaffinity,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_ioctl,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_pwrite64,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
];

/// What is done to the sockets of a daemon by the process that keeps its rights, and how it is told.
const WISHES: &[i64] =
    &[libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_bind, libc::SYS_getsockopt, libc::SYS_setsockopt];

/// What librdkafka, OpenSSL and the resolver of the C library call besides: their own threads, pipes and looks at the
/// host.
const LIBRARY: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_pselect6,
    libc::SYS_socketpair,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getppid,
    libc::SYS_sched_setaffinity,
    libc::SYS_getrusage,
    libc::SYS_readv,
    libc::SYS_times,
];

/// The same by the names that only older machines have for them; musl calls some of these.
#[cfg(target_arch = "x86_64")]
mod older {
    use nix::libc;

    pub(super) const LOOK: &[i64] =
        &[libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_poll];
    pub(super) const KEEP: &[i64] =
        &[libc::SYS_rename, libc::SYS_unlink, libc::SYS_rmdir, libc::SYS_mkdir, libc::SYS_link];
    pub(super) const COMPRESS: &[i64] = &[libc::SYS_unlink];
    pub(super) const POLL: &[i64] = &[libc::SYS_poll];
    pub(super) const LIBRARY: &[i64] = &[libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait, libc::SYS_pipe];
}
#[cfg(not(target_arch = "x86_64"))]
mod older {
    pub(super) const LOOK: &[i64] = &[];
    pub(super) const KEEP: &[i64] = &[];
    pub(super) const COMPRESS: &[i64] = &[];
    pub(super) const POLL: &[i64] = &[];
    pub(super) const LIBRARY: &[i64] = &[];
}

/// The calls of a duty, whatever their arguments.
fn allowed(duty: Duty) -> Vec<&'static [i64]> {
    let mut groups = vec![ALWAYS];
    groups.extend_from_slice(match duty {
        Duty::Free | Duty::Errand | Duty::Log | Duty::Follower => &[][..],
        // By which a pipe is asked whether it has room.
        Duty::Writer => &[&[libc::SYS_ppoll], older::POLL],
        // By which it waits where a signalfd cannot be read.
        Duty::Signals => &[&[libc::SYS_rt_sigtimedwait]],
        Duty::Receiver => &[RECEIVE, older::POLL],
        // Where its ring fails it receives without.
        Duty::RingReceiver => &[RECEIVE, RING, older::POLL],
        Duty::QueueReceiver => &[RECEIVE, QUEUE, older::POLL],
        Duty::UnixClient | Duty::Relay | Duty::SourceKeepingRelay => &[SEND, older::POLL],
        Duty::SpillingUnixClient | Duty::SpillingRelay | Duty::SpillingSourceKeepingRelay => {
            &[SEND, LOOK, KEEP, older::POLL, older::LOOK, older::KEEP]
        }
        Duty::SpillingBrokerClient => &[SEND, LOOK, KEEP, THREADS, LIBRARY, older::LOOK, older::KEEP, older::LIBRARY],
        Duty::BrokerClient => &[SEND, LOOK, THREADS, LIBRARY, older::LOOK, older::LIBRARY],
        Duty::Resolver => &[SEND, LOOK, LIBRARY, older::LOOK, older::LIBRARY],
        Duty::Keeper => &[LOOK, KEEP, older::LOOK, older::KEEP],
        Duty::Compressor => &[LOOK, COMPRESS, older::LOOK, older::COMPRESS],
        Duty::Window => &[LOOK, SERVE, THREADS, older::LOOK],
        Duty::Watchdog => &[LOOK, older::LOOK, &[libc::SYS_sendto, libc::SYS_sendmsg]],
        // Whatever it starts goes on into a sandbox of its own, and can have nothing there that is not here.
        Duty::Maker | Duty::BrokerMaker => &[
            RECEIVE,
            RING,
            SEND,
            LOOK,
            KEEP,
            COMPRESS,
            SERVE,
            THREADS,
            HOUSEKEEPING,
            LIBRARY,
            CONFINE,
            older::LOOK,
            older::KEEP,
            older::LIBRARY,
        ],
        Duty::Warden | Duty::FilterWarden => &[WISHES],
        // The end of the warden is waited for, not the warden.
        Duty::Main => &[LOOK, HOUSEKEEPING, THREADS, older::LOOK, older::KEEP, &[libc::SYS_wait4]],
    });
    groups
}

/// What decides about a call besides its number: one of these has to hold.
type Rules = Vec<SeccompRule>;

/// The calls of a duty that depend on their arguments.
fn judged(duty: Duty) -> Result<Vec<(i64, Rules)>, BackendError> {
    // A thread takes a name when it begins, and memory gets one.
    const PR_SET_VMA: u64 = 0x5356_4d41;
    let names = [libc::PR_SET_NAME as u64, PR_SET_VMA].map(|option| all_of(vec![is(0, option)?]));
    // By which the C library aborts and a thread signals itself. Nobody signals another process.
    let own = vec![all_of(vec![is(0, u64::from(std::process::id()))?])?];
    let mut judged = vec![(libc::SYS_prctl, names.into_iter().collect::<Result<_, _>>()?), (libc::SYS_tgkill, own)];
    let sockets = match duty {
        Duty::UnixClient | Duty::SpillingUnixClient => vec![family(libc::AF_UNIX)?],
        Duty::Relay | Duty::SpillingRelay => datagrams()?,
        Duty::SourceKeepingRelay | Duty::SpillingSourceKeepingRelay => [datagrams()?, raw()?].concat(),
        // The resolver asks the kernel for addresses and, on some hosts, a daemon of the C library for names.
        Duty::BrokerClient | Duty::SpillingBrokerClient | Duty::Resolver | Duty::BrokerMaker => {
            [vec![family(libc::AF_UNIX)?, family(libc::AF_NETLINK)?], datagrams()?, streams()?].concat()
        }
        // A queue of an interface, which another thread or process is given.
        Duty::Warden | Duty::FilterWarden => vec![family(libc::AF_XDP)?],
        Duty::Main | Duty::Maker => [vec![family(libc::AF_UNIX)?, family(libc::AF_NETLINK)?], datagrams()?].concat(),
        _ => Vec::new(),
    };
    if !sockets.is_empty() {
        judged.push((libc::SYS_socket, sockets));
    }
    // Nothing is loaded any more but by a warden that makes arrays and loads filters for sockets. The counts of cores
    // stand in maps, and so do the addresses and the queues of which frames go past the kernel's stack. What was loaded
    // for an interface may be attached to one that came back, and once more when that has got more queues.
    const BPF_MAP_CREATE: u64 = 0;
    const BPF_MAP_LOOKUP_ELEM: u64 = 1;
    const BPF_MAP_UPDATE_ELEM: u64 = 2;
    const BPF_MAP_DELETE_ELEM: u64 = 3;
    const BPF_PROG_LOAD: u64 = 5;
    const BPF_LINK_CREATE: u64 = 28;
    const BPF_LINK_UPDATE: u64 = 29;
    let commands: &[u64] = match duty {
        Duty::Main => {
            &[BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_LINK_CREATE, BPF_LINK_UPDATE]
        }
        Duty::Maker | Duty::BrokerMaker => &[BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM],
        Duty::Window => &[BPF_MAP_LOOKUP_ELEM],
        Duty::QueueReceiver => &[BPF_MAP_DELETE_ELEM],
        Duty::FilterWarden => &[BPF_MAP_CREATE, BPF_PROG_LOAD],
        _ => &[],
    };
    if !commands.is_empty() {
        let rules = commands.iter().map(|&call| all_of(vec![is(0, call)?])).collect::<Result<Rules, _>>()?;
        judged.push((libc::SYS_bpf, rules));
    }
    Ok(judged)
}

fn family(family: i32) -> Result<SeccompRule, BackendError> {
    all_of(vec![is(0, family as u64)?])
}

fn datagrams() -> Result<Rules, BackendError> {
    internet(libc::SOCK_DGRAM)
}

fn streams() -> Result<Rules, BackendError> {
    internet(libc::SOCK_STREAM)
}

fn raw() -> Result<Rules, BackendError> {
    internet(libc::SOCK_RAW)
}

/// Sockets of one kind, for either family.
fn internet(kind: i32) -> Result<Rules, BackendError> {
    // Above these bits are flags.
    const KIND: u64 = 0xf;
    let of_kind = || SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(KIND), kind as u64);
    [libc::AF_INET, libc::AF_INET6].map(|family| all_of(vec![is(0, family as u64)?, of_kind()?])).into_iter().collect()
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn all_of(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions)
}

fn filter(duties: &[Duty]) -> Result<seccompiler::BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Rules> = BTreeMap::new();
    for duty in duties {
        for (call, of_duty) in judged(*duty)? {
            let known = rules.entry(call).or_default();
            // Several duties judge some calls alike.
            known.extend(of_duty.into_iter().filter(|rule| !known.contains(rule)).collect::<Rules>());
        }
    }
    // What is allowed whatever the arguments has no rules, also where another group or duty would judge it.
    let allowed = duties.iter().flat_map(|duty| allowed(*duty)).flatten();
    rules.extend(allowed.map(|&call| (call, Vec::new())));
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, denied, SeccompAction::Allow, architecture)?.try_into()
}

/// Holds the calling thread, and those that it starts, to the calls of its duties.
pub(super) fn hold_to(duties: &[Duty]) -> Result<(), String> {
    let filter = filter(duties).map_err(|error| format!("seccomp: {error}"))?;
    seccompiler::apply_filter(&filter).map_err(|error| format!("seccomp: {error}"))
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
