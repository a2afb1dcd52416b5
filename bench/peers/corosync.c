/* Corosync's closed process groups (CPG) as a peer: virtual synchrony with agreed order (Totem). One process a node.
 *
 * build: cc -O2 -o corosync corosync.c -lcpg
 * use:   corosync send|receive|latency SIZE SECONDS MEMBERS GROUP
 *   send      sends as fast as it may and counts what is delivered here
 *   receive   only counts
 *   latency   one message at a time, from its sending to its delivery here */
#define _GNU_SOURCE
#include <corosync/cpg.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SEND_BATCH = 64, SAMPLES_MAX = 20000 };
static const double WARM_UP_SECONDS = 0.5, JOIN_SECONDS_MAX = 20;

static unsigned node;
static long delivered, delivered_own;
static size_t members;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void on_message(cpg_handle_t handle, const struct cpg_name *group, uint32_t from_node, uint32_t from_process,
                       void *message, size_t length) {
  (void)handle, (void)group, (void)message, (void)length;
  delivered++;
  delivered_own += from_node == node && from_process == (uint32_t)getpid();
}

static void on_members(cpg_handle_t handle, const struct cpg_name *group, const struct cpg_address *now_in, size_t count,
                       const struct cpg_address *left, size_t left_count, const struct cpg_address *joined,
                       size_t joined_count) {
  (void)handle, (void)group, (void)now_in, (void)left, (void)left_count, (void)joined, (void)joined_count;
  members = count;
}

static void check(int ok, const char *what) {
  if (!ok) fprintf(stderr, "%s failed\n", what), exit(1);
}

static void wait_and_dispatch(cpg_handle_t handle, struct pollfd *ready, int milliseconds) {
  poll(ready, 1, milliseconds);
  cpg_dispatch(handle, CS_DISPATCH_ALL);
}

static int send_batch(cpg_handle_t handle, struct iovec *message) {
  int sent = 0;
  while (sent < SEND_BATCH && cpg_mcast_joined(handle, CPG_TYPE_AGREED, message, 1) == CS_OK) sent++;
  cpg_dispatch(handle, CS_DISPATCH_ALL);
  return sent;
}

static void throughput(cpg_handle_t handle, struct pollfd *ready, struct iovec *message, double seconds, int sends) {
  double begun = now(), measured_from = 0;
  long before = 0;
  while (now() - begun < WARM_UP_SECONDS + seconds) {
    if (measured_from == 0 && now() - begun > WARM_UP_SECONDS) {
      measured_from = now();
      before = delivered;
    }
    if (!sends) wait_and_dispatch(handle, ready, 50);
    else if (send_batch(handle, message) == 0) poll(ready, 1, 1);
  }
  printf("{\"size\":%zu,\"messages_per_second\":%.0f}\n", message->iov_len,
         (double)(delivered - before) / (now() - measured_from));
}

static void latency(cpg_handle_t handle, struct pollfd *ready, struct iovec *message, double seconds) {
  double *times = calloc(SAMPLES_MAX, sizeof *times), begun = now();
  int count = 0;
  while (now() - begun < seconds && count < SAMPLES_MAX) {
    double start = now();
    long before = delivered_own;
    while (cpg_mcast_joined(handle, CPG_TYPE_AGREED, message, 1) == CS_ERR_TRY_AGAIN)
      cpg_dispatch(handle, CS_DISPATCH_ALL);
    while (delivered_own == before) wait_and_dispatch(handle, ready, 1000);
    times[count++] = now() - start;
  }
  qsort(times, (size_t)count, sizeof *times, ascending);
  printf("{\"size\":%zu,\"latency_ns\":{\"p50\":%.0f,\"p99\":%.0f}}\n", message->iov_len, times[count / 2] * 1e9,
         times[count * 99 / 100] * 1e9);
}

int main(int argc, char **argv) {
  if (argc != 6) return fprintf(stderr, "use: corosync send|receive|latency SIZE SECONDS MEMBERS GROUP\n"), 2;
  size_t size = (size_t)atol(argv[2]), wanted = (size_t)atol(argv[4]);
  double seconds = atof(argv[3]);
  cpg_handle_t handle;
  cpg_callbacks_t callbacks = {on_message, on_members};
  check(cpg_initialize(&handle, &callbacks) == CS_OK, "cpg_initialize");
  cpg_local_get(handle, &node);
  struct cpg_name group;
  group.length = (unsigned)snprintf(group.value, sizeof group.value, "%s", argv[5]);
  check(cpg_join(handle, &group) == CS_OK, "cpg_join");
  int file;
  cpg_fd_get(handle, &file);
  struct pollfd ready = {.fd = file, .events = POLLIN};
  for (double begun = now(); members < wanted && now() - begun < JOIN_SECONDS_MAX;)
    wait_and_dispatch(handle, &ready, 100);
  check(members >= wanted, "joining");
  struct iovec message = {calloc(1, size), size};
  if (strcmp(argv[1], "latency") == 0) latency(handle, &ready, &message, seconds);
  else throughput(handle, &ready, &message, seconds, strcmp(argv[1], "send") == 0);
  cpg_leave(handle, &group);
  cpg_finalize(handle);
  return 0;
}
