/*
 * The floor: the least a program can do to take datagrams from one socket with recvmmsg. It counts them, touches sixteen
 * bytes of each and does nothing else, so whatever udpd costs above it is what udpd does for its user.
 *
 *   recvmmsg_loop PORT SECONDS_MAX BUFFER_BYTES CPU [BATCH=64 [ADDRESS=127.0.0.1]]
 *
 * Prints "ready" once bound, and one line of JSON when it ends: on SIGTERM or after SECONDS_MAX, having first taken what
 * still sat in the socket. The settings are those of a udpd lane: SO_RCVBUFFORCE then SO_RCVBUF, batches of 64, slots of
 * 2,048 bytes, MSG_WAITFORONE, source addresses on, headers built once and only lengths reset between calls.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sock_diag.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLOT_BYTES = 2048, BATCH_MAX = 1024, TOUCHED_BYTES = 16 };

static struct mmsghdr headers[BATCH_MAX];
static struct iovec vectors[BATCH_MAX];
static struct sockaddr_storage sources[BATCH_MAX];
static volatile sig_atomic_t ending;
static volatile unsigned char touched; /* volatile: the compiler must not skip the reads */

struct counts {
    uint64_t received, bytes, calls;
};

static void die(const char *operation)
{
    fprintf(stderr, "recvmmsg_loop: %s: %s\n", operation, strerror(errno));
    exit(1);
}

/* A signal that lands between the test of `ending` and the call would be missed; the alarm it sets is not. */
static void end(int signal_number)
{
    (void)signal_number;
    ending = 1;
    alarm(1);
}

static void catch_signals(unsigned seconds_max)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = end; /* without SA_RESTART: a waiting recvmmsg must come back */
    if (sigaction(SIGTERM, &action, NULL) || sigaction(SIGINT, &action, NULL) || sigaction(SIGALRM, &action, NULL))
        die("sigaction");
    alarm(seconds_max);
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

static int open_socket(const char *host, int port, int buffer_bytes)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes) &&
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes))
        die("setsockopt SO_RCVBUF");
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        fprintf(stderr, "recvmmsg_loop: ADDRESS %s: must be IPv4\n", host);
        exit(2);
    }
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        die("bind");
    return fd;
}

static void build_headers(unsigned batch)
{
    unsigned char *arena = calloc(batch, SLOT_BYTES);
    if (!arena)
        die("calloc");
    memset(arena, 1, (size_t)batch * SLOT_BYTES); /* fault the pages in before the clock runs */
    for (unsigned i = 0; i < batch; i++) {
        vectors[i].iov_base = arena + (size_t)i * SLOT_BYTES;
        vectors[i].iov_len = SLOT_BYTES;
        headers[i].msg_hdr.msg_iov = &vectors[i];
        headers[i].msg_hdr.msg_iovlen = 1;
        headers[i].msg_hdr.msg_name = &sources[i];
    }
}

/* One call; returns what recvmmsg returned. */
static int receive(int fd, unsigned batch, int flags, struct counts *counts)
{
    for (unsigned i = 0; i < batch; i++)
        headers[i].msg_hdr.msg_namelen = sizeof sources[i];
    int messages = recvmmsg(fd, headers, batch, flags, NULL);
    if (messages <= 0)
        return messages;
    unsigned char sum = 0;
    for (int i = 0; i < messages; i++) {
        const unsigned char *payload = vectors[i].iov_base;
        unsigned length = headers[i].msg_len < TOUCHED_BYTES ? headers[i].msg_len : TOUCHED_BYTES;
        for (unsigned k = 0; k < length; k++)
            sum ^= payload[k];
        counts->bytes += headers[i].msg_len;
    }
    touched ^= sum;
    counts->received += (uint64_t)messages;
    counts->calls++;
    return messages;
}

static uint32_t kernel_drops(int fd)
{
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t length = sizeof memory;
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &length))
        die("getsockopt SO_MEMINFO");
    return memory[SK_MEMINFO_DROPS];
}

static long long microseconds(struct timeval time)
{
    return time.tv_sec * 1000000LL + time.tv_usec;
}

static void report(int fd, const struct counts *counts)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage))
        die("getrusage");
    printf("{\"received\":%llu,\"bytes\":%llu,\"calls\":%llu,\"kernel_dropped\":%u,\"user_us\":%lld,\"system_us\":%lld}\n",
           (unsigned long long)counts->received, (unsigned long long)counts->bytes, (unsigned long long)counts->calls,
           kernel_drops(fd), microseconds(usage.ru_utime), microseconds(usage.ru_stime));
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 7) {
        fprintf(stderr, "usage: recvmmsg_loop PORT SECONDS_MAX BUFFER_BYTES CPU [BATCH=64 [ADDRESS=127.0.0.1]]\n");
        return 2;
    }
    int batch = argc > 5 ? atoi(argv[5]) : 64;
    if (batch < 1 || batch > BATCH_MAX) {
        fprintf(stderr, "recvmmsg_loop: BATCH %d: must be 1 to %d\n", batch, BATCH_MAX);
        return 2;
    }
    pin(atoi(argv[4])); /* before any memory is touched, so that it lies on this core's node */
    build_headers((unsigned)batch);
    int fd = open_socket(argc > 6 ? argv[6] : "127.0.0.1", atoi(argv[1]), atoi(argv[3]));
    catch_signals((unsigned)atoi(argv[2]));
    printf("ready\n");
    fflush(stdout);

    struct counts counts = {0, 0, 0};
    while (!ending) {
        if (receive(fd, (unsigned)batch, MSG_WAITFORONE, &counts) < 0 && errno != EINTR)
            die("recvmmsg");
    }
    while (receive(fd, (unsigned)batch, MSG_DONTWAIT, &counts) > 0)
        ;
    report(fd, &counts);
    return 0;
}
