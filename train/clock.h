/* Time and memory of this process, for reports. */
#ifndef TRAIN_CLOCK_H
#define TRAIN_CLOCK_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static inline double clock_seconds(void) /* monotonic */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline uint64_t clock_resident_bytes(void) /* 0: not known */
{
    long long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%lld %lld", &pages, &resident) != 2)
        resident = 0;
    fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

#endif
