/*
 * The floor of sending: the least a program can do to send datagrams as fast as one core can, with sendmmsg. Sixteen
 * connected sockets take turns, 64 messages a call, headers built once; nothing is written into the payloads.
 *
 *   sendmmsg_loop PORT SECONDS BYTES CPU
 *
 * Sends to 127.0.0.1 and prints the datagrams a second that the kernel took.
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

enum { FLOWS = 16, BATCH = 64 };

static void die(const char *operation)
{
    fprintf(stderr, "sendmmsg_loop: %s: %s\n", operation, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time))
        die("clock_gettime");
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int open_flow(int port)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        die("connect");
    return fd;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: sendmmsg_loop PORT SECONDS BYTES CPU\n");
        return 2;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[4]), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
    size_t bytes = (size_t)atol(argv[3]);
    unsigned char *payload = calloc(BATCH, bytes);
    if (!payload)
        die("calloc");
    struct mmsghdr headers[BATCH];
    struct iovec vectors[BATCH];
    memset(headers, 0, sizeof headers);
    for (int i = 0; i < BATCH; i++) {
        vectors[i].iov_base = payload + (size_t)i * bytes;
        vectors[i].iov_len = bytes;
        headers[i].msg_hdr.msg_iov = &vectors[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    int flows[FLOWS];
    for (int i = 0; i < FLOWS; i++)
        flows[i] = open_flow(atoi(argv[1]));
    uint64_t sent = 0, begun = now_ns(), until = begun + (uint64_t)(atof(argv[2]) * 1e9), now = begun;
    for (unsigned turn = 0; now < until; turn++, now = now_ns()) {
        int taken = sendmmsg(flows[turn % FLOWS], headers, BATCH, 0);
        if (taken > 0)
            sent += (uint64_t)taken;
        else if (errno != ECONNREFUSED && errno != ENOBUFS && errno != EAGAIN)
            die("sendmmsg");
    }
    printf("%.0f\n", (double)sent * 1e9 / (double)(now - begun));
    return 0;
}
