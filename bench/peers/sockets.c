/* A byte stream over a plain socket: tcp on loopback or a Unix socket, two processes on cores 0 and 1.
 *
 *   sockets tcp|unix throughput SIZE COUNT        bytes of COUNT writes of SIZE, until the receiver has told that it has all
 *   sockets tcp|unix latency|blocking SIZE COUNT  there and back, polling or blocking
 *
 * Prints one JSON object. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <errno.h>
#include <unistd.h>

static void check(int ok, const char *what) {
    if (!ok) { perror(what); exit(1); }
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void all(int fd, char *bytes, size_t length, int writes) {
    while (length) {
        ssize_t n = writes ? write(fd, bytes, length) : read(fd, bytes, length);
        if (n < 0 && errno == EAGAIN) continue;
        check(n > 0, writes ? "write" : "read");
        bytes += n;
        length -= n;
    }
}

static void connect_pair(int tcp, int fds[2]) {
    if (!tcp) {
        int room = 4 << 20;
        check(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds), "socketpair");
        for (int i = 0; i < 2; i++) {
            setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
            setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        }
        return;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    check(!bind(listener, (struct sockaddr *)&address, length) && !listen(listener, 1), "listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(!connect(fds[0], (struct sockaddr *)&address, length), "connect");
    fds[1] = accept(listener, NULL, NULL);
    for (int i = 0; i < 2; i++) setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    check(argc == 5, "use: sockets tcp|unix throughput|latency|blocking SIZE COUNT");
    size_t size = strtoull(argv[3], NULL, 10), count = strtoull(argv[4], NULL, 10);
    int throughput = !strcmp(argv[2], "throughput"), fds[2];
    connect_pair(!strcmp(argv[1], "tcp"), fds);
    if (!strcmp(argv[2], "latency"))
        for (int i = 0; i < 2; i++) fcntl(fds[i], F_SETFL, O_NONBLOCK);
    char *bytes = aligned_alloc(4096, (size + 4095) & ~4095ull);
    memset(bytes, 1, size);
    double *times = calloc(count, sizeof *times);
    if (fork() == 0) {
        pin(1);
        for (size_t i = 0; i < count; i++) {
            all(fds[1], bytes, size, 0);
            if (!throughput) all(fds[1], bytes, size, 1);
        }
        if (throughput) all(fds[1], bytes, 1, 1);
        return 0;
    }
    pin(0);
    double begun = now();
    for (size_t i = 0; i < count; i++) {
        double thrown = now();
        all(fds[0], bytes, size, 1);
        if (!throughput) all(fds[0], bytes, size, 0);
        times[i] = now() - thrown;
    }
    if (throughput) all(fds[0], bytes, 1, 0);
    double seconds = now() - begun;
    qsort(times, count, sizeof *times, ascending);
    printf("{\"messages_per_second\": %.3f, \"round_trip_ns\": %.0f}\n", count / seconds, times[count / 2] * 1e9);
    wait(NULL);
    return 0;
}
