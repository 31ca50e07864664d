"""The system calls that the daemon makes, and how each of them can fail.

A survey of a run that nothing happens to is compared with this table: a call that stands in neither list fails the rig,
so a change that brings a new call brings its failure, too.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One system call, or one use of it, and the errors that it is made to return; the first is tried at every call."""
    name: str
    errors: tuple
    label: str = ""
    kind: str = ""          # only on descriptors that are a file, a socket, or other
    arguments: tuple = ()   # only where (index, mask, value) fit
    value: int = None       # what to return instead of an error
    engine: str = ""        # made only by this engine

    def lasts(self, error):
        """Whether it can return this error every time."""
        return error not in PASSING

    @property
    def shown(self):
        return self.label or self.name


# Errors that mean "again". Where one lasts, no program gets anywhere, and no kernel does it.
PASSING = ("EINTR", "EAGAIN")


def call(name, errors, **rest):
    return Call(name, tuple(errors.split()), **rest)


FUTEX_OPERATION = 0x7F
FUTEX_WAIT, FUTEX_WAIT_BITSET = 0, 9

CALLS = [
    # Files.
    call("openat", "EMFILE EIO ENOSPC EACCES ENOMEM EROFS EINTR"),
    call("mkdir", "ENOSPC EROFS"),
    call("mkdirat", "ENOSPC EROFS"),
    call("write", "EIO ENOSPC EDQUOT EFBIG EINTR EAGAIN", label="write to a file", kind="file"),
    call("write", "EIO EAGAIN EPIPE", label="write to the log", kind="other"),
    call("write", "EIO EPIPE", label="write to a socket", kind="socket"),
    call("writev", "EIO ENOSPC"),
    call("pwrite64", "EIO ENOSPC"),
    call("pwritev2", "EIO ENOSPC"),
    call("read", "EIO EINTR EISDIR", label="read of a file", kind="file"),
    call("read", "ECONNRESET EINTR", label="read of a socket", kind="socket"),
    call("read", "EIO EINTR", label="read of something else", kind="other"),
    call("pread64", "EIO"),
    call("readv", "EIO"),
    call("lseek", "EINVAL EIO"),
    call("ftruncate", "EIO EPERM"),
    call("fallocate", "ENOSPC EOPNOTSUPP"),
    call("fadvise64", "EINVAL"),
    call("fdatasync", "EIO ENOSPC"),
    call("fsync", "EIO"),
    call("sync_file_range", "EIO"),
    # Of the thread that compresses.
    call("utimensat", "EIO EPERM"),
    call("fstatfs", "EIO"),
    call("setpriority", "EACCES"),
    call("rename", "EIO EROFS"),
    call("renameat", "EIO EROFS"),
    call("renameat2", "EIO EINVAL ENOSPC EACCES"),
    call("link", "EIO EPERM"),
    call("linkat", "EIO EPERM"),
    call("symlink", "EPERM"),
    # Of the process that keeps rights, between its birth and its program.
    call("chdir", "EACCES"),
    call("dup2", "EMFILE"),
    call("unlink", "EIO EACCES"),
    call("unlinkat", "EIO EACCES"),
    call("rmdir", "EBUSY"),
    call("statx", "EIO EACCES ENOMEM"),
    call("stat", "EIO"),
    call("lstat", "EIO"),
    call("fstat", "EIO"),
    call("newfstatat", "EIO ENOMEM"),
    call("access", "EACCES"),
    call("faccessat2", "EACCES"),
    call("getdents64", "EIO ENOMEM"),
    call("readlink", "EIO"),
    call("readlinkat", "EIO"),
    call("chmod", "EPERM"),
    call("fchmod", "EPERM"),
    call("fchmodat", "EPERM"),
    call("chown", "EPERM"),
    call("fchown", "EPERM"),
    # Of files only: a failing call is not carried out here, and a socket that stays open in its group gets datagrams
    # that cannot be read or counted, where a kernel closes it whatever it returns.
    call("close", "EIO", label="close of a file", kind="file"),
    call("flock", "EIO ENOLCK EWOULDBLOCK EINTR"),
    call("fcntl", "EINVAL EAGAIN"),
    call("dup", "EMFILE"),
    call("dup3", "EMFILE"),
    call("inotify_init1", "EMFILE ENOSYS"),
    call("inotify_add_watch", "ENOSPC ENOENT"),
    call("inotify_rm_watch", "EINVAL"),
    # Sockets.
    call("socket", "EMFILE ENOBUFS EACCES EAFNOSUPPORT"),
    call("socketpair", "EMFILE"),
    call("bind", "EADDRINUSE EACCES ENOMEM"),
    call("connect", "ECONNREFUSED EACCES EAGAIN"),
    call("listen", "EADDRINUSE"),
    call("accept4", "EMFILE ECONNABORTED ENOMEM EINTR"),
    call("accept", "EMFILE"),
    call("setsockopt", "ENOPROTOOPT EPERM ENOMEM"),
    call("getsockopt", "ENOPROTOOPT ENOBUFS EPERM"),
    call("getsockname", "ENOBUFS"),
    call("getpeername", "ENOTCONN"),
    call("recvmmsg", "ENOMEM EINTR EAGAIN ENOBUFS EPERM"),
    call("recvmsg", "ENOMEM EINTR EAGAIN"),
    call("recvfrom", "ENOMEM ECONNRESET EAGAIN EINTR"),
    call("sendto", "ENOBUFS EPERM EPIPE"),
    call("sendmsg", "ENOBUFS EPERM"),
    call("sendmmsg", "ENOBUFS EPERM"),
    # A UDP socket answers ENOTCONN and does what is asked; here it does not, and its receiver is never woken.
    call("shutdown", "EPERM ENOTCONN"),
    call("ioctl", "ENOTTY EPERM"),
    call("bpf", "EPERM ENOMEM EINTR"),
    call("poll", "ENOMEM EINTR"),
    call("ppoll", "ENOMEM EINTR"),
    call("epoll_create1", "EMFILE"),
    call("epoll_ctl", "ENOSPC ENOMEM"),
    call("epoll_wait", "EINTR"),
    call("epoll_pwait", "EINTR"),
    call("eventfd2", "EMFILE"),
    call("pipe2", "EMFILE"),
    call("signalfd4", "EMFILE"),
    call("timerfd_create", "EMFILE"),
    call("timerfd_settime", "EINVAL"),
    call("memfd_create", "EMFILE"),
    call("io_uring_setup", "ENOMEM EPERM ENOSYS", engine="io_uring"),
    call("io_uring_register", "ENOMEM EINVAL", engine="io_uring"),
    call("io_uring_enter", "ENOMEM EINTR EBUSY EBADR", engine="io_uring"),
    # Threads and locks.
    call("clone3", "EAGAIN EPERM"),
    call("clone", "EAGAIN"),
    # Only the waits: a wake that is refused would be a kernel that is broken.
    call("futex", "EINTR EAGAIN", label="futex wait", arguments=((1, FUTEX_OPERATION, FUTEX_WAIT),)),
    call("futex", "EINTR EAGAIN", label="futex wait until", arguments=((1, FUTEX_OPERATION, FUTEX_WAIT_BITSET),)),
    call("membarrier", "EPERM ENOSYS EINTR"),
    call("sched_setaffinity", "EINVAL EPERM"),
    call("sched_getaffinity", "EINVAL EPERM"),
    call("sched_yield", "ENOSYS"),
    call("set_robust_list", "EINVAL"),
    call("prctl", "EINVAL EPERM"),
    call("rt_sigaction", "EINVAL"),
    call("sigaltstack", "ENOMEM EPERM"),
    call("clock_nanosleep", "EINTR"),
    call("nanosleep", "EINTR"),
    call("clock_gettime", "EINVAL"),
    call("prlimit64", "EPERM"),
    call("getrandom", "ENOSYS EPERM"),
    call("uname", "EFAULT"),
    call("sysinfo", "EFAULT"),
    call("kill", "EPERM"),
    call("wait4", "ECHILD EINTR"),
    call("tgkill", "EAGAIN"),
    call("capget", "EINVAL"),
    call("capset", "EPERM"),
    call("seccomp", "EINVAL"),
    call("landlock_create_ruleset", "ENOSYS"),
    call("landlock_add_rule", "EINVAL"),
    call("landlock_restrict_self", "EPERM"),
    call("set_mempolicy", "EPERM"),
    call("get_mempolicy", "EPERM"),
    # Memory.
    call("mmap", "ENOMEM EAGAIN"),
    call("munmap", "ENOMEM"),
    call("mprotect", "ENOMEM"),
    call("mremap", "ENOMEM"),
    call("madvise", "EINVAL ENOMEM"),
    call("mbind", "EPERM EIO"),
    call("mlock", "ENOMEM"),
    call("brk", "ENOMEM", value=0),
]

# Calls that cannot fail, one for which the C library itself ends the process (rseq), and one that fails only for wrong
# arguments and that the C library does not check when it starts a thread (rt_sigprocmask).
NOT_TRIED = """
    execve arch_prctl set_tid_address exit exit_group gettid getpid getppid getuid geteuid getgid getegid rt_sigreturn
    restart_syscall umask rseq rt_sigprocmask
""".split()
