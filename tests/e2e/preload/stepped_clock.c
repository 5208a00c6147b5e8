/*
 * A real-time clock that a test steps while a server runs, loaded before the C library.
 *
 * Every process of the server adds the offset in the file $OUTBOX_TEST_CLOCK to its real-time clock. The monotonic clock
 * is left alone, as it is when a machine's clock is set. A wait until a moment of the real-time clock sees a step as it
 * does in the kernel: set back, it goes on; set forward, it ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
/* A step is noticed by a waiting thread within this time. */
#define SLICE_NS 20000000LL

static const volatile int64_t *offset_us;

__attribute__((constructor)) static void begin(void)
{
    const char *file = getenv("OUTBOX_TEST_CLOCK");
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        offset_us = map;
    close(fd);
}

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    syscall(SYS_clock_gettime, clock, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static int64_t real_ns(void)
{
    return now_ns(CLOCK_REALTIME) + (offset_us ? *offset_us * 1000 : 0);
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, now);
    *now = timespec_of(real_ns());
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    int64_t ns = real_ns();
    *now = (struct timeval){.tv_sec = ns / SECOND_NS, .tv_usec = ns % SECOND_NS / 1000};
    return 0;
}

time_t time(time_t *out)
{
    time_t now = real_ns() / SECOND_NS;
    if (out)
        *out = now;
    return now;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    int64_t until_ns = until->tv_sec * SECOND_NS + until->tv_nsec;
    for (;;) {
        int64_t left_ns = until_ns - real_ns();
        if (left_ns <= 0)
            return ETIMEDOUT;
        struct timespec slice = timespec_of(now_ns(CLOCK_MONOTONIC) + (left_ns < SLICE_NS ? left_ns : SLICE_NS));
        int result = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &slice);
        if (result != ETIMEDOUT)
            return result;
    }
}

/* The C library's own cnd_t and mtx_t are these. */
int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until)
{
    switch (pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, until)) {
    case 0:
        return thrd_success;
    case ETIMEDOUT:
        return thrd_timedout;
    default:
        return thrd_error;
    }
}
