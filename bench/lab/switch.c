/* A network in one process: every host's card is a TAP device in the host's own namespace, and whatever it sends comes
 * here, to be passed on after the time that the way would take. How fast it may send is its own kernel's business.
 *
 * Told on standard input, one command a line; whoever tells must stay, for the end of input is the end of the network.
 *
 *   lossy                             some packets will be lost: no host may hand over several as one
 *   host NAMESPACE DEVICE DOWN        one more host (0, 1, ...), and what reaches it, in bytes a second; 0: no limit
 *   path I J LATENCY LOSS             what lies between two hosts, each way, in seconds and as a part of the packets
 *   start                             answered by "ready"
 *   rate I DOWN                       from now on
 *   link I up|down                    a pulled cable: nothing comes or goes, and nobody is told
 *
 * A packet travels and then arrives bit by bit; the line towards a host keeps 50 ms of packets and drops the rest. Large
 * packets (segmentation offload) are passed on as they are, and count as the packets that they stand for.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define HOSTS_MAX 128
#define PACKET_MAX (66 * 1024)
#define BATCH 64             /* packets read from one host before others get a turn */
#define QUEUE_S 0.05         /* what a line towards a host keeps */
#define QUEUE_BYTES_MIN 65536.0
#define HEADERS 14           /* of a frame, before what the offload's header counts */

typedef struct {
    double at;               /* when something happens to it */
    uint64_t order;          /* of those that are due at once the first goes first */
    int to;
    int arrived;
    size_t size, wire;       /* bytes with the offload's header; bytes on the wire */
    unsigned char bytes[];
} Packet;

typedef struct {
    int fd;
    double down;             /* bytes a second; 0: no limit */
    double down_free;        /* when the line towards it has brought all that it was given */
    int plugged;
} Host;

static Host hosts[HOSTS_MAX];
static double latency[HOSTS_MAX][HOSTS_MAX], loss[HOSTS_MAX][HOSTS_MAX];
static int count, lossy;
static Packet **heap;
static size_t waiting, room;
static uint64_t orders;

static void fail(const char *what) {
    fprintf(stderr, "switch: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- packets by the time at which something happens to them */

static int before(const Packet *a, const Packet *b) {
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void push(Packet *packet) {
    if (waiting == room) {
        room = room ? 2 * room : 1024;
        heap = realloc(heap, room * sizeof *heap);
        if (!heap) fail("memory");
    }
    packet->order = orders++;
    size_t at = waiting++;
    while (at && before(packet, heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = packet;
}

static Packet *pop(void) {
    Packet *first = heap[0], *last = heap[--waiting];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < waiting) {
        if (child + 1 < waiting && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], last)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

/* ---- the way of a packet */

static size_t wire_bytes(const unsigned char *bytes, size_t size) {
    const struct virtio_net_hdr *head = (const void *)bytes;
    size_t frame = size - sizeof *head;
    if (head->gso_type == VIRTIO_NET_HDR_GSO_NONE || !head->gso_size || !head->hdr_len) return frame;
    size_t headers = head->hdr_len < frame ? head->hdr_len : HEADERS;
    size_t pieces = (frame - headers + head->gso_size - 1) / head->gso_size;
    return frame + (pieces ? pieces - 1 : 0) * headers;
}

static void travel(int from, int to, const unsigned char *bytes, size_t size, size_t wire, double now) {
    if (!hosts[to].plugged || drand48() < loss[from][to]) return;
    Packet *packet = malloc(sizeof *packet + size);
    if (!packet) fail("memory");
    packet->to = to;
    packet->arrived = 0;
    packet->size = size;
    packet->wire = wire;
    packet->at = now + latency[from][to];
    memcpy(packet->bytes, bytes, size);
    push(packet);
}

/* Read what a host sends. */
static void depart(int from, double now) {
    static unsigned char bytes[PACKET_MAX];
    Host *host = &hosts[from];
    for (int turn = 0; turn < BATCH; turn++) {
        ssize_t size = read(host->fd, bytes, sizeof bytes);
        if (size < (ssize_t)(sizeof(struct virtio_net_hdr) + HEADERS)) return;
        if (!host->plugged) continue;
        const unsigned char *target = bytes + sizeof(struct virtio_net_hdr);
        size_t wire = wire_bytes(bytes, size);
        int to = target[4] << 8 | target[5];
        if (target[0] & 1) {
            for (int each = 0; each < count; each++)
                if (each != from) travel(from, each, bytes, size, wire, now);
        } else if (target[0] == 2 && to < count && to != from) {
            travel(from, to, bytes, size, wire, now);
        }
    }
}

/* A packet has come to the line towards its host: it is there when that has brought the last bit. */
static void arrive(Packet *packet) {
    Host *host = &hosts[packet->to];
    double start = host->down_free > packet->at ? host->down_free : packet->at;
    double queue = host->down * QUEUE_S > QUEUE_BYTES_MIN ? host->down * QUEUE_S : QUEUE_BYTES_MIN;
    if (host->down && (start - packet->at) * host->down > queue) {
        free(packet);
        return;
    }
    host->down_free = packet->at = host->down ? start + packet->wire / host->down : start;
    packet->arrived = 1;
    push(packet);
}

static void deliver(Packet *packet) {
    Host *host = &hosts[packet->to];
    if (host->plugged && write(host->fd, packet->bytes, packet->size) < 0 && errno != EAGAIN && errno != EIO &&
        errno != EINVAL)
        fail("write");
    free(packet);
}

/* ---- what we are told */

static int tap(const char *space, const char *device, int offload) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", space);
    int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET)) fail(path);
    close(there);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    memcpy(request.ifr_name, device, strlen(device));
    if (ioctl(fd, TUNSETIFF, &request)) fail(device);
    unsigned flags = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
#ifdef TUN_F_USO4
    if (offload && !ioctl(fd, TUNSETOFFLOAD, flags | TUN_F_USO4 | TUN_F_USO6)) return fd;
#endif
    if (offload && ioctl(fd, TUNSETOFFLOAD, flags)) fail("TUNSETOFFLOAD");
    return fd;
}

static int known(int host) {
    if (host >= 0 && host < count) return 1;
    fprintf(stderr, "switch: there is no host %d\n", host);
    exit(2);
}

static void obey(char *line) {
    char space[128], device[IFNAMSIZ], state[8];
    double down, far, lost;
    int i, j;
    if (sscanf(line, "host %127s %15s %lf", space, device, &down) == 3 && count < HOSTS_MAX) {
        hosts[count] = (Host){.fd = tap(space, device, !lossy), .down = down, .plugged = 1};
        count++;
    } else if (!strcmp(line, "lossy")) {
        lossy = 1;
    } else if (sscanf(line, "path %d %d %lf %lf", &i, &j, &far, &lost) == 4 && known(i) && known(j)) {
        latency[i][j] = latency[j][i] = far;
        loss[i][j] = loss[j][i] = lost;
    } else if (sscanf(line, "rate %d %lf", &i, &down) == 2 && known(i)) {
        hosts[i].down = down;
    } else if (sscanf(line, "link %d %7s", &i, state) == 2 && known(i)) {
        hosts[i].plugged = !strcmp(state, "up");
    } else if (!strcmp(line, "start")) {
        printf("ready\n");
        fflush(stdout);
    } else {
        fprintf(stderr, "switch: not understood: %s\n", line);
        exit(2);
    }
}

static void listen_to_teller(void) {
    static char text[65536];
    static size_t held;
    ssize_t came = read(0, text + held, sizeof text - held - 1);
    if (came == 0) exit(0);
    if (came < 0) return;
    held += came;
    char *line = text, *end;
    while ((end = memchr(line, '\n', text + held - line))) {
        *end = 0;
        obey(line);
        line = end + 1;
    }
    held = text + held - line;
    memmove(text, line, held);
}

int main(void) {
    struct pollfd fds[HOSTS_MAX + 1];
    srand48(1);
    fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
    for (;;) {
        double now = now_s(), wake = now + 1.0;
        while (waiting && heap[0]->at <= now) {
            Packet *packet = pop();
            if (packet->arrived) deliver(packet);
            else arrive(packet);
        }
        if (waiting && heap[0]->at < wake) wake = heap[0]->at;
        fds[0] = (struct pollfd){.fd = 0, .events = POLLIN};
        for (int i = 0; i < count; i++) {
            fds[i + 1] = (struct pollfd){.fd = hosts[i].fd, .events = POLLIN};
        }
        double wait = wake > now ? wake - now : 0;
        struct timespec limit = {.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - (time_t)wait) * 1e9)};
        if (ppoll(fds, count + 1, &limit, NULL) < 0 && errno != EINTR) fail("poll");
        now = now_s();
        for (int i = 0; i < count; i++)
            if (fds[i + 1].revents) depart(i, now);
        if (fds[0].revents) listen_to_teller();
    }
}
