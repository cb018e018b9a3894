// A machine whose clock is AHEAD_S seconds ahead: `LD_PRELOAD` of what runs there. Only the time of day is moved; a wait
// until a time of day is moved back, so that it lasts as long as it should.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long ahead(void) {
    static long seconds = -1;
    if (seconds < 0) seconds = getenv("AHEAD_S") ? atol(getenv("AHEAD_S")) : 0;
    return seconds;
}

#define REAL(type, name, args) static type(*real) args; if (!real) real = dlsym(RTLD_NEXT, name)

int clock_gettime(clockid_t clock, struct timespec *at) {
    REAL(int, "clock_gettime", (clockid_t, struct timespec *));
    int code = real(clock, at);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead();
    return code;
}

int gettimeofday(struct timeval *at, void *zone) {
    REAL(int, "gettimeofday", (struct timeval *, void *));
    int code = real(at, zone);
    if (!code) at->tv_sec += ahead();
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

// A deadline of the monotonic clock counts from the start of the machine and is far below this.
static struct timespec moved(const struct timespec *until) {
    struct timespec real = *until;
    if (real.tv_sec > 1000000000) real.tv_sec -= ahead();
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    REAL(int, "pthread_cond_timedwait", (pthread_cond_t *, pthread_mutex_t *, const struct timespec *));
    struct timespec at = moved(until);
    return real(condition, mutex, &at);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    REAL(int, "pthread_mutex_timedlock", (pthread_mutex_t *, const struct timespec *));
    struct timespec at = moved(until);
    return real(mutex, &at);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    REAL(int, "sem_timedwait", (sem_t *, const struct timespec *));
    struct timespec at = moved(until);
    return real(semaphore, &at);
}
