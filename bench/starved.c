// SPDX-License-Identifier: Apache-2.0
/* Whether this kernel starves processes: how late a process wakes up while others spin, yield and sleep briefly.
 *
 *     cc -O1 -pthread -o /tmp/starved bench/starved.c && /tmp/starved 4 10    # 4 ranks, 10 seconds
 *
 * The ranks pass barriers in shared memory, waiting with sched_yield(); two more threads of each rank sleep for up to
 * 200 us at a time, as the progress threads of libraries do. A process in a session of its own (and so in an autogroup
 * of its own) sleeps for 1 ms at a time and prints its longest sleep. Without starvation that is below 20 ms. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void* nap(void* unused) {
  for (unsigned seed = (unsigned)getpid();;) usleep(1 + rand_r(&seed) % 200);
  return unused;
}

static void pass_barriers(_Atomic long* arrived, int ranks, int rank, double end) {
  pthread_t thread;
  for (int i = 0; i < 2; ++i) pthread_create(&thread, NULL, nap, NULL);
  for (long turn = 1;; ++turn) {
    atomic_store(&arrived[rank * 64], turn);
    for (int peer = 0; peer < ranks; ++peer) {
      while (atomic_load(&arrived[peer * 64]) < turn) {
        if (now() > end) _exit(0);
        sched_yield();
      }
    }
  }
}

int main(int count, char** values) {
  const int ranks = count > 1 ? atoi(values[1]) : 4;
  const double end = now() + (count > 2 ? atof(values[2]) : 10);
  _Atomic long* arrived =
      mmap(NULL, 512UL * (unsigned)(ranks + 1), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int job = 0; job < 2; ++job) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (fork() == 0) pass_barriers(job == 0 ? arrived : arrived + 32, ranks, rank, end);
    }
  }
  if (fork() == 0) {
    setsid();
    double longest = 0;
    for (double before = now(); before < end; before = now()) {
      usleep(1000);
      if (now() - before > longest) longest = now() - before;
    }
    printf("longest sleep of 1 ms: %.1f ms\n", longest * 1e3);
    return 0;
  }
  while (wait(NULL) > 0) {
  }
  return 0;
}
