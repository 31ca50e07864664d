// Runs a command and makes one of its system calls fail: the Nth time that any of its threads makes it, counted over
// the whole process, or from the Nth time on. `strace --inject` counts for each thread by itself, so with it the third
// call of a daemon of many threads has no name.
//
// The kernel asks this program before each call of the chosen number (seccomp user notification); it answers "go on" or
// an error number. A call that fails is not carried out. Calls through an io_uring are not seen.
//
//   fail_nth --call NUMBER --nth N (--errno E | --value V) --report FILE [--from] [--arm-at PATH] [--arm-by-signal]
//            [--kind file|socket|other] [--argument INDEX:MASK:VALUE] -- COMMAND...
//   fail_nth --survey --report FILE [--arm-at PATH] -- COMMAND...
//
// --value     Return this instead of an error: brk says by its return value that it has failed.
// --from      The Nth and every later one fail.
// --arm-at    Count from the moment at which the command opens this path: what the loader does before is not counted.
// --arm-by-signal  Count from the moment at which this program gets SIGUSR1.
// --kind      Count only calls whose first argument is a descriptor of that kind.
// --argument  Count only calls of which this argument, masked, has this value; may be given twice.
// --survey    Let none fail; report how often each call was made, as lines of `call NUMBER COUNT`.
// --report    Lines of `name value`: `pid`, `seen` (how many calls were counted), `failed`, `failed_on` and `ended`.
//
// SIGTERM and SIGINT are handed on to the command. It is killed when this program is, and this one with its parent.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENT_FILTERS_MAX = 2, CALLS_MAX = 1024, NOT_YET = -1 };

struct argument_filter { unsigned index; uint64_t mask, value; };

static struct {
    long call;
    uint64_t nth;
    int error;
    long long value;
    int all_from_there, arm_by_signal, survey;
    const char *report_path, *arm_at, *kind;
    struct argument_filter filters[ARGUMENT_FILTERS_MAX];
    unsigned filters_count;
    char **command;
} options = { .call = -1 };

static struct { uint64_t seen, failed, seen_of[CALLS_MAX]; int armed; FILE *report; } state;

static void die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("fail_nth: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(125);
}

static void read_options(int count, char **words)
{
    int at = 1;
    for (; at < count && strcmp(words[at], "--") != 0; at++) {
        const char *name = words[at];
        int *flag = strcmp(name, "--from") == 0 ? &options.all_from_there
            : strcmp(name, "--arm-by-signal") == 0 ? &options.arm_by_signal
            : strcmp(name, "--survey") == 0 ? &options.survey : NULL;
        if (flag) { *flag = 1; continue; }
        if (at + 1 >= count) die("%s needs a value", name);
        const char *value = words[++at];
        if (strcmp(name, "--call") == 0) options.call = atol(value);
        else if (strcmp(name, "--nth") == 0) options.nth = strtoull(value, NULL, 10);
        else if (strcmp(name, "--errno") == 0) options.error = atoi(value);
        else if (strcmp(name, "--value") == 0) options.value = atoll(value);
        else if (strcmp(name, "--report") == 0) options.report_path = value;
        else if (strcmp(name, "--arm-at") == 0) options.arm_at = value;
        else if (strcmp(name, "--kind") == 0) options.kind = value;
        else if (strcmp(name, "--argument") == 0) {
            unsigned long long mask, wanted;
            if (options.filters_count == ARGUMENT_FILTERS_MAX) die("too many --argument");
            struct argument_filter *filter = &options.filters[options.filters_count++];
            if (sscanf(value, "%u:%lli:%lli", &filter->index, (long long *)&mask, (long long *)&wanted) != 3 ||
                filter->index > 5)
                die("--argument %s: INDEX:MASK:VALUE", value);
            filter->mask = mask;
            filter->value = wanted;
        } else die("unknown option %s", name);
    }
    if (!options.report_path || at + 1 >= count || (!options.survey && (options.call < 0 || options.nth == 0)))
        die("--report, a command, and --survey or --call and --nth are needed");
    options.command = &words[at + 1];
}

// Asks for the chosen call, and for openat where its path starts the count; everything else passes at once.
static int install_filter(void)
{
    uint32_t also = options.arm_at ? SYS_openat : (uint32_t)options.call;
    struct sock_filter instructions[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)options.call, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, also, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
    };
    if (options.survey) instructions[1] = instructions[4];
    struct sock_fprog program = { sizeof instructions / sizeof *instructions, instructions };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -errno;
    // Killable: a signal does not take a call back that has been asked about, so none is counted twice.
    unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    return listener < 0 ? -errno : (int)listener;
}

// Starts the command under the filter. Parent and child share their descriptors until the child's exec, so the parent
// has the listener without any call of the child's that would itself be asked about.
static pid_t start(int *listener)
{
    volatile int *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) die("mmap: %s", strerror(errno));
    *shared = NOT_YET;
    pid_t parent = getpid();
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child < 0) die("clone: %s", strerror(errno));
    if (child == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(125);
        int made = install_filter();
        *shared = made >= 0 ? made : made - 1;
        if (made >= 0) execvp(options.command[0], options.command);
        _exit(127);
    }
    while (*shared == NOT_YET) {
        if (waitpid(child, NULL, WNOHANG) == child) die("the child ended before it had a filter");
        usleep(50);
    }
    if (*shared < 0) die("seccomp: %s", strerror(-(*shared + 1)));
    *listener = *shared;
    return child;
}

// Whether the path that this openat names is the one that starts the count.
static int opens_marker(const struct seccomp_notif *asked)
{
    char path[512] = "";
    struct iovec here = { path, sizeof path - 1 };
    struct iovec there = { (void *)(uintptr_t)asked->data.args[1], sizeof path - 1 };
    // The string may end just before memory that is not mapped: then less is read.
    ssize_t got = process_vm_readv((pid_t)asked->pid, &here, 1, &there, 1, 0);
    while (got < 0 && errno == EFAULT && there.iov_len > 1) {
        there.iov_len /= 2;
        here.iov_len = there.iov_len;
        got = process_vm_readv((pid_t)asked->pid, &here, 1, &there, 1, 0);
    }
    return got > 0 && strcmp(path, options.arm_at) == 0;
}

static const char *kind_of(const struct seccomp_notif *asked)
{
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%u/fd/%d", asked->pid, (int)asked->data.args[0]);
    if (stat(path, &found) != 0) return "other";
    return S_ISREG(found.st_mode) ? "file" : S_ISSOCK(found.st_mode) ? "socket" : "other";
}

static int is_counted(const struct seccomp_notif *asked)
{
    if (!state.armed || asked->data.nr != options.call) return 0;
    for (unsigned at = 0; at < options.filters_count; at++) {
        const struct argument_filter *filter = &options.filters[at];
        if ((asked->data.args[filter->index] & filter->mask) != filter->value) return 0;
    }
    return !options.kind || strcmp(kind_of(asked), options.kind) == 0;
}

// Says of which thread and on what a call is made to fail.
static void note_failure(const struct seccomp_notif *asked)
{
    char path[64], thread[32] = "?", target[256] = "-";
    snprintf(path, sizeof path, "/proc/%u/comm", asked->pid);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fgets(thread, sizeof thread, file)) thread[strcspn(thread, "\n")] = '\0';
        fclose(file);
    }
    snprintf(path, sizeof path, "/proc/%u/fd/%d", asked->pid, (int)asked->data.args[0]);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length > 0) target[length] = '\0';
    const unsigned long long *of = (const unsigned long long *)asked->data.args;
    fprintf(state.report, "failed_on %s: %s (%llx, %llx, %llx)\n", thread, target, of[0], of[1], of[2]);
}

static void answer_one(int listener)
{
    struct seccomp_notif asked;
    memset(&asked, 0, sizeof asked);
    // The process that asked may be dead by now; then there is nothing to answer.
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) return;
    if (options.arm_at && !state.armed && asked.data.nr == SYS_openat && opens_marker(&asked)) state.armed = 1;
    struct seccomp_notif_resp answer = { .id = asked.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
    int number = asked.data.nr;
    if (options.survey && state.armed && number >= 0 && number < CALLS_MAX) state.seen_of[number]++;
    if (!options.survey && is_counted(&asked)) {
        state.seen++;
        if (state.seen == options.nth || (options.all_from_there && state.seen > options.nth)) {
            if (state.failed++ == 0) note_failure(&asked);
            answer.flags = 0;
            answer.error = -options.error;
            answer.val = options.error ? 0 : options.value;
        }
    }
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

// Until the command has ended; returns its status.
static int serve(pid_t child, int listener, int signals)
{
    struct pollfd ready[] = { { listener, POLLIN, 0 }, { signals, POLLIN, 0 } };
    for (;;) {
        if (poll(ready, 2, -1) < 0 && errno != EINTR) die("poll: %s", strerror(errno));
        if (ready[0].revents & POLLIN) answer_one(listener);
        else if (ready[0].revents) ready[0].fd = -1; // no process is left under the filter
        if (!(ready[1].revents & POLLIN)) continue;
        struct signalfd_siginfo signal;
        if (read(signals, &signal, sizeof signal) != sizeof signal) continue;
        if (signal.ssi_signo == SIGUSR1) {
            state.armed = 1;
            fputs("armed 1\n", state.report);
            continue;
        }
        if (signal.ssi_signo != SIGCHLD) {
            kill(child, (int)signal.ssi_signo);
            continue;
        }
        int status;
        if (waitpid(child, &status, WNOHANG) == child && (WIFEXITED(status) || WIFSIGNALED(status))) return status;
    }
}

int main(int count, char **words)
{
    read_options(count, words);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    state.armed = !options.arm_at && !options.arm_by_signal;
    state.report = fopen(options.report_path, "we");
    if (!state.report) die("%s: %s", options.report_path, strerror(errno));
    setvbuf(state.report, NULL, _IOLBF, 0);
    sigset_t handled;
    sigemptyset(&handled);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGINT);
    sigaddset(&handled, SIGUSR1);
    sigaddset(&handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    int signals = signalfd(-1, &handled, SFD_CLOEXEC);
    if (signals < 0) die("signalfd: %s", strerror(errno));
    int listener;
    pid_t child = start(&listener);
    fprintf(state.report, "pid %d\n", child);
    int status = serve(child, listener, signals);
    fprintf(state.report, "seen %llu\nfailed %llu\nended %s %d\n", (unsigned long long)state.seen,
            (unsigned long long)state.failed, WIFEXITED(status) ? "exit" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    for (int call = 0; call < CALLS_MAX; call++)
        if (state.seen_of[call]) fprintf(state.report, "call %d %llu\n", call, (unsigned long long)state.seen_of[call]);
    fclose(state.report);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
