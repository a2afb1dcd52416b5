/* The limit of same-host atomic multicast on this machine: the least that N processes can do to deliver the same
 * messages in the same round-robin order, each after all members have received it. Squall is compared with it.
 *
 * Each member owns one row (committed, received, delivered: separate cache lines) and one ring of slots, in memory
 * that all members map. Nothing is copied, locked, checked or recovered, members are fixed, and nobody ever parks:
 * a yardstick, not a design.
 *
 * build: cc -O3 -march=native -o multicast multicast.c
 * use:   multicast MEMBERS SIZE MESSAGES WINDOW TOUCH LATENCY
 *   SIZE       bytes, or any length between two, as in 8-512
 *   MESSAGES   for each sender; all members send (with LATENCY only member 0 does)
 *   WINDOW     slots of each ring
 *   TOUCH=1    the sender writes the whole payload, each receiver reads every cache line of it
 *   LATENCY=1  one message at a time, from its sending to its delivery at the sender
 * Prints one JSON object; messages_per_second is what each member delivers. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS_MAX = 64 };

typedef struct {
  _Alignas(128) _Atomic uint64_t committed; /* messages that this member has sent */
  _Alignas(128) _Atomic uint64_t received;  /* messages that it has seen, in the total order */
  _Alignas(128) _Atomic uint64_t delivered; /* delivered <= received of every member */
} Row;

typedef struct {
  uint64_t members, senders, size, least, slot, count, window, batch, total;
  int touch, latency, crowded;
  Row *rows;
  char *ring;
  _Atomic int *ready;
} Group;

typedef struct {
  uint64_t me, committed, received, delivered;
  uint64_t freed; /* messages that all members have delivered, as last seen */
  uint64_t sum;   /* keeps the compiler from leaving out the reads */
  double sent_at, *times;
  uint64_t samples;
} Member;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void *shared(size_t bytes) {
  void *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) exit((perror("mmap"), 1));
  return memory;
}

static void pin(uint64_t member) {
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(member % (uint64_t)sysconf(_SC_NPROCESSORS_ONLN), &cpu);
  sched_setaffinity(0, sizeof cpu, &cpu);
}

static inline uint64_t load(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_acquire); }
static inline void store(_Atomic uint64_t *word, uint64_t value) {
  atomic_store_explicit(word, value, memory_order_release);
}

/* The index up to which the window lets this member send now. */
static inline uint64_t may_send(const Group *g, Member *m) {
  if (g->latency) return m->committed + (m->delivered == m->committed);
  if (m->committed - m->freed / g->senders + 1 >= g->window) {
    m->freed = UINT64_MAX;
    for (uint64_t i = 0; i < g->members; i++) {
      uint64_t delivered = load(&g->rows[i].delivered);
      if (delivered < m->freed) m->freed = delivered;
    }
  }
  uint64_t until = m->freed / g->senders + g->window;
  if (until > g->count) until = g->count;
  return until > m->committed + g->batch ? m->committed + g->batch : until;
}

/* The length of a message: any between the two, as Squall's benchmark computes it. */
static inline uint64_t length(const Group *g, uint64_t number) {
  if (g->least == g->size) return g->size;
  uint64_t drawn = (number * 0x9E3779B97F4A7C15ull) >> 32;
  return g->least + ((drawn * (g->size - g->least + 1)) >> 32);
}

static inline int send_messages(const Group *g, Member *m) {
  if (m->me >= g->senders || m->committed == g->count) return 0;
  uint64_t until = may_send(g, m);
  if (m->committed >= until) return 0;
  if (g->latency) m->sent_at = now();
  for (; m->committed < until; m->committed++) {
    char *message = g->ring + (m->me * g->window + m->committed % g->window) * g->slot;
    uint64_t size = length(g, m->committed);
    *(uint64_t *)message = size;
    if (g->touch) memset(message + 8, (int)m->committed, size);
  }
  store(&g->rows[m->me].committed, m->committed);
  return 1;
}

static inline int receive(const Group *g, Member *m) {
  uint64_t from[MEMBERS_MAX], rounds = UINT64_MAX;
  for (uint64_t i = 0; i < g->senders; i++) {
    from[i] = i == m->me ? m->committed : load(&g->rows[i].committed);
    if (from[i] < rounds) rounds = from[i];
  }
  uint64_t seen = rounds * g->senders;
  for (uint64_t i = 0; i < g->senders && from[i] > rounds; i++) seen++;
  if (seen <= m->received) return 0;
  m->received = seen;
  store(&g->rows[m->me].received, seen);
  return 1;
}

static inline int deliver(const Group *g, Member *m) {
  uint64_t stable = m->received;
  for (uint64_t i = 0; i < g->members; i++) {
    uint64_t received = i == m->me ? m->received : load(&g->rows[i].received);
    if (received < stable) stable = received;
  }
  if (stable <= m->delivered) return 0;
  for (; m->delivered < stable; m->delivered++) {
    uint64_t sender = m->delivered % g->senders, index = m->delivered / g->senders;
    char *message = g->ring + (sender * g->window + index % g->window) * g->slot;
    uint64_t size = *(uint64_t *)message;
    m->sum += size;
    if (g->touch)
      for (size_t word = 0; word < size / 8; word += 8) m->sum += ((uint64_t *)(message + 8))[word];
  }
  store(&g->rows[m->me].delivered, m->delivered);
  if (m->times) m->times[m->samples++] = now() - m->sent_at;
  return 1;
}

static void print(const Group *g, const Member *m, double seconds) {
  double rate = (double)g->total / seconds;
  printf("{\"members\":%lu,\"senders\":%lu,\"size\":%lu,\"messages\":%lu,\"seconds\":%.4f", g->members, g->senders,
         g->size, g->total, seconds);
  printf(",\"messages_per_second\":%.0f,\"bytes_per_second\":%.0f", rate, rate * (double)g->size);
  if (m->samples) {
    uint64_t n = m->samples;
    qsort(m->times, n, sizeof *m->times, ascending);
    printf(",\"latency_ns\":{\"p50\":%.0f,\"p99\":%.0f,\"p999\":%.0f,\"max\":%.0f}", m->times[n / 2] * 1e9,
           m->times[n * 99 / 100] * 1e9, m->times[n * 999 / 1000] * 1e9, m->times[n - 1] * 1e9);
  }
  printf("}\n");
}

int main(int argc, char **argv) {
  if (argc != 7) return fprintf(stderr, "use: multicast MEMBERS SIZE MESSAGES WINDOW TOUCH LATENCY\n"), 2;
  uint64_t value[7];
  for (int i = 1; i < 7; i++) value[i] = strtoull(argv[i], 0, 10);
  Group g = {.members = value[1], .size = value[2], .least = value[2], .count = value[3], .window = value[4]};
  const char *longest = strchr(argv[2], '-');
  if (longest) g.size = strtoull(longest + 1, 0, 10);
  /* As Squall's benchmark: enough to spread the cost of a round, and not so much that deliveries are held back. */
  g.batch = g.window < 4 ? 1 : g.window / 4;
  g.touch = value[5] != 0, g.latency = value[6] != 0;
  if (g.members < 1 || g.members > MEMBERS_MAX || !g.count || g.window < 2)
    return fprintf(stderr, "1..%d members, messages and a window of at least 2\n", MEMBERS_MAX), 2;
  g.senders = g.latency ? 1 : g.members;
  g.total = g.count * g.senders;
  g.slot = (g.size + 8 + 63) / 64 * 64;
  g.crowded = (long)g.members > sysconf(_SC_NPROCESSORS_ONLN);
  g.rows = shared(g.members * sizeof(Row));
  g.ring = shared(g.members * g.window * g.slot);
  g.ready = shared(sizeof *g.ready);
  madvise(g.ring, g.members * g.window * g.slot, MADV_HUGEPAGE);
  memset(g.ring, 1, g.members * g.window * g.slot);

  Member m = {0};
  for (uint64_t i = 1; i < g.members && m.me == 0; i++)
    if (fork() == 0) m.me = i;
  pin(m.me);
  if (g.latency && m.me == 0) m.times = malloc(g.count * sizeof *m.times);
  atomic_fetch_add(g.ready, 1);
  while (atomic_load(g.ready) < (int)g.members) sched_yield();

  double start = now();
  while (m.delivered < g.total) {
    int work = send_messages(&g, &m);
    work |= receive(&g, &m);
    work |= deliver(&g, &m);
    if (work) continue;
    if (g.crowded) sched_yield();
    else __builtin_ia32_pause();
  }
  double seconds = now() - start;
  if (m.me) return m.sum == 42;
  while (wait(0) > 0) {}
  print(&g, &m, seconds);
  return m.sum == 42;
}
