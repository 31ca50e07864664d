/*
 * The floor past the stack: the least a program can do to take datagrams from one queue with AF_XDP. It naps for a
 * millisecond, takes what is in the ring, proves both checksums of each frame as udpd does, touches sixteen bytes of
 * its payload and gives the chunk back, so whatever udpd costs above it is what udpd does for its user.
 *
 *   xdp_loop INTERFACE PORT SECONDS_MAX CPU
 *
 * Prints "ready" once bound, and one line of JSON when it ends: on SIGTERM or after SECONDS_MAX. IPv4 without options,
 * queue 0, native mode, copied into 4,096 chunks of 2,048 bytes. Everything else passes to the kernel's stack.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CHUNKS = 4096, CHUNK_BYTES = 2048, TOUCHED_BYTES = 16, NAP_NS = 1000000 };
enum { IP_AT = 14, UDP_AT = IP_AT + 20, PAYLOAD_AT = UDP_AT + 8 };

static volatile sig_atomic_t ending;
static volatile unsigned char touched; /* volatile: the compiler must not skip the reads */

struct counts {
    uint64_t received, bytes, refused;
};

/* One side writes the producer, the other the consumer. */
struct ring {
    uint32_t *producer, *consumer;
    void *entries;
    uint32_t next;
};

static void die(const char *operation)
{
    fprintf(stderr, "xdp_loop: %s: %s\n", operation, strerror(errno));
    exit(1);
}

static void end(int signal_number)
{
    (void)signal_number;
    ending = 1;
}

static void catch_signals(unsigned seconds_max)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = end;
    if (sigaction(SIGTERM, &action, NULL) || sigaction(SIGINT, &action, NULL) || sigaction(SIGALRM, &action, NULL))
        die("sigaction");
    alarm(seconds_max);
}

static int bpf(int command, union bpf_attr *attributes, const char *what)
{
    int fd = (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
    if (fd < 0)
        die(what);
    return fd;
}

#define INSTRUCTION(c, d, s, o, i) \
    ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)})
#define LOAD(size, to, from, at) INSTRUCTION(BPF_LDX | BPF_MEM | (size), to, from, at, 0)
#define SET(to, value) INSTRUCTION(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value)
#define COPY(to, from) INSTRUCTION(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0)
#define UNLESS(reg, value, skipped) INSTRUCTION(BPF_JMP | BPF_JNE | BPF_K, reg, 0, skipped, value)

/* Hands over IPv4 datagrams without options to the port, and lets everything else pass. */
static int load_program(int map, int port)
{
    struct bpf_insn program[] = {
        COPY(6, 1),
        LOAD(BPF_W, 2, 6, 0), /* where the frame begins and ends */
        LOAD(BPF_W, 3, 6, 4),
        COPY(4, 2),
        INSTRUCTION(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, PAYLOAD_AT),
        INSTRUCTION(BPF_JMP | BPF_JGT | BPF_X, 4, 3, 14, 0),
        LOAD(BPF_H, 5, 2, 12), UNLESS(5, htons(0x0800), 12),
        LOAD(BPF_B, 5, 2, IP_AT), UNLESS(5, 0x45, 10),
        LOAD(BPF_B, 5, 2, IP_AT + 9), UNLESS(5, 17, 8),
        LOAD(BPF_H, 5, 2, UDP_AT + 2), UNLESS(5, htons((uint16_t)port), 6),
        LOAD(BPF_W, 2, 6, 16), /* the queue */
        INSTRUCTION(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map), INSTRUCTION(0, 0, 0, 0, 0),
        SET(3, XDP_PASS),
        INSTRUCTION(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
        INSTRUCTION(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
        SET(0, XDP_PASS),
        INSTRUCTION(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    union bpf_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.prog_type = BPF_PROG_TYPE_XDP;
    attributes.expected_attach_type = BPF_XDP;
    attributes.insns = (uint64_t)(uintptr_t)program;
    attributes.insn_cnt = sizeof program / sizeof *program;
    attributes.license = (uint64_t)(uintptr_t)"MIT";
    return bpf(BPF_PROG_LOAD, &attributes, "bpf BPF_PROG_LOAD");
}

/* The map that names the socket of queue 0, with the program that uses it at the interface for as long as we live. */
static void attach(int interface, int port, int socket_fd)
{
    union bpf_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.map_type = BPF_MAP_TYPE_XSKMAP;
    attributes.key_size = attributes.value_size = 4;
    attributes.max_entries = 1;
    int map = bpf(BPF_MAP_CREATE, &attributes, "bpf BPF_MAP_CREATE");
    uint32_t queue = 0, value = (uint32_t)socket_fd;
    memset(&attributes, 0, sizeof attributes);
    attributes.map_fd = (uint32_t)map;
    attributes.key = (uint64_t)(uintptr_t)&queue;
    attributes.value = (uint64_t)(uintptr_t)&value;
    bpf(BPF_MAP_UPDATE_ELEM, &attributes, "bpf BPF_MAP_UPDATE_ELEM");
    int program = load_program(map, port);
    memset(&attributes, 0, sizeof attributes);
    attributes.link_create.prog_fd = (uint32_t)program;
    attributes.link_create.target_ifindex = (uint32_t)interface;
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = XDP_FLAGS_DRV_MODE;
    bpf(BPF_LINK_CREATE, &attributes, "bpf BPF_LINK_CREATE");
}

static void set(int fd, int option, const void *value, socklen_t length, const char *what)
{
    if (setsockopt(fd, SOL_XDP, option, value, length))
        die(what);
}

static struct ring map_ring(int fd, uint64_t place, const struct xdp_ring_offset *offsets, size_t entry_bytes)
{
    size_t bytes = offsets->desc + CHUNKS * entry_bytes;
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)place);
    if (base == MAP_FAILED)
        die("mmap of a ring");
    return (struct ring){(uint32_t *)(base + offsets->producer), (uint32_t *)(base + offsets->consumer),
                         base + offsets->desc, 0};
}

static int open_socket(unsigned char *chunks, int interface, struct ring *fill, struct ring *receive)
{
    int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket AF_XDP");
    struct xdp_umem_reg memory = {.addr = (uint64_t)(uintptr_t)chunks, .len = (uint64_t)CHUNKS * CHUNK_BYTES,
                                  .chunk_size = CHUNK_BYTES};
    set(fd, XDP_UMEM_REG, &memory, sizeof memory, "setsockopt XDP_UMEM_REG");
    int entries = CHUNKS;
    set(fd, XDP_UMEM_FILL_RING, &entries, sizeof entries, "setsockopt XDP_UMEM_FILL_RING");
    set(fd, XDP_UMEM_COMPLETION_RING, &entries, sizeof entries, "setsockopt XDP_UMEM_COMPLETION_RING");
    set(fd, XDP_RX_RING, &entries, sizeof entries, "setsockopt XDP_RX_RING");
    struct xdp_mmap_offsets offsets;
    socklen_t length = sizeof offsets;
    if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length))
        die("getsockopt XDP_MMAP_OFFSETS");
    *fill = map_ring(fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, sizeof(uint64_t));
    *receive = map_ring(fd, XDP_PGOFF_RX_RING, &offsets.rx, sizeof(struct xdp_desc));
    for (uint64_t chunk = 0; chunk < CHUNKS; chunk++)
        ((uint64_t *)fill->entries)[fill->next++] = chunk * CHUNK_BYTES;
    __atomic_store_n(fill->producer, fill->next, __ATOMIC_RELEASE);
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY, .sxdp_ifindex = (uint32_t)interface};
    /* The kernel lets go of a queue a moment after the process that had it has ended. */
    for (int tries = 0; bind(fd, (struct sockaddr *)&address, sizeof address); tries++) {
        if (errno != EBUSY || tries == 2000)
            die("bind");
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    return fd;
}

static uint64_t add(uint64_t sum, const unsigned char *bytes, size_t length)
{
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        sum += word;
        sum += sum < word;
    }
    uint64_t last = 0;
    memcpy(&last, bytes, length);
    sum += last;
    return sum + (sum < last);
}

static uint16_t fold(uint64_t sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)((sum & 0xffff) + (sum >> 16));
}

/* Whether both checksums are right; the second may be the sum of the addresses, left to a device that there is not. */
static int is_right(const unsigned char *frame, size_t length)
{
    uint16_t udp_bytes, checksum;
    memcpy(&udp_bytes, frame + UDP_AT + 4, 2);
    memcpy(&checksum, frame + UDP_AT + 6, 2);
    size_t bytes = ntohs(udp_bytes);
    if (bytes < 8 || UDP_AT + bytes > length || fold(add(0, frame + IP_AT, 20)) != 0xffff)
        return 0;
    uint64_t fixed = add(add(htons(17), (unsigned char *)&udp_bytes, 2), frame + IP_AT + 12, 8);
    return checksum == 0 || fold(add(fixed, frame + UDP_AT, bytes)) == 0xffff || fold(fixed) == checksum;
}

/* Takes everything that is in the ring and gives the chunks back. */
static void take(const unsigned char *chunks, struct ring *fill, struct ring *receive, struct counts *counts)
{
    uint32_t written = __atomic_load_n(receive->producer, __ATOMIC_ACQUIRE);
    unsigned char sum = 0;
    for (; receive->next != written; receive->next++) {
        const struct xdp_desc *filled = (struct xdp_desc *)receive->entries + receive->next % CHUNKS;
        const unsigned char *frame = chunks + filled->addr;
        if (is_right(frame, filled->len)) {
            size_t length = filled->len - PAYLOAD_AT < TOUCHED_BYTES ? filled->len - PAYLOAD_AT : TOUCHED_BYTES;
            for (size_t k = 0; k < length; k++)
                sum ^= frame[PAYLOAD_AT + k];
            counts->received++;
            counts->bytes += filled->len - PAYLOAD_AT;
        } else {
            counts->refused++;
        }
        ((uint64_t *)fill->entries)[fill->next++ % CHUNKS] = filled->addr / CHUNK_BYTES * CHUNK_BYTES;
    }
    touched ^= sum;
    __atomic_store_n(receive->consumer, receive->next, __ATOMIC_RELEASE);
    __atomic_store_n(fill->producer, fill->next, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: xdp_loop INTERFACE PORT SECONDS_MAX CPU\n");
        return 2;
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(argv[4]), &cores);
    if (sched_setaffinity(0, sizeof cores, &cores))
        die("sched_setaffinity");
    int interface = (int)if_nametoindex(argv[1]);
    if (!interface)
        die(argv[1]);
    unsigned char *chunks = mmap(NULL, (size_t)CHUNKS * CHUNK_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (chunks == MAP_FAILED)
        die("mmap");
    struct ring fill, receive;
    int fd = open_socket(chunks, interface, &fill, &receive);
    attach(interface, atoi(argv[2]), fd);
    catch_signals((unsigned)atoi(argv[3]));
    printf("ready\n");
    fflush(stdout);

    struct counts counts = {0, 0, 0};
    while (!ending) {
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
        take(chunks, &fill, &receive, &counts);
    }
    take(chunks, &fill, &receive, &counts);
    struct xdp_statistics dropped;
    socklen_t length = sizeof dropped;
    if (getsockopt(fd, SOL_XDP, XDP_STATISTICS, &dropped, &length))
        die("getsockopt XDP_STATISTICS");
    printf("{\"received\":%llu,\"bytes\":%llu,\"refused\":%llu,\"kernel_dropped\":%llu}\n",
           (unsigned long long)counts.received, (unsigned long long)counts.bytes, (unsigned long long)counts.refused,
           (unsigned long long)(dropped.rx_dropped + dropped.rx_ring_full));
    return 0;
}
