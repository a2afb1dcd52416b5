/* The limit of durable atomic multicast on one disk: some processes write the same bytes into a file each, at the same time, past the
 * page cache and through the disk's write cache. Squall's durable mode is compared with it.
 *
 * Nothing is copied, checked or recovered; the files are written before, so that no write changes metadata.
 *
 * build: cc -O3 -march=native -o disk disk.c
 * use:   disk FOLDER WRITERS SIZE SECONDS LATENCY
 *   SIZE       of a write in bytes, a multiple of 4096
 *   LATENCY=1  one write at a time: all begin together, and the next one begins when all have it on the disk
 *   LATENCY=0  each writes without a pause, four writes at a time (as many as Squall's log has)
 * Prints one JSON object: latency_ns of a write at all writers, or bytes_per_second of each writer, at the slowest one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WRITERS_MAX = 16, IN_FLIGHT = 4, SAMPLES_MAX = 1 << 20, FILE_BYTES = 64 << 20, CHUNK = 1 << 20 };

typedef struct {
  _Alignas(128) _Atomic uint64_t rounds; /* writes that this writer has on the disk */
} Row;

typedef struct {
  uint64_t writers, size;
  double seconds;
  int latency;
  const char *folder;
  Row *rows;
  _Atomic int *ready, *stop;
  double *rates; /* of each writer */
} Job;

typedef struct {
  const Job *job;
  int file;
  uint64_t first;
  double until;
  uint64_t written;
} Lane;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void need(int holds, const char *what) {
  if (holds) return;
  perror(what);
  exit(1);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static char *buffer(uint64_t size) {
  char *bytes = aligned_alloc(4096, size);
  need(bytes != NULL, "memory");
  memset(bytes, 7, size);
  return bytes;
}

/* A file that is written, as a segment of a log is when it is used again. */
static int written(const Job *job, uint64_t me) {
  char path[4096];
  snprintf(path, sizeof path, "%s/limit-disk-%d-%llu", job->folder, (int)getppid(), (unsigned long long)me);
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_DSYNC, 0600);
  need(file >= 0, path);
  unlink(path);
  char *bytes = buffer(CHUNK);
  for (uint64_t at = 0; at < FILE_BYTES; at += CHUNK)
    need(pwrite(file, bytes, CHUNK, (off_t)at) == CHUNK, "write");
  free(bytes);
  return file;
}

/* One write at a time: the first writer says how long each took until all had it. */
static void one_at_a_time(const Job *job, uint64_t me, int file) {
  char *bytes = buffer(job->size);
  static double times[SAMPLES_MAX];
  uint64_t samples = 0;
  double until = now() + job->seconds;
  for (uint64_t round = 1; !atomic_load(job->stop); round++) {
    double begun = now();
    uint64_t at = (round - 1) * job->size % (FILE_BYTES / job->size * job->size);
    need(pwrite(file, bytes, job->size, (off_t)at) == (ssize_t)job->size, "write");
    atomic_store(&job->rows[me].rounds, round);
    for (uint64_t i = 0; i < job->writers; i++)
      while (atomic_load(&job->rows[i].rounds) < round && !atomic_load(job->stop)) sched_yield();
    double done = now();
    if (me == 0 && samples < SAMPLES_MAX) times[samples++] = done - begun;
    if (me == 0 && done >= until) atomic_store(job->stop, 1);
  }
  if (me != 0) return;
  qsort(times, samples, sizeof *times, ascending);
  printf("{\"writers\": %llu, \"size\": %llu, \"writes\": %llu, \"latency_ns\": {\"p50\": %.0f, \"p99\": %.0f}}\n",
         (unsigned long long)job->writers, (unsigned long long)job->size, (unsigned long long)samples,
         times[samples / 2] * 1e9, times[samples * 99 / 100] * 1e9);
}

static void *write_lane(void *argument) {
  Lane *lane = argument;
  uint64_t size = lane->job->size, places = FILE_BYTES / size;
  char *bytes = buffer(size);
  for (uint64_t i = lane->first; now() < lane->until; i += IN_FLIGHT) {
    need(pwrite(lane->file, bytes, size, (off_t)(i % places * size)) == (ssize_t)size, "write");
    lane->written += size;
  }
  free(bytes);
  return NULL;
}

static void without_a_pause(const Job *job, uint64_t me, int file) {
  pthread_t threads[IN_FLIGHT];
  Lane lanes[IN_FLIGHT];
  double begun = now();
  uint64_t total = 0;
  for (uint64_t i = 0; i < IN_FLIGHT; i++) {
    lanes[i] = (Lane){.job = job, .file = file, .first = i, .until = begun + job->seconds};
    need(pthread_create(&threads[i], NULL, write_lane, &lanes[i]) == 0, "thread");
  }
  for (uint64_t i = 0; i < IN_FLIGHT; i++) {
    pthread_join(threads[i], NULL);
    total += lanes[i].written;
  }
  job->rates[me] = (double)total / (now() - begun);
}

static void write_all(const Job *job, uint64_t me) {
  int file = written(job, me);
  atomic_fetch_add(job->ready, 1);
  while (atomic_load(job->ready) < (int)job->writers) sched_yield();
  if (job->latency)
    one_at_a_time(job, me, file);
  else
    without_a_pause(job, me, file);
  fflush(stdout);
}

int main(int count, char **words) {
  if (count != 6) {
    fprintf(stderr, "use: disk FOLDER WRITERS SIZE SECONDS LATENCY\n");
    return 2;
  }
  Job job = {.folder = words[1], .writers = strtoull(words[2], NULL, 10), .size = strtoull(words[3], NULL, 10),
             .seconds = strtod(words[4], NULL), .latency = atoi(words[5])};
  if (job.writers < 1 || job.writers > WRITERS_MAX || job.size < 4096 || job.size % 4096 || job.size > FILE_BYTES / IN_FLIGHT) {
    fprintf(stderr, "disk: 1 to %d writers, and a multiple of 4096 bytes\n", WRITERS_MAX);
    return 2;
  }
  char *shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  need(shared != MAP_FAILED, "memory");
  job.rows = (Row *)shared;
  job.ready = (_Atomic int *)(shared + (1 << 15));
  job.stop = job.ready + 32;
  job.rates = (double *)(shared + (1 << 15) + 4096);
  for (uint64_t me = 0; me < job.writers; me++) {
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      write_all(&job, me);
      exit(0);
    }
  }
  int failed = 0;
  for (uint64_t i = 0; i < job.writers; i++) {
    int status = 0;
    wait(&status);
    if (status != 0) {
      failed = 1;
      atomic_store(job.stop, 1);
      atomic_fetch_add(job.ready, (int)job.writers); /* the others do not wait for it */
    }
  }
  if (failed) return 1;
  if (!job.latency) {
    double least = job.rates[0];
    for (uint64_t i = 1; i < job.writers; i++)
      if (job.rates[i] < least) least = job.rates[i];
    printf("{\"writers\": %llu, \"size\": %llu, \"bytes_per_second\": %.0f}\n", (unsigned long long)job.writers,
           (unsigned long long)job.size, least);
  }
  return 0;
}
