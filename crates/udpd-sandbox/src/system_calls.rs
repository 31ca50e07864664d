//! seccomp: the system calls that each role may make.
//!
//! The lists are made of groups. What every thread of a process with a C library calls is in `EVERY`; each other group
//! says what it is for. A call that is allowed with any arguments costs next to nothing: the kernel (5.11 and later)
//! remembers that the filter always allows it, and runs the filter no more. Only rare calls are judged by their
//! arguments (`call_arguments.rs`).
//!
//! A call that is on no list fails with ENOSYS, which no missing right gives: a C library that makes a newer call than
//! this file knows then uses the older one. A call on a list with other arguments fails with EPERM.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch};

use super::call_arguments::{self, AllowedCase, SystemCall};
use udpd_base::os::role::ThreadRole;

macro_rules! calls {
    ($($name:ident)*) => { &[$(SystemCall { number: libc::$name, name: stringify!($name) }),*] };
}

/// What the standard library and the C library call on any thread: locks, memory, the clock, a descriptor that is open,
/// the end of a thread, and what a panic does.
const EVERY: &[SystemCall] = calls![
    SYS_futex SYS_clock_gettime SYS_sched_yield SYS_write SYS_close SYS_brk SYS_munmap SYS_madvise SYS_getrandom
    SYS_rt_sigprocmask SYS_rt_sigaction SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall SYS_exit
];

/// What threads call besides that see no datagram before a receiver has.
const BEHIND: &[SystemCall] = calls![
    SYS_read SYS_writev SYS_mremap SYS_exit_group SYS_gettid SYS_getpid SYS_sched_getaffinity SYS_ppoll
];

/// Receiving, and asking the socket what the kernel has dropped.
const RECEIVE: &[SystemCall] = calls![SYS_recvmmsg SYS_recvmsg SYS_getsockopt SYS_setsockopt SYS_ppoll];

/// Receiving by a ring that is there.
const RING: &[SystemCall] = calls![SYS_io_uring_enter];

/// Making one.
const NEW_RING: &[SystemCall] = calls![SYS_io_uring_setup];

/// Receiving from a queue past the kernel's stack: the kernel is called, and waited for at the end.
const QUEUE: &[SystemCall] = calls![SYS_recvfrom SYS_membarrier];

/// A socket of one's own: connected, sent on, asked.
const SEND: &[SystemCall] = calls![
    SYS_connect SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_recvfrom SYS_recvmsg SYS_getsockopt SYS_setsockopt
    SYS_getsockname SYS_getpeername SYS_shutdown
];

/// Reading files and directories, as far as Landlock lets.
const LOOK: &[SystemCall] = calls![
    SYS_openat SYS_fstat SYS_newfstatat SYS_statx SYS_lseek SYS_pread64 SYS_getdents64 SYS_readlinkat
    SYS_geteuid
];

/// Taking the beginning of a record back out of a file whose disk is full.
const TAKE_BACK: &[SystemCall] = calls![SYS_fstat SYS_statx SYS_newfstatat SYS_ftruncate];

/// Making, finishing and removing files and directories.
const KEEP: &[SystemCall] = calls![
    SYS_pwrite64 SYS_fsync SYS_fdatasync SYS_syncfs SYS_fallocate SYS_ftruncate SYS_fadvise64 SYS_flock SYS_fstatfs
    SYS_renameat2 SYS_unlinkat SYS_linkat SYS_inotify_add_watch SYS_inotify_rm_watch
];

/// Writing a file beside another one, at the lowest priority and on the cores where no receiver is.
const COMPRESS: &[SystemCall] = calls![
    SYS_fsync SYS_fdatasync SYS_ftruncate SYS_fadvise64 SYS_fstatfs SYS_utimensat SYS_unlinkat SYS_renameat2
    SYS_flock
];

/// Answering clients of sockets that listen, and seeing the end of one that takes over.
const SERVE: &[SystemCall] = calls![
    SYS_pidfd_open SYS_accept4 SYS_recvfrom SYS_recvmsg SYS_sendto SYS_sendmsg SYS_shutdown SYS_getsockopt
    SYS_setsockopt SYS_getsockname
];

/// What a thread calls before its own work begins.
const THREADS: &[SystemCall] = calls![SYS_set_robust_list SYS_rseq];

/// Going into a sandbox, and making what a thread has before it goes in.
const CONFINE: &[SystemCall] = calls![
    SYS_capget SYS_capset SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
    SYS_inotify_init1 SYS_mlock SYS_mbind SYS_set_mempolicy SYS_get_mempolicy SYS_sched_setaffinity SYS_listen
    SYS_pipe2 SYS_eventfd2
];

/// What the main thread does once a second and at the end: it puts threads on cores, replaces sockets and asks the
/// kernel about interfaces. It sees the end of the privilege helper, and never waits for it.
const HOUSEKEEPING: &[SystemCall] = calls![
    SYS_pipe2 SYS_sched_setaffinity SYS_bind SYS_connect SYS_sendto SYS_sendmsg SYS_recvfrom SYS_recvmsg
    SYS_getsockopt SYS_setsockopt SYS_getsockname SYS_shutdown SYS_unlinkat SYS_renameat2 SYS_fsync SYS_fdatasync
    SYS_pwrite64 SYS_membarrier SYS_wait4 SYS_geteuid
];

/// What the privilege helper does to the sockets of a daemon, and how it is asked.
const PRIVILEGED: &[SystemCall] = calls![SYS_recvmsg SYS_sendmsg SYS_bind SYS_getsockopt SYS_setsockopt];

/// What librdkafka, OpenSSL and the resolver of the C library call besides: their own threads, pipes and looks at the
/// host.
const LIBRARY: &[SystemCall] = calls![
    SYS_bind SYS_pipe2 SYS_eventfd2 SYS_uname SYS_sysinfo SYS_getuid SYS_geteuid SYS_getgid SYS_getegid
];

/// What one C library has and another has not, and what only older machines have a number for.
mod of_libc {
    use super::SystemCall;
    use nix::libc;

    #[cfg(not(target_env = "musl"))]
    pub(super) const SLEEP: &[SystemCall] = calls![SYS_clock_nanosleep];
    #[cfg(target_env = "musl")]
    pub(super) const SLEEP: &[SystemCall] = calls![SYS_nanosleep SYS_clock_nanosleep];

    #[cfg(all(target_arch = "x86_64", not(target_env = "musl")))]
    pub(super) const LOOK: &[SystemCall] = calls![SYS_access SYS_readlink];
    #[cfg(all(target_arch = "x86_64", target_env = "musl"))]
    pub(super) const LOOK: &[SystemCall] = calls![SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink];
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) const LOOK: &[SystemCall] = calls![SYS_faccessat SYS_faccessat2];

    #[cfg(target_arch = "x86_64")]
    pub(super) const KEEP: &[SystemCall] = calls![SYS_rename SYS_unlink SYS_rmdir SYS_mkdir];
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) const KEEP: &[SystemCall] = calls![SYS_renameat SYS_mkdirat];

    #[cfg(target_arch = "x86_64")]
    pub(super) const POLL: &[SystemCall] = calls![SYS_poll];
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) const POLL: &[SystemCall] = &[];
}

#[derive(Debug, Default)]
struct Granted {
    calls: Vec<&'static [SystemCall]>,
    cases: Vec<&'static [AllowedCase]>,
}

fn granted(role: ThreadRole) -> Granted {
    let mut all = own(role);
    // A thread that it starts enters a sandbox of its own, and can have nothing there that is not here.
    for started in ThreadRole::CONFINED.into_iter().filter(|other| is_started_by(role, *other)) {
        let Granted { calls, cases } = own(started);
        all.calls.extend(calls);
        all.cases.extend(cases);
    }
    all
}

/// The same without what it grants for threads that it starts.
fn own(role: ThreadRole) -> Granted {
    use call_arguments as by;
    let mut all = Granted { calls: vec![EVERY, of_libc::SLEEP], cases: vec![by::EVERY] };
    let mut grant = |calls: &[&'static [SystemCall]], cases: &[&'static [AllowedCase]]| {
        all.calls.extend_from_slice(calls);
        all.cases.extend_from_slice(cases);
    };
    if !matches!(
        role,
        ThreadRole::Receiver | ThreadRole::RingReceiver | ThreadRole::XdpReceiver | ThreadRole::SequenceFollower
    ) {
        grant(&[BEHIND, of_libc::POLL], &[by::SIGNAL]);
    }
    match role {
        ThreadRole::Unconfined | ThreadRole::ShortLived | ThreadRole::Log | ThreadRole::SequenceFollower => {}
        ThreadRole::Writer => grant(&[TAKE_BACK], &[]),
        ThreadRole::HistoryWriter => grant(&[calls![SYS_pwrite64]], &[]),
        ThreadRole::FileKeeper | ThreadRole::Spill => {
            grant(&[LOOK, of_libc::LOOK, KEEP, of_libc::KEEP], &[by::LIMITS]);
        }
        // By which it waits where a signalfd cannot be read.
        ThreadRole::Signals => grant(&[calls![SYS_rt_sigtimedwait]], &[]),
        ThreadRole::Receiver => grant(&[RECEIVE], &[]),
        // Where its ring fails it receives without.
        ThreadRole::RingReceiver => grant(&[RECEIVE, RING], &[]),
        ThreadRole::XdpReceiver => grant(&[RECEIVE, QUEUE], &[by::MAP_DELETE]),
        ThreadRole::UnixClient => grant(&[SEND], &[by::UNIX, by::NONBLOCKING]),
        ThreadRole::Relay => grant(&[SEND], &[by::DATAGRAMS, by::INTERFACE_INDEX, by::NONBLOCKING]),
        ThreadRole::TcpClient => {
            grant(&[SEND], &[by::STREAMS, by::SEND_QUEUE, by::DATAGRAMS, by::INTERFACE_INDEX, by::NONBLOCKING]);
        }
        ThreadRole::HttpClient | ThreadRole::Uploader => {
            grant(
                &[SEND, LOOK, of_libc::LOOK],
                &[by::STREAMS, by::DATAGRAMS, by::INTERFACE_INDEX, by::NONBLOCKING, by::LIMITS],
            );
            grant(&[], if role == ThreadRole::Uploader { &[by::BACKGROUND] } else { &[] });
        }
        ThreadRole::SourceKeeper => grant(&[], &[by::RAW_SOCKETS]),
        // The resolver asks the kernel for addresses and, on some hosts, a daemon of the C library for names.
        ThreadRole::BrokerClient | ThreadRole::Resolver => {
            grant(
                &[SEND, LOOK, of_libc::LOOK, LIBRARY, THREADS],
                &[by::UNIX, by::ROUTES, by::DATAGRAMS, by::STREAMS, by::NONBLOCKING, by::LIMITS, by::LIBRARIES],
            );
            grant(&[], &[by::THREADS]);
        }
        ThreadRole::Compressor => grant(&[LOOK, of_libc::LOOK, COMPRESS, of_libc::KEEP], &[by::LIMITS, by::BACKGROUND]),
        ThreadRole::Endpoint => {
            grant(&[LOOK, of_libc::LOOK, SERVE, THREADS], &[by::NONBLOCKING, by::LIMITS, by::MAP_READ, by::THREADS]);
        }
        ThreadRole::Health => grant(&[SERVE], &[by::NONBLOCKING, by::BACKGROUND]),
        ThreadRole::Watchdog => grant(&[LOOK, of_libc::LOOK, calls![SYS_sendto SYS_sendmsg]], &[]),
        ThreadRole::Reloader | ThreadRole::BrokerReloader => {
            grant(&[HOUSEKEEPING, CONFINE, THREADS], &[by::THREADS, by::FILTER, by::CONFINE]);
            grant(&[], &[by::MAP_READ, by::MAP_WRITE]);
            grant(&[], &[by::UNIX, by::ROUTES, by::TABLES, by::CARDS, by::INTERFACE_INDEX]);
        }
        ThreadRole::RingReloader => grant(&[RING, NEW_RING], &[by::NEW_RING]),
        ThreadRole::Announcer => grant(&[calls![SYS_sendto SYS_recvfrom]], &[]),
        ThreadRole::PrivilegeHelper => grant(&[PRIVILEGED], &[by::QUEUES, by::NO_PROGRAMS]),
        ThreadRole::FilterHelper => grant(&[PRIVILEGED], &[by::QUEUES, by::LOAD]),
        ThreadRole::Main => {
            grant(&[LOOK, of_libc::LOOK, HOUSEKEEPING, of_libc::KEEP, THREADS], &[by::THREADS, by::LIMITS]);
            // A socket for balancers that only connect, which listens while udpd is ready.
            grant(&[calls![SYS_listen]], &[]);
            grant(
                &[],
                &[by::UNIX, by::DATAGRAMS, by::ROUTES, by::TABLES, by::CARDS, by::INTERFACE_INDEX, by::NONBLOCKING],
            );
            grant(&[], &[by::MAP_READ, by::MAP_WRITE, by::MAP_DELETE, by::ATTACH]);
        }
    }
    all
}

/// Whether a reload may bring a thread of this role.
fn is_started_by(maker: ThreadRole, other: ThreadRole) -> bool {
    use ThreadRole::{BrokerClient, HttpClient, Resolver, TcpClient, Uploader};
    let is_of_brokers = matches!(other, BrokerClient | HttpClient | TcpClient | Resolver | Uploader);
    // A relay that keeps sources takes a right that no reload has, and rings are made besides.
    let is_never = matches!(
        other,
        ThreadRole::Main
            | ThreadRole::Reloader
            | ThreadRole::BrokerReloader
            | ThreadRole::RingReloader
            | ThreadRole::RingReceiver
            | ThreadRole::PrivilegeHelper
            | ThreadRole::FilterHelper
            | ThreadRole::SourceKeeper
            | ThreadRole::HistoryWriter
            | ThreadRole::Health
            | ThreadRole::Announcer
    );
    match maker {
        ThreadRole::Reloader => !is_never && !is_of_brokers,
        ThreadRole::BrokerReloader => !is_never,
        _ => false,
    }
}

/// What a thread with these roles may call: with any arguments where there are no rules, else where one holds.
fn rules(roles: &[ThreadRole]) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let granted: Vec<Granted> = roles.iter().map(|role| granted(*role)).collect();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for case in granted.iter().flat_map(|of_role| &of_role.cases).copied().flatten() {
        let known = rules.entry(case.call.number).or_default();
        let rule = case.rule()?;
        // Several roles judge some calls alike.
        if !known.contains(&rule) {
            known.push(rule);
        }
    }
    let always = granted.iter().flat_map(|of_role| &of_role.calls).copied().flatten();
    rules.extend(always.map(|call| (call.number, Vec::new())));
    Ok(rules)
}

/// Two filters, in the order in which they are installed: the first judges arguments, the second numbers. Where both
/// refuse a call, the error is that of the second.
fn filters(roles: &[ThreadRole]) -> Result<[BpfProgram; 2], BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = |rules, errno: i32| {
        SeccompFilter::new(rules, SeccompAction::Errno(errno as u32), SeccompAction::Allow, architecture)?.try_into()
    };
    let rules = rules(roles)?;
    let numbers = rules.keys().map(|&number| (number, Vec::new())).collect();
    let mut judging = rules;
    // By which the second filter is installed when there is the first.
    for case in call_arguments::FILTER {
        judging.entry(case.call.number).or_default().push(case.rule()?);
    }
    Ok([filter(judging, libc::EPERM)?, filter(numbers, libc::ENOSYS)?])
}

/// Restricts the calling thread, and those that it starts, to the calls of its roles.
pub(super) fn restrict(roles: &[ThreadRole]) -> Result<(), String> {
    let filters = filters(roles).map_err(|error| format!("seccomp: {error}"))?;
    let apply = |filter: &BpfProgram| seccompiler::apply_filter(filter).map_err(|error| format!("seccomp: {error}"));
    filters.iter().try_for_each(apply)
}

#[cfg(test)]
#[path = "system_calls_tests.rs"]
mod tests;
