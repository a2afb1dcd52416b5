/* The least that a round trip between two cores takes: what any protocol over shared memory pays too.
 *
 *   lines SIZE COUNT   one process stores SIZE bytes, walking through memory, and then a flag; the other waits for the flag,
 *                      reads the bytes and answers in the same way; no checks, no queues, no memory of its own to care for
 *
 * Prints one JSON object. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FLAGS = 1 << 14, DATA = 1 << 20 };

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What one process writes and the other reads. */
struct side {
    _Atomic uint64_t flags[FLAGS / 8];
    volatile uint64_t data[DATA / 8];
};

static void say(struct side *own, uint64_t round, size_t words) {
    for (size_t i = 0; i < words; i++) own->data[(round * words + i) % (DATA / 8)] = round;
    atomic_store_explicit(&own->flags[round % (FLAGS / 8)], round, memory_order_release);
}

static void hear(struct side *other, uint64_t round, size_t words) {
    while (atomic_load_explicit(&other->flags[round % (FLAGS / 8)], memory_order_acquire) < round) __builtin_ia32_pause();
    for (size_t i = 0; i < words; i++)
        if (other->data[(round * words + i) % (DATA / 8)] != round) abort();
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "use: lines SIZE COUNT\n"), 2;
    size_t words = (strtoull(argv[1], NULL, 10) + 7) / 8, count = strtoull(argv[2], NULL, 10);
    struct side *sides = mmap(NULL, 2 * sizeof *sides, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    double *times = calloc(count, sizeof *times);
    if (sides == MAP_FAILED || !times || !count || words > DATA / 16) return fprintf(stderr, "no memory\n"), 1;
    if (fork() == 0) {
        pin(1);
        for (uint64_t round = 1; round <= count; round++) {
            hear(&sides[0], round, words);
            say(&sides[1], round, words);
        }
        return 0;
    }
    pin(0);
    for (uint64_t round = 1; round <= count; round++) {
        double begun = now();
        say(&sides[0], round, words);
        hear(&sides[1], round, words);
        times[round - 1] = now() - begun;
    }
    qsort(times, count, sizeof *times, ascending);
    printf("{\"round_trip_ns\": %.0f}\n", times[count / 2]);
    wait(NULL);
    return 0;
}
