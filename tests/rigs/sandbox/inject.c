/* Makes system calls in the threads of a process that runs, as code would that has taken one of them over.
 *
 *     inject PID VICTIM DIRECTORY [TID]
 *
 * It stops each thread (or the one named), sets its registers, lets it take one step over a system call instruction,
 * and restores everything: the process goes on as before. For each attempt it prints: thread, name of the thread,
 * attempt, result. A result below zero is the error number. VICTIM is a process of the same user, DIRECTORY and its
 * files "secret" and "open" are that user's as well, and a socket of the abstract namespace listens under its path.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the registers of x86_64 only"
#endif

static int memory;
static long instruction;
static long victim;
static const char *directory;
static int a_socket = -1;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Where the process has a system call instruction: looked for in what it may execute. */
static long find_instruction(long pid) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%ld/maps", pid);
    FILE *maps = fopen(path, "r");
    if (!maps) fail(path);
    static unsigned char page[1 << 16];
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[2] != 'x' || strstr(line, "[v")) continue;
        for (unsigned long at = from; at < to; at += sizeof page) {
            ssize_t got = pread(memory, page, to - at < sizeof page ? to - at : sizeof page, at);
            for (ssize_t i = 0; i + 1 < got; i++)
                if (page[i] == 0x0f && page[i + 1] == 0x05) {
                    fclose(maps);
                    return at + i;
                }
        }
    }
    fprintf(stderr, "no system call instruction in process %ld\n", pid);
    exit(1);
}

static int a_descriptor(long pid, const char *kind) {
    char path[64], link[512], target[64];
    snprintf(path, sizeof path, "/proc/%ld/fd", pid);
    DIR *all = opendir(path);
    int found = -1;
    for (struct dirent *one; all && (one = readdir(all));) {
        snprintf(link, sizeof link, "%s/%s", path, one->d_name);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        if (strstr(target, kind)) found = atoi(one->d_name);
    }
    if (all) closedir(all);
    return found;
}

/* A thread that is stopped: its registers, and memory of its own below its stack. */
struct thread {
    long tid;
    struct user_regs_struct before;
    unsigned long room;
    char name[64];
};

static long call(struct thread *thread, long number, long a, long b, long c, long d, long e, long f) {
    struct user_regs_struct now = thread->before;
    now.rip = instruction;
    now.rax = number;
    now.orig_rax = -1;
    now.rdi = a, now.rsi = b, now.rdx = c, now.r10 = d, now.r8 = e, now.r9 = f;
    now.rsp = thread->room;
    if (ptrace(PTRACE_SETREGS, thread->tid, 0, &now)) fail("PTRACE_SETREGS");
    for (;;) {
        int status;
        if (ptrace(PTRACE_SINGLESTEP, thread->tid, 0, 0)) fail("PTRACE_SINGLESTEP");
        if (waitpid(thread->tid, &status, __WALL) != thread->tid) fail("waitpid");
        if (!WIFSTOPPED(status)) {
            fprintf(stderr, "thread %ld (%s) has ended: status %x\n", thread->tid, thread->name, status);
            exit(1);
        }
        if (ptrace(PTRACE_GETREGS, thread->tid, 0, &now)) fail("PTRACE_GETREGS");
        if (now.rip == (unsigned long)instruction + 2) return now.rax;
    }
}

static unsigned long put(struct thread *thread, const void *bytes, size_t length, int at) {
    unsigned long to = thread->room + 256 + at;
    if (pwrite(memory, bytes, length, to) != (ssize_t)length) fail("pwrite");
    return to;
}

static unsigned long put_path(struct thread *thread, const char *name, int at) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return put(thread, path, strlen(path) + 1, at);
}

#define TRY(what, ...) report(thread, what, call(thread, __VA_ARGS__))

static long report(struct thread *thread, const char *what, long result) {
    printf("%ld\t%s\t%s\t%ld\n", thread->tid, thread->name, what, result);
    return result;
}

static void close_again(struct thread *thread, long descriptor) {
    if (descriptor >= 0) call(thread, SYS_close, descriptor, 0, 0, 0, 0, 0);
}

static void try_all(struct thread *thread) {
    static char none[512];
    unsigned long at, zeroes = put(thread, none, sizeof none, 1024);

    /* Signals to others. */
    TRY("signal: kill", SYS_kill, victim, 0, 0, 0, 0, 0);
    TRY("signal: tkill", SYS_tkill, victim, 0, 0, 0, 0, 0);
    TRY("signal: tgkill", SYS_tgkill, victim, victim, 0, 0, 0, 0);
    TRY("signal: rt_sigqueueinfo", SYS_rt_sigqueueinfo, victim, 0, 0, 0, 0, 0);
    TRY("signal: pidfd_send_signal", SYS_pidfd_send_signal, -1, 0, 0, 0, 0, 0);
    TRY("signal: fcntl F_SETOWN", SYS_fcntl, a_socket, F_SETOWN, victim, 0, 0, 0);
    struct { int type, pid; } owner = {1, victim};
    at = put(thread, &owner, sizeof owner, 0);
    TRY("signal: fcntl F_SETOWN_EX", SYS_fcntl, a_socket, F_SETOWN_EX, at, 0, 0, 0);
    TRY("signal: fcntl F_SETSIG", SYS_fcntl, a_socket, F_SETSIG, SIGKILL, 0, 0, 0);
    long flags = call(thread, SYS_fcntl, a_socket, F_GETFL, 0, 0, 0, 0);
    if (TRY("signal: fcntl O_ASYNC", SYS_fcntl, a_socket, F_SETFL, (flags < 0 ? 0 : flags) | O_ASYNC, 0, 0, 0) == 0)
        call(thread, SYS_fcntl, a_socket, F_SETFL, flags, 0, 0, 0);
    int to = victim;
    at = put(thread, &to, sizeof to, 0);
    TRY("signal: ioctl FIOSETOWN", SYS_ioctl, a_socket, FIOSETOWN, at, 0, 0, 0);
    TRY("signal: ioctl SIOCSPGRP", SYS_ioctl, a_socket, SIOCSPGRP, at, 0, 0, 0);
    TRY("signal: fcntl F_SETLEASE", SYS_fcntl, a_socket, F_SETLEASE, F_RDLCK, 0, 0, 0);
    TRY("signal: fcntl F_NOTIFY", SYS_fcntl, a_socket, F_NOTIFY, 0, 0, 0, 0);

    /* The memory of others, and other programs. Nothing is started: there is no such program, and no such process. */
    TRY("ptrace", SYS_ptrace, PTRACE_ATTACH, 0x7ffffffe, 0, 0, 0, 0);
    struct iovec piece = {(void *)zeroes, 1};
    at = put(thread, &piece, sizeof piece, 0);
    TRY("process_vm_writev", SYS_process_vm_writev, victim, at, 1, at, 1, 0);
    TRY("process_vm_readv", SYS_process_vm_readv, victim, at, 1, at, 1, 0);
    at = put(thread, "/nonexistent/program", 21, 0);
    TRY("execve", SYS_execve, at, zeroes, zeroes, 0, 0, 0);
    TRY("execveat", SYS_execveat, AT_FDCWD, at, zeroes, zeroes, 0, 0);
    TRY("pidfd_getfd", SYS_pidfd_getfd, -1, 0, 0, 0, 0, 0);

    /* Namespaces: flags that the kernel refuses for another reason, and says so, when it comes to see them. */
    TRY("namespace: clone", SYS_clone, CLONE_NEWUSER | CLONE_NEWNET | CLONE_FS | SIGCHLD, 0, 0, 0, 0, 0);
    TRY("process: clone", SYS_clone, CLONE_THREAD | SIGCHLD, 0, 0, 0, 0, 0);
    TRY("namespace: clone3", SYS_clone3, zeroes, 1, 0, 0, 0, 0);
    TRY("namespace: unshare", SYS_unshare, 1, 0, 0, 0, 0, 0);
    TRY("namespace: setns", SYS_setns, -1, 0, 0, 0, 0, 0);

    /* Sockets. A type that does not exist is the kernel's to refuse. */
    static const struct { const char *what; int family, type, protocol; } sockets[] = {
        {"socket: packet", AF_PACKET, 11, 0},
        {"socket: netfilter", AF_NETLINK, SOCK_RAW, 12},
        {"socket: audit", AF_NETLINK, SOCK_RAW, 9},
        {"socket: xfrm", AF_NETLINK, SOCK_RAW, 6},
        {"socket: uevent", AF_NETLINK, SOCK_RAW, 15},
        {"socket: vsock", AF_VSOCK, SOCK_STREAM, 0},
        {"socket: alg", AF_ALG, SOCK_SEQPACKET, 0},
        {"socket: key", AF_KEY, 11, 2},
        {"socket: xdp", 44, 11, 0},
        {"socket: seqpacket", AF_UNIX, SOCK_SEQPACKET, 0},
        {"socket: dccp", AF_INET, SOCK_DCCP, 0},
        {"socket: TCP", AF_INET, SOCK_STREAM, 0},
        {"socket: TCP over IPv6", AF_INET6, SOCK_STREAM, 0},
        {"socket: UDP", AF_INET, SOCK_DGRAM, 0},
        {"socket: Unix", AF_UNIX, SOCK_STREAM, 0},
        {"socket: netlink route", AF_NETLINK, SOCK_RAW, 0},
        {"socket: netlink generic", AF_NETLINK, SOCK_RAW, 16},
    };
    for (size_t i = 0; i < sizeof sockets / sizeof *sockets; i++)
        close_again(thread, TRY(sockets[i].what, SYS_socket, sockets[i].family, sockets[i].type, sockets[i].protocol,
                                0, 0, 0));
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "%s", directory);
    size_t length = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(directory);
    at = put(thread, &name, length, 0);
    long made = call(thread, SYS_socket, AF_UNIX, SOCK_STREAM, 0, 0, 0, 0);
    if (made < 0)
        report(thread, "abstract socket", made);
    else
        TRY("abstract socket", SYS_connect, made, at, length, 0, 0, 0);
    close_again(thread, made);

    /* Files of others. */
    at = put_path(thread, "secret", 0);
    close_again(thread, TRY("file: read", SYS_openat, AT_FDCWD, at, O_RDONLY, 0, 0, 0));
    close_again(thread, TRY("file: open", SYS_open, at, O_RDONLY, 0, 0, 0, 0));
    at = put_path(thread, "open", 0);
    close_again(thread, TRY("file: write", SYS_openat, AT_FDCWD, at, O_WRONLY, 0, 0, 0));
    TRY("file: chmod", SYS_chmod, at, 0666, 0, 0, 0, 0);
    TRY("file: truncate", SYS_truncate, at, 0, 0, 0, 0, 0);
    unsigned long link = put_path(thread, "link", 256);
    if (TRY("file: link", SYS_linkat, AT_FDCWD, at, AT_FDCWD, link, 0, 0) == 0)
        call(thread, SYS_unlink, link, 0, 0, 0, 0, 0);
    if (TRY("file: symlink", SYS_symlink, at, link, 0, 0, 0, 0) == 0) call(thread, SYS_unlink, link, 0, 0, 0, 0, 0);

    /* Limits of others. */
    TRY("limits: prlimit64", SYS_prlimit64, victim, RLIMIT_NOFILE, 0, zeroes, 0, 0);
    TRY("limits: setpriority", SYS_setpriority, PRIO_PROCESS, victim, 19, 0, 0, 0);
    TRY("limits: sched_setscheduler", SYS_sched_setscheduler, victim, 0, zeroes, 0, 0, 0);
    TRY("limits: ioprio_set", SYS_ioprio_set, 1, victim, 0, 0, 0, 0);
    TRY("limits: prctl PR_SET_DUMPABLE", SYS_prctl, 4, 9, 0, 0, 0, 0);
    TRY("limits: prctl PR_SET_PTRACER", SYS_prctl, 0x59616d61, 0x7ffffffe, 0, 0, 0, 0);

    /* Terminals. What is open is none, and the kernel says so. */
    at = put(thread, "x", 2, 0);
    TRY("terminal: TIOCSTI", SYS_ioctl, 0, TIOCSTI, at, 0, 0, 0);
    TRY("terminal: TIOCLINUX", SYS_ioctl, 0, 0x541c, at, 0, 0, 0);

    /* Executable memory. */
    struct { const char *what; int protection; } maps[] = {
        {"memory: mmap writable and executable", PROT_READ | PROT_WRITE | PROT_EXEC},
        {"memory: mmap executable", PROT_READ | PROT_EXEC},
    };
    for (size_t i = 0; i < 2; i++) {
        long mapped = TRY(maps[i].what, SYS_mmap, 0, 4096, maps[i].protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped > 0 || mapped < -4095) call(thread, SYS_munmap, mapped, 4096, 0, 0, 0, 0);
    }
    long page = call(thread, SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TRY("memory: mprotect writable and executable", SYS_mprotect, page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
        0, 0, 0);
    TRY("memory: mprotect executable", SYS_mprotect, page, 4096, PROT_READ | PROT_EXEC, 0, 0, 0);
    call(thread, SYS_munmap, page, 4096, 0, 0, 0, 0);
    TRY("memory: pkey_mprotect", SYS_pkey_mprotect, 0, 0, PROT_EXEC, -1, 0, 0);
    TRY("memory: memfd_create", SYS_memfd_create, 0, 0, 0, 0, 0, 0);
    TRY("memory: personality", SYS_personality, 0xffffffff, 0, 0, 0, 0, 0);
    TRY("memory: userfaultfd", SYS_userfaultfd, 0xffff, 0, 0, 0, 0, 0);

    /* What runs in the kernel. */
    close_again(thread, TRY("io_uring: a ring", SYS_io_uring_setup, 1, zeroes, 0, 0, 0, 0));
    int ring = a_descriptor(thread->tid, "io_uring");
    TRY("io_uring: files", SYS_io_uring_register, ring, IORING_REGISTER_FILES, zeroes, 1, 0, 0);
    TRY("io_uring: a personality", SYS_io_uring_register, ring, IORING_REGISTER_PERSONALITY, 0, 0, 0, 0);
    TRY("kernel: perf_event_open", SYS_perf_event_open, 0, 0, -1, -1, 0, 0);
    TRY("kernel: bpf", SYS_bpf, 9999, zeroes, 0, 0, 0, 0);
    TRY("kernel: keyctl", SYS_keyctl, 9999, 0, 0, 0, 0, 0);
    TRY("kernel: io_setup", SYS_io_setup, 0, zeroes, 0, 0, 0, 0);
}

static void name_of(long pid, struct thread *thread) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/comm", pid, thread->tid);
    FILE *comm = fopen(path, "r");
    if (!comm || !fgets(thread->name, sizeof thread->name, comm)) strcpy(thread->name, "gone");
    if (comm) fclose(comm);
    thread->name[strcspn(thread->name, "\n")] = 0;
}

static void take(long pid, long tid) {
    struct thread thread = {.tid = tid};
    static char kept[4096];
    int status;
    name_of(pid, &thread);
    if (ptrace(PTRACE_SEIZE, tid, 0, 0)) fail("PTRACE_SEIZE");
    if (ptrace(PTRACE_INTERRUPT, tid, 0, 0)) fail("PTRACE_INTERRUPT");
    if (waitpid(tid, &status, __WALL) != tid || !WIFSTOPPED(status)) fail("waitpid");
    if (ptrace(PTRACE_GETREGS, tid, 0, &thread.before)) fail("PTRACE_GETREGS");
    /* Below what a function may use without moving its stack. */
    thread.room = (thread.before.rsp - 128 - sizeof kept) & ~63UL;
    if (pread(memory, kept, sizeof kept, thread.room) != sizeof kept) fail("pread");
    try_all(&thread);
    if (pwrite(memory, kept, sizeof kept, thread.room) != sizeof kept) fail("pwrite");
    if (ptrace(PTRACE_SETREGS, tid, 0, &thread.before)) fail("PTRACE_SETREGS");
    if (ptrace(PTRACE_DETACH, tid, 0, 0)) fail("PTRACE_DETACH");
}

int main(int count, char **arguments) {
    if (count < 4) {
        fprintf(stderr, "inject PID VICTIM DIRECTORY [TID]\n");
        return 2;
    }
    long pid = atol(arguments[1]);
    victim = atol(arguments[2]);
    directory = arguments[3];
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/mem", pid);
    memory = open(path, O_RDWR);
    if (memory < 0) fail(path);
    instruction = find_instruction(pid);
    a_socket = a_descriptor(pid, "socket:");
    if (count > 4) {
        take(pid, atol(arguments[4]));
        return 0;
    }
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *all = opendir(path);
    if (!all) fail(path);
    for (struct dirent *one; (one = readdir(all));)
        if (one->d_name[0] != '.') take(pid, atol(one->d_name));
    return 0;
}
