/* ZeroMQ as a peer: one XPUB publisher and some SUB subscribers, each a process, on TCP over loopback. The publisher
 * waits instead of dropping (XPUB_NODROP); the rate is that of the slowest subscriber.
 *
 * build: cc -O2 -o zeromq zeromq.c -lzmq
 * use:   zeromq throughput|latency SIZE MESSAGES SUBSCRIBERS */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { HIGH_WATER = 10000, WARM_UP = 1000 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void check(int ok, const char *what) {
  if (!ok) fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno())), exit(1);
}

static void set(void *socket, int option, int value) {
  check(zmq_setsockopt(socket, option, &value, sizeof value) == 0, "zmq_setsockopt");
}

static void finish(void *context, void *socket) {
  zmq_close(socket);
  zmq_ctx_term(context);
}

static void subscriber(const char *endpoint, long messages, int report) {
  void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_SUB);
  set(socket, ZMQ_RCVHWM, HIGH_WATER);
  zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
  check(zmq_connect(socket, endpoint) == 0, "zmq_connect");
  zmq_msg_t message;
  zmq_msg_init(&message);
  double start = 0;
  for (long i = 0; i < messages; i++) {
    check(zmq_msg_recv(&message, socket, 0) >= 0, "zmq_msg_recv");
    if (i == 0) start = now();
  }
  double seconds = now() - start;
  check(write(report, &seconds, sizeof seconds) == sizeof seconds, "write");
  finish(context, socket);
}

static void throughput(const char *endpoint, size_t size, long messages, int subscribers) {
  int report[2];
  check(pipe(report) == 0, "pipe");
  for (int i = 0; i < subscribers; i++)
    if (fork() == 0) subscriber(endpoint, messages, report[1]), exit(0);
  void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_XPUB);
  set(socket, ZMQ_SNDHWM, HIGH_WATER);
  set(socket, ZMQ_XPUB_NODROP, 1);
  set(socket, ZMQ_XPUB_VERBOSE, 1); /* so that each subscription is seen, not only the first */
  check(zmq_bind(socket, endpoint) == 0, "zmq_bind");
  char subscription[16];
  for (int i = 0; i < subscribers; i++) zmq_recv(socket, subscription, sizeof subscription, 0);
  for (long i = 0; i < messages; i++) {
    zmq_msg_t message;
    zmq_msg_init_size(&message, size);
    memset(zmq_msg_data(&message), 1, size);
    check(zmq_msg_send(&message, socket, 0) >= 0, "zmq_msg_send");
  }
  double slowest = 0, seconds;
  for (int i = 0; i < subscribers; i++) {
    check(read(report[0], &seconds, sizeof seconds) == sizeof seconds, "read");
    if (seconds > slowest) slowest = seconds;
  }
  finish(context, socket);
  while (wait(0) > 0) {}
  printf("{\"size\":%zu,\"messages\":%ld,\"messages_per_second\":%.0f}\n", size, messages, (double)messages / slowest);
}

static void echo(const char *endpoint, size_t size, long messages) {
  void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_PAIR);
  char *buffer = calloc(1, size);
  check(zmq_connect(socket, endpoint) == 0, "zmq_connect");
  for (long i = 0; i < messages + WARM_UP; i++) {
    check(zmq_recv(socket, buffer, size, 0) >= 0, "zmq_recv");
    zmq_send(socket, buffer, size, 0);
  }
  finish(context, socket);
}

static void latency(const char *endpoint, size_t size, long messages) {
  if (fork() == 0) echo(endpoint, size, messages), exit(0);
  void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_PAIR);
  char *buffer = calloc(1, size);
  double *times = calloc((size_t)messages, sizeof *times);
  check(zmq_bind(socket, endpoint) == 0, "zmq_bind");
  for (long i = -WARM_UP; i < messages; i++) {
    double start = now();
    zmq_send(socket, buffer, size, 0);
    check(zmq_recv(socket, buffer, size, 0) >= 0, "zmq_recv");
    if (i >= 0) times[i] = now() - start;
  }
  finish(context, socket);
  while (wait(0) > 0) {}
  qsort(times, (size_t)messages, sizeof *times, ascending);
  printf("{\"size\":%zu,\"round_trip_ns\":{\"p50\":%.0f,\"p99\":%.0f}}\n", size, times[messages / 2] * 1e9,
         times[messages * 99 / 100] * 1e9);
}

int main(int argc, char **argv) {
  if (argc != 5) return fprintf(stderr, "use: zeromq throughput|latency SIZE MESSAGES SUBSCRIBERS\n"), 2;
  size_t size = (size_t)atol(argv[2]);
  char endpoint[64];
  snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", 20000 + getpid() % 20000);
  if (strcmp(argv[1], "latency") == 0) latency(endpoint, size, atol(argv[3]));
  else throughput(endpoint, size, atol(argv[3]), atoi(argv[4]));
  return 0;
}
