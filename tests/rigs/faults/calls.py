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


def calls(names, errors, **rest):
    """Calls that fail alike."""
    return [Call(name, tuple(errors.split()), **rest) for name in names.split()]


FUTEX_OPERATION = 0x7F
FUTEX_WAIT, FUTEX_WAIT_BITSET = 0, 9

CALLS = [one for group in (
    # Files.
    calls("openat", "EMFILE EIO ENOSPC EACCES ENOMEM EROFS EINTR"),
    calls("mkdir mkdirat", "ENOSPC EROFS"),
    calls("write", "EIO ENOSPC EDQUOT EFBIG EINTR EAGAIN", label="write to a file", kind="file"),
    calls("write", "EIO EAGAIN EPIPE", label="write to the log", kind="other"),
    calls("write", "EIO EPIPE", label="write to a socket", kind="socket"),
    calls("writev pwrite64 pwritev2 fdatasync", "EIO ENOSPC"),
    calls("read", "EIO EINTR EISDIR", label="read of a file", kind="file"),
    calls("read", "ECONNRESET EINTR", label="read of a socket", kind="socket"),
    calls("read", "EIO EINTR", label="read of something else", kind="other"),
    calls("pread64 readv fsync sync_file_range stat lstat fstat readlink readlinkat", "EIO"),
    calls("lseek", "EINVAL EIO"),
    calls("ftruncate", "EIO EPERM"),
    calls("fallocate", "ENOSPC EOPNOTSUPP"),
    calls("fadvise64", "EINVAL"),
    # Of the thread that compresses.
    calls("utimensat", "EIO EPERM"),
    calls("fstatfs", "EIO"),
    calls("setpriority", "EACCES"),
    calls("rename renameat", "EIO EROFS"),
    calls("renameat2", "EIO EINVAL ENOSPC EACCES"),
    calls("link linkat", "EIO EPERM"),
    calls("symlink chmod fchmod fchmodat chown fchown", "EPERM"),
    # Of the process that keeps rights, between its birth and its program.
    calls("chdir", "EACCES"),
    calls("dup2", "EMFILE"),
    calls("unlink unlinkat", "EIO EACCES"),
    calls("rmdir", "EBUSY"),
    calls("statx", "EIO EACCES ENOMEM"),
    calls("newfstatat getdents64", "EIO ENOMEM"),
    calls("access faccessat2", "EACCES"),
    # Of files only: a failing call is not carried out here, and a socket that stays open in its group gets datagrams
    # that cannot be read or counted, where a kernel closes it whatever it returns.
    calls("close", "EIO", label="close of a file", kind="file"),
    calls("flock", "EIO ENOLCK EWOULDBLOCK EINTR"),
    calls("fcntl", "EINVAL EAGAIN"),
    calls("dup dup3", "EMFILE"),
    calls("inotify_init1", "EMFILE ENOSYS"),
    calls("inotify_add_watch", "ENOSPC ENOENT"),
    calls("inotify_rm_watch", "EINVAL"),
    # Sockets.
    calls("socket", "EMFILE ENOBUFS EACCES EAFNOSUPPORT"),
    calls("bind", "EADDRINUSE EACCES ENOMEM"),
    calls("connect", "ECONNREFUSED EACCES EAGAIN"),
    calls("listen", "EADDRINUSE"),
    calls("accept4", "EMFILE ECONNABORTED ENOMEM EINTR"),
    calls("accept socketpair", "EMFILE"),
    calls("setsockopt", "ENOPROTOOPT EPERM ENOMEM"),
    calls("getsockopt", "ENOPROTOOPT ENOBUFS EPERM"),
    calls("getsockname", "ENOBUFS"),
    calls("getpeername", "ENOTCONN"),
    calls("recvmmsg", "ENOMEM EINTR EAGAIN ENOBUFS EPERM"),
    calls("recvmsg", "ENOMEM EINTR EAGAIN"),
    calls("recvfrom", "ENOMEM ECONNRESET EAGAIN EINTR"),
    calls("sendto", "ENOBUFS EPERM EPIPE"),
    calls("sendmsg sendmmsg", "ENOBUFS EPERM"),
    # A UDP socket answers ENOTCONN and does what is asked; here it does not, and its receiver is never woken.
    calls("shutdown", "EPERM ENOTCONN"),
    calls("ioctl", "ENOTTY EPERM"),
    calls("bpf", "EPERM ENOMEM EINTR"),
    calls("poll ppoll", "ENOMEM EINTR"),
    calls("epoll_create1 eventfd2 pipe2 signalfd4 timerfd_create memfd_create", "EMFILE"),
    calls("epoll_ctl", "ENOSPC ENOMEM"),
    calls("epoll_wait epoll_pwait clock_nanosleep nanosleep", "EINTR"),
    calls("timerfd_settime", "EINVAL"),
    calls("io_uring_setup", "ENOMEM EPERM ENOSYS", engine="io_uring"),
    calls("io_uring_register", "ENOMEM EINVAL", engine="io_uring"),
    calls("io_uring_enter", "ENOMEM EINTR EBUSY EBADR", engine="io_uring"),
    # Threads and locks.
    calls("clone3", "EAGAIN EPERM"),
    calls("clone tgkill", "EAGAIN"),
    # Only the waits: a wake that is refused would be a kernel that is broken.
    calls("futex", "EINTR EAGAIN", label="futex wait", arguments=((1, FUTEX_OPERATION, FUTEX_WAIT),)),
    calls("futex", "EINTR EAGAIN", label="futex wait until", arguments=((1, FUTEX_OPERATION, FUTEX_WAIT_BITSET),)),
    calls("membarrier", "EPERM ENOSYS EINTR"),
    calls("sched_setaffinity sched_getaffinity prctl", "EINVAL EPERM"),
    calls("sched_yield landlock_create_ruleset", "ENOSYS"),
    calls("set_robust_list rt_sigaction clock_gettime capget seccomp landlock_add_rule", "EINVAL"),
    calls("sigaltstack", "ENOMEM EPERM"),
    calls("prlimit64 kill capset landlock_restrict_self set_mempolicy get_mempolicy", "EPERM"),
    calls("getrandom", "ENOSYS EPERM"),
    calls("uname sysinfo", "EFAULT"),
    calls("wait4", "ECHILD EINTR"),
    # Memory.
    calls("mmap", "ENOMEM EAGAIN"),
    calls("munmap mprotect mremap mlock", "ENOMEM"),
    calls("madvise", "EINVAL ENOMEM"),
    calls("mbind", "EPERM EIO"),
    calls("brk", "ENOMEM", value=0),
) for one in group]

# Calls that cannot fail, one for which the C library itself ends the process (rseq), and one that fails only for wrong
# arguments and that the C library does not check when it starts a thread (rt_sigprocmask).
NOT_TRIED = """
    execve arch_prctl set_tid_address exit exit_group gettid getpid getppid getuid geteuid getgid getegid rt_sigreturn
    restart_syscall umask rseq rt_sigprocmask
""".split()
