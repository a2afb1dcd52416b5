/* Plain TCP between hosts: streams from one host to others at once, or a message to one and back. Runs on each host of a lab:
 *
 *   squall lab --each -- streams {host} {addresses} rate RECEIVERS SECONDS     64 KiB at a time to each
 *   squall lab --each -- streams {host} {addresses} trip SIZE SECONDS          one message at a time
 *
 * Host 0 sends, and prints one JSON object: bytes per second for each receiver, or nanoseconds there and back. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT "7999"
#define HOSTS_MAX 64
#define TRIPS_MAX 1000000

static char bytes[1 << 16];

static void check(int ok, const char *what) {
    if (!ok) { perror(what); exit(1); }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct addrinfo *find(const char *host) {
    struct addrinfo wish = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    check(!getaddrinfo(host, PORT, &wish, &found), "getaddrinfo");
    return found;
}

static int accept_one(const char *host) {
    struct addrinfo *at = find(host);
    int listener = socket(at->ai_family, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    check(!bind(listener, at->ai_addr, at->ai_addrlen) && !listen(listener, 1), "listen");
    int stream = accept(listener, NULL, NULL);
    check(stream >= 0, "accept");
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return stream;
}

static int call(const char *host) {
    struct addrinfo *at = find(host);
    for (double end = now() + 30; now() < end; usleep(20000)) {
        int stream = socket(at->ai_family, SOCK_STREAM, 0), one = 1;
        setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!connect(stream, at->ai_addr, at->ai_addrlen)) return stream;
        close(stream);
    }
    fprintf(stderr, "no connection to %s\n", host);
    exit(1);
}

static void all(int stream, char *at, size_t left, int writes) {
    while (left) {
        ssize_t n = writes ? send(stream, at, left, MSG_NOSIGNAL) : recv(stream, at, left, 0);
        check(n > 0, writes ? "send" : "recv");
        at += n;
        left -= n;
    }
}

/* Takes all that comes; answers how many bytes, and in how many seconds. */
static void take(int stream) {
    double figures[2] = {0, 0}, begun = 0;
    for (ssize_t n; (n = recv(stream, bytes, sizeof bytes, 0)) > 0;) {
        if (!begun) begun = now();
        figures[0] += n;
        figures[1] = now() - begun;
    }
    all(stream, (char *)figures, sizeof figures, 1);
}

static void give(int *streams, int count, double seconds) {
    struct pollfd waits[HOSTS_MAX];
    for (int i = 0; i < count; i++) {
        waits[i] = (struct pollfd){.fd = streams[i], .events = POLLOUT};
        fcntl(streams[i], F_SETFL, O_NONBLOCK);
    }
    for (double end = now() + seconds; now() < end;) {
        check(poll(waits, count, 100) >= 0, "poll");
        for (int i = 0; i < count; i++)
            if (waits[i].revents) check(send(streams[i], bytes, sizeof bytes, MSG_NOSIGNAL) > 0 || errno == EAGAIN, "send");
    }
    printf("{\"bytes_per_second\": [");
    for (int i = 0; i < count; i++) {
        double figures[2];
        shutdown(streams[i], SHUT_WR);
        fcntl(streams[i], F_SETFL, 0);
        all(streams[i], (char *)figures, sizeof figures, 0);
        printf("%s%.0f", i ? ", " : "", figures[0] / figures[1]);
    }
    printf("]}\n");
}

static int by_length(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void trips(int stream, size_t size, double seconds) {
    static double times[TRIPS_MAX];
    int count = 0;
    for (double end = now() + seconds; now() < end && count < TRIPS_MAX;) {
        double begun = now();
        all(stream, bytes, size, 1);
        all(stream, bytes, size, 0);
        times[count++] = (now() - begun) * 1e9;
    }
    qsort(times, count, sizeof *times, by_length);
    printf("{\"trips\": %d, \"p50_ns\": %.0f, \"p99_ns\": %.0f}\n", count, times[count / 2], times[count * 99 / 100]);
}

int main(int argc, char **argv) {
    check(argc == 6, "usage: streams HOST ADDRESSES rate RECEIVERS SECONDS | trip SIZE SECONDS");
    char *addresses[HOSTS_MAX];
    int host = atoi(argv[1]), count = 0, rates = !strcmp(argv[3], "rate"), size = atoi(argv[4]), streams[HOSTS_MAX];
    for (char *at = strtok(argv[2], ", "); at && count < HOSTS_MAX; at = strtok(NULL, ", ")) addresses[count++] = at;
    int receivers = rates ? size : 1;
    if (receivers > count - 1) receivers = count - 1;
    if (host > receivers) return 0;
    if (host == 0) {
        for (int i = 0; i < receivers; i++) streams[i] = call(addresses[i + 1]);
        if (rates) give(streams, receivers, atof(argv[5]));
        else trips(streams[0], size, atof(argv[5]));
        return 0;
    }
    int stream = accept_one(addresses[host]);
    if (rates) take(stream);
    else while (recv(stream, bytes, size, MSG_WAITALL) == size) all(stream, bytes, size, 1);
    return 0;
}
