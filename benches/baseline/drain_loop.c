/*
 * The floor of receiving without any waiting: fills a socket with datagrams and takes them out again with recvmmsg,
 * ROUNDS times, and prints the nanoseconds that one datagram took to take out. Filling is not in the figure.
 *
 *   drain_loop QUEUED ROUNDS CPU [BATCH=64]
 *
 * The settings are those of benches/against_c_drain.rs: 32-byte payloads, slots of 2,048 bytes, source addresses on,
 * headers built once and only lengths reset between calls.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { PAYLOAD_BYTES = 32, SLOT_BYTES = 2048, BATCH_MAX = 1024, BUFFER_BYTES = 64 << 20 };

static struct mmsghdr incoming[BATCH_MAX], outgoing[BATCH_MAX];
static struct iovec slots[BATCH_MAX], payload;
static struct sockaddr_storage sources[BATCH_MAX];
static char bytes[PAYLOAD_BYTES];
static volatile uint64_t touched; /* volatile: the compiler must not skip the sum */

static void die(const char *operation)
{
    fprintf(stderr, "drain_loop: %s: %s\n", operation, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void build_headers(void)
{
    char *arena = calloc(BATCH_MAX, SLOT_BYTES);
    if (!arena)
        die("calloc");
    payload.iov_base = bytes;
    payload.iov_len = sizeof bytes;
    for (int slot = 0; slot < BATCH_MAX; slot++) {
        slots[slot].iov_base = arena + (size_t)slot * SLOT_BYTES;
        slots[slot].iov_len = SLOT_BYTES;
        incoming[slot].msg_hdr.msg_iov = &slots[slot];
        incoming[slot].msg_hdr.msg_iovlen = 1;
        incoming[slot].msg_hdr.msg_name = &sources[slot];
        outgoing[slot].msg_hdr.msg_iov = &payload;
        outgoing[slot].msg_hdr.msg_iovlen = 1;
    }
}

static void open_pair(int *receiver, int *sender)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int size = BUFFER_BYTES;
    *receiver = socket(AF_INET, SOCK_DGRAM, 0);
    *sender = socket(AF_INET, SOCK_DGRAM, 0);
    if (*receiver < 0 || *sender < 0)
        die("socket");
    if (setsockopt(*receiver, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) &&
        setsockopt(*receiver, SOL_SOCKET, SO_RCVBUF, &size, sizeof size))
        die("SO_RCVBUF");
    if (bind(*receiver, (struct sockaddr *)&address, sizeof address) ||
        getsockname(*receiver, (struct sockaddr *)&address, &length) ||
        connect(*sender, (struct sockaddr *)&address, sizeof address))
        die("bind and connect");
}

static void fill(int sender, int count)
{
    while (count > 0) {
        int sent = sendmmsg(sender, outgoing, count < 64 ? (unsigned)count : 64, 0);
        if (sent < 0)
            die("sendmmsg");
        count -= sent;
    }
}

static uint64_t drain(int receiver, int count, int batch)
{
    uint64_t begun = now_ns(), sum = 0;
    while (count > 0) {
        for (int slot = 0; slot < batch; slot++)
            incoming[slot].msg_hdr.msg_namelen = sizeof sources[slot];
        int received = recvmmsg(receiver, incoming, (unsigned)batch, MSG_DONTWAIT, NULL);
        if (received < 0)
            die("recvmmsg");
        for (int slot = 0; slot < received; slot++)
            sum += incoming[slot].msg_len + *(unsigned char *)slots[slot].iov_base;
        count -= received;
    }
    touched = sum;
    return now_ns() - begun;
}

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "usage: drain_loop QUEUED ROUNDS CPU [BATCH]\n");
        return 2;
    }
    int queued = atoi(arguments[1]), rounds = atoi(arguments[2]), batch = count > 4 ? atoi(arguments[4]) : 64;
    if (queued < 1 || rounds < 1 || batch < 1 || batch > BATCH_MAX) {
        fprintf(stderr, "drain_loop: QUEUED and ROUNDS are at least 1, BATCH is 1 to %d\n", BATCH_MAX);
        return 2;
    }
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(arguments[3]), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus))
        die("sched_setaffinity");
    int receiver, sender;
    uint64_t took_ns = 0;
    build_headers();
    open_pair(&receiver, &sender);
    for (int round = 0; round < rounds; round++) {
        fill(sender, queued);
        took_ns += drain(receiver, queued, batch);
    }
    printf("%.3f\n", (double)took_ns / ((double)queued * rounds));
    return 0;
}
