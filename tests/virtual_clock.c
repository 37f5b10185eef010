// Shifts the clocks of a program by the seconds in a file, which may grow while it runs: LD_PRELOAD.
// libfaketime does not start Redis, whose allocator asks for the time before it is ready.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
static long now(void) {
  if (!offset) {
    const char *path = getenv("SHIFT_FILE");
    int fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) : -1;
    void *at = fd >= 0 ? (void *)syscall(SYS_mmap, 0, 8, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0) syscall(SYS_close, fd);
    static long zero = 0;
    offset = (long)at < 0 && (long)at > -4096 ? &zero : at;
  }
  return *offset;
}
int clock_gettime(clockid_t id, struct timespec *t) {
  int r = syscall(SYS_clock_gettime, id, t);
  if (!r && id != CLOCK_PROCESS_CPUTIME_ID && id != CLOCK_THREAD_CPUTIME_ID) t->tv_sec += now();
  return r;
}
int gettimeofday(struct timeval *t, void *z) {
  struct timespec s; int r = clock_gettime(CLOCK_REALTIME, &s);
  if (t) { t->tv_sec = s.tv_sec; t->tv_usec = s.tv_nsec / 1000; }
  return r;
}
time_t time(time_t *t) { struct timespec s; clock_gettime(CLOCK_REALTIME, &s); if (t) *t = s.tv_sec; return s.tv_sec; }
