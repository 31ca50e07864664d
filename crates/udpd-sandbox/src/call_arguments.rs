//! The system calls that are judged by their arguments: with which ones a role may make them, and what for.
//!
//! The number of such a call says too little. `fcntl` also has signals sent to any process of the user, `clone` also
//! makes processes in namespaces in which they have every right, `prctl` also turns off what protects a process, and
//! memory that is executable and was writable is a program. These calls are rare: none is on the way of a datagram.

use nix::libc;
use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SystemCall {
    pub number: i64,
    /// As the C library spells its number.
    pub name: &'static str,
}

/// What an argument has to be. Only its lower half is compared, which is what the kernel reads of each of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentRule {
    /// The argument at this place has this value.
    Is(u8, u64),
    /// Of the argument at this place, these bits have this value.
    Has(u8, u64, u64),
    /// The argument at this place is the id of the own process.
    Own(u8),
}
use ArgumentRule::{Has, Is, Own};

/// A call that may be made where all of this holds, in words and as the kernel is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AllowedCase {
    pub call: SystemCall,
    pub says: &'static str,
    pub rules: &'static [ArgumentRule],
}

impl AllowedCase {
    pub(super) fn rule(&self) -> Result<SeccompRule, BackendError> {
        SeccompRule::new(self.rules.iter().map(|rule| rule.condition()).collect::<Result<_, _>>()?)
    }
}

impl ArgumentRule {
    fn condition(self) -> Result<SeccompCondition, BackendError> {
        let condition = |place, operator, value| SeccompCondition::new(place, SeccompCmpArgLen::Dword, operator, value);
        match self {
            Is(place, value) => condition(place, SeccompCmpOp::Eq, value),
            Has(place, mask, value) => condition(place, SeccompCmpOp::MaskedEq(mask), value),
            Own(place) => condition(place, SeccompCmpOp::Eq, u64::from(std::process::id())),
        }
    }
}

/// `call: what it says => conditions;`, one case a line.
macro_rules! cases {
    ($($call:ident $says:literal => $($rule:expr),+;)*) => {
        &[$(AllowedCase {
            call: SystemCall { number: libc::$call, name: stringify!($call) },
            says: $says,
            rules: &[$($rule),+],
        }),*]
    };
}

const WRITE: u64 = libc::PROT_WRITE as u64;
const EXECUTE: u64 = libc::PROT_EXEC as u64;

/// Memory for data, and descriptors that are asked about, copied, and locked for writing.
pub(super) const EVERY: &[AllowedCase] = cases! {
    SYS_mmap "not executable" => Has(2, EXECUTE, 0);
    SYS_mprotect "not executable" => Has(2, EXECUTE, 0);
    SYS_fcntl "F_GETFD" => Is(1, libc::F_GETFD as u64);
    SYS_fcntl "F_SETFD" => Is(1, libc::F_SETFD as u64);
    SYS_fcntl "F_GETFL" => Is(1, libc::F_GETFL as u64);
    SYS_fcntl "F_SETFL without O_ASYNC" => Is(1, libc::F_SETFL as u64), Has(2, libc::O_ASYNC as u64, 0);
    SYS_fcntl "F_DUPFD_CLOEXEC" => Is(1, libc::F_DUPFD_CLOEXEC as u64);
    SYS_fcntl "F_OFD_SETLK" => Is(1, libc::F_OFD_SETLK as u64);
    SYS_fcntl "F_OFD_GETLK" => Is(1, libc::F_OFD_GETLK as u64);
};

/// Libraries that the C library loads when it looks up a name: executable, and never writable at the same time.
pub(super) const LIBRARIES: &[AllowedCase] = cases! {
    SYS_mmap "executable and not writable" => Has(2, WRITE | EXECUTE, EXECUTE);
    SYS_mprotect "executable and not writable" => Has(2, WRITE | EXECUTE, EXECUTE);
};

/// A signal to a thread of the own process: a receiver is woken by one, and the C library aborts by one.
pub(super) const SIGNAL: &[AllowedCase] = cases! {
    SYS_tgkill "to the own process" => Own(0);
};

pub(super) const LIMITS: &[AllowedCase] = cases! {
    SYS_prlimit64 "of the own process" => Is(0, 0);
};

/// The lowest priority, and the cores where no receiver is, for the calling thread.
pub(super) const BACKGROUND: &[AllowedCase] = cases! {
    SYS_setpriority "its own" => Is(0, libc::PRIO_PROCESS as u64), Is(1, 0);
    SYS_sched_setaffinity "its own" => Is(0, 0);
};

/// What a thread is made with, by either C library; one of them adds a bit that means nothing any more.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;
const OF_NO_MEANING: u64 = libc::CLONE_DETACHED as u64;
const FLAGS: u64 = u32::MAX as u64;
const PR_SET_VMA: u64 = 0x5356_4d41;

/// Threads, never processes, and their names. `clone3` has its flags in memory, where no filter sees them: without it
/// the C library uses `clone`.
pub(super) const THREADS: &[AllowedCase] = cases! {
    SYS_clone "a thread" => Has(0, FLAGS & !OF_NO_MEANING, THREAD);
    SYS_prctl "PR_SET_NAME" => Is(0, libc::PR_SET_NAME as u64);
    SYS_prctl "PR_SET_VMA" => Is(0, PR_SET_VMA);
};

/// Going into a sandbox takes these, and nothing else leads further in.
pub(super) const FILTER: &[AllowedCase] = cases! {
    SYS_prctl "PR_SET_NO_NEW_PRIVS" => Is(0, libc::PR_SET_NO_NEW_PRIVS as u64);
    SYS_seccomp "a filter" => Is(0, libc::SECCOMP_SET_MODE_FILTER as u64), Is(1, 0);
};

/// So do these.
pub(super) const CONFINE: &[AllowedCase] = cases! {
    SYS_prctl "PR_CAPBSET_READ" => Is(0, libc::PR_CAPBSET_READ as u64);
    SYS_prctl "PR_CAPBSET_DROP" => Is(0, libc::PR_CAPBSET_DROP as u64);
    SYS_prctl "PR_CAP_AMBIENT_CLEAR_ALL" =>
        Is(0, libc::PR_CAP_AMBIENT as u64), Is(1, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64);
};

const FIONBIO: u64 = 0x5421;
const SIOCOUTQ: u64 = 0x5411;
const SIOCGIFINDEX: u64 = 0x8933;
const SIOCGIFMTU: u64 = 0x8921;
const SIOCGIFHWADDR: u64 = 0x8927;
const SIOCETHTOOL: u64 = 0x8946;

/// Sockets that do not wait, which the standard library asks for so.
pub(super) const NONBLOCKING: &[AllowedCase] = cases! {
    SYS_ioctl "FIONBIO" => Is(1, FIONBIO);
};

/// What the peer of a stream has not acknowledged.
pub(super) const SEND_QUEUE: &[AllowedCase] = cases! {
    SYS_ioctl "SIOCOUTQ" => Is(1, SIOCOUTQ);
};

/// The number of an interface by its name, for addresses such as `[fe80::1%eth0]`.
pub(super) const INTERFACE_INDEX: &[AllowedCase] = cases! {
    SYS_ioctl "SIOCGIFINDEX" => Is(1, SIOCGIFINDEX);
};

/// What the main thread asks the drivers of cards.
pub(super) const CARDS: &[AllowedCase] = cases! {
    SYS_ioctl "SIOCETHTOOL" => Is(1, SIOCETHTOOL);
    SYS_ioctl "SIOCGIFMTU" => Is(1, SIOCGIFMTU);
    SYS_ioctl "SIOCGIFHWADDR" => Is(1, SIOCGIFHWADDR);
};

/// Above these bits of a type are flags.
const TYPE: u64 = 0xf;
const V4: u64 = libc::AF_INET as u64;
const V6: u64 = libc::AF_INET6 as u64;
const UDP: u64 = libc::SOCK_DGRAM as u64;
const TCP: u64 = libc::SOCK_STREAM as u64;
const RAW: u64 = libc::SOCK_RAW as u64;

/// Datagrams and streams on this host.
pub(super) const UNIX: &[AllowedCase] = cases! {
    SYS_socket "Unix datagrams" => Is(0, libc::AF_UNIX as u64), Has(1, TYPE, UDP);
    SYS_socket "Unix streams" => Is(0, libc::AF_UNIX as u64), Has(1, TYPE, TCP);
};

pub(super) const DATAGRAMS: &[AllowedCase] = cases! {
    SYS_socket "UDP" => Is(0, V4), Has(1, TYPE, UDP);
    SYS_socket "UDP" => Is(0, V6), Has(1, TYPE, UDP);
};

pub(super) const STREAMS: &[AllowedCase] = cases! {
    SYS_socket "TCP" => Is(0, V4), Has(1, TYPE, TCP);
    SYS_socket "TCP" => Is(0, V6), Has(1, TYPE, TCP);
};

pub(super) const RAW_SOCKETS: &[AllowedCase] = cases! {
    SYS_socket "raw" => Is(0, V4), Has(1, TYPE, RAW);
    SYS_socket "raw" => Is(0, V6), Has(1, TYPE, RAW);
};

/// The kernel's tables of interfaces and addresses.
pub(super) const ROUTES: &[AllowedCase] = cases! {
    SYS_socket "netlink route" => Is(0, libc::AF_NETLINK as u64), Is(2, libc::NETLINK_ROUTE as u64);
};

/// Who else has a socket on a port, and what a card says of its queues.
pub(super) const TABLES: &[AllowedCase] = cases! {
    SYS_socket "netlink sock_diag" => Is(0, libc::AF_NETLINK as u64), Is(2, libc::NETLINK_SOCK_DIAG as u64);
    SYS_socket "netlink generic" => Is(0, libc::AF_NETLINK as u64), Is(2, libc::NETLINK_GENERIC as u64);
};

/// A queue of an interface, which another thread or process is given.
pub(super) const QUEUES: &[AllowedCase] = cases! {
    SYS_socket "AF_XDP" => Is(0, libc::AF_XDP as u64);
};

const REGISTER_RESTRICTIONS: u64 = 11;
const REGISTER_ENABLE_RINGS: u64 = 12;
const REGISTER_PBUF_RING: u64 = 22;
const REGISTER_NAPI: u64 = 27;

/// What a ring is given before it runs.
pub(super) const NEW_RING: &[AllowedCase] = cases! {
    SYS_io_uring_register "restrictions" => Is(1, REGISTER_RESTRICTIONS);
    SYS_io_uring_register "enable" => Is(1, REGISTER_ENABLE_RINGS);
    SYS_io_uring_register "buffers" => Is(1, REGISTER_PBUF_RING);
    SYS_io_uring_register "busy poll" => Is(1, REGISTER_NAPI);
};

// Only a privilege helper loads anything after the start: arrays and filters for sockets. The counts of cores stand
// in maps, and so do the addresses and the queues of which frames go past the kernel's stack. What was loaded for an
// interface may be attached to one that came back, and once more when that has got more queues.
const BPF_MAP_CREATE: u64 = 0;
const BPF_MAP_LOOKUP_ELEM: u64 = 1;
const BPF_MAP_UPDATE_ELEM: u64 = 2;
const BPF_MAP_DELETE_ELEM: u64 = 3;
const BPF_PROG_LOAD: u64 = 5;
const BPF_LINK_CREATE: u64 = 28;
const BPF_LINK_UPDATE: u64 = 29;

pub(super) const MAP_READ: &[AllowedCase] = cases! {
    SYS_bpf "read a map" => Is(0, BPF_MAP_LOOKUP_ELEM);
};

pub(super) const MAP_DELETE: &[AllowedCase] = cases! {
    SYS_bpf "delete from a map" => Is(0, BPF_MAP_DELETE_ELEM);
};

pub(super) const MAP_WRITE: &[AllowedCase] = cases! {
    SYS_bpf "write to a map" => Is(0, BPF_MAP_UPDATE_ELEM);
};

pub(super) const ATTACH: &[AllowedCase] = cases! {
    SYS_bpf "attach again" => Is(0, BPF_LINK_CREATE);
    SYS_bpf "change what is attached" => Is(0, BPF_LINK_UPDATE);
};

/// A helper without filters is asked for programs as well, and answers as a process without the right does.
pub(super) const NO_PROGRAMS: &[AllowedCase] = cases! {
    SYS_bpf "nothing" => Is(0, u32::MAX as u64);
};

pub(super) const LOAD: &[AllowedCase] = cases! {
    SYS_bpf "make a map" => Is(0, BPF_MAP_CREATE);
    SYS_bpf "load a program" => Is(0, BPF_PROG_LOAD);
};
