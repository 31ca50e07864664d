/*
 * The floor of latency: a recvmsg loop that takes one datagram a call and compares the kernel's arrival time with the clock.
 *
 *   stamp_loop PORT COUNT CPU
 *
 * Prints "ready" once bound, and after COUNT datagrams the 50th, 99th and 99.9th percentile in microseconds.
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
#include <unistd.h>

static void die(const char *operation)
{
    fprintf(stderr, "stamp_loop: %s: %s\n", operation, strerror(errno));
    exit(1);
}

static int order(const void *one, const void *other)
{
    int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
    return (left > right) - (left < right);
}

static int64_t arrival_ns(struct msghdr *header)
{
    for (struct cmsghdr *message = CMSG_FIRSTHDR(header); message; message = CMSG_NXTHDR(header, message)) {
        if (message->cmsg_level == SOL_SOCKET && message->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec time;
            memcpy(&time, CMSG_DATA(message), sizeof time);
            return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: stamp_loop PORT COUNT CPU\n");
        return 2;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[3]), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0)
        die("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on))
        die("SO_TIMESTAMPNS");
    struct sockaddr_in address, source;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        die("bind");
    size_t count = (size_t)atol(argv[2]);
    int64_t *waited = calloc(count, sizeof *waited);
    if (!waited)
        die("calloc");
    memset(waited, 1, count * sizeof *waited); /* fault the pages in before anything is timed */
    alarm(120);
    printf("ready\n");
    fflush(stdout);
    for (size_t i = 0; i < count; i++) {
        char payload[2048], control[128];
        struct iovec vector = {payload, sizeof payload};
        struct msghdr header = {&source, sizeof source, &vector, 1, control, sizeof control, 0};
        if (recvmsg(fd, &header, 0) < 0)
            die("recvmsg");
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        waited[i] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - arrival_ns(&header);
    }
    qsort(waited, count, sizeof *waited, order);
    printf("%.3f %.3f %.3f\n", (double)waited[count / 2] / 1e3, (double)waited[count * 99 / 100] / 1e3,
           (double)waited[count * 999 / 1000] / 1e3);
    return 0;
}
