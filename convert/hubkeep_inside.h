/* What hubkeep.c (which file when) and hubkeep_pull.c (one file) share. */
#ifndef CONVERT_HUBKEEP_INSIDE_H
#define CONVERT_HUBKEEP_INSIDE_H

#include <pthread.h>

#include "convert/hubkeep.h"
#include "convert/hubsum.h"

enum { HUBKEEP_THREADS = 64 };

enum phase { PHASE_NONE, PHASE_WANTED, PHASE_ACTIVE, PHASE_READY, PHASE_GONE };

struct keptrange {
    uint64_t begin, end;
};

struct keptfile {
    struct hub_file *file;
    enum phase phase;
    bool demanded; /* a thread waits for it */
    int64_t order; /* the first job that needs it */
    int64_t left;  /* jobs that still will */
    struct hubsum sum;
    char *path; /* of the whole file, when it is ready */
    /* A file of a smaller model, of which only these bytes are needed: ascending. NULL: all of it. */
    struct keptrange *ranges;
    int64_t range_count;
    uint64_t upto; /* of the ranges: what lies below is there */
};

struct hubkeep {
    struct hubkeep_options o;
    const struct hf_source *s;
    struct flow_source reads;
    struct flow_jobs jobs;
    char *folder;
    struct work *work;
    struct keptfile *files;
    pthread_mutex_t lock, journal_lock;
    pthread_cond_t moved;
    bool failed, ending;
    struct glm_error error;
    pthread_t threads[HUBKEEP_THREADS];
    int thread_count;
};

/* A whole file, or its ranges, under its own name: fetched, compared, safe. */
int hubkeep_obtain(struct hubkeep *k, struct keptfile *f, struct glm_error *err);
/* Whether it is there already; another file of that name is an error. */
bool hubkeep_is_there(struct keptfile *f, struct glm_error *err);
int hubkeep_write(int fd, const char *part, const unsigned char *data, size_t n,
    uint64_t at, struct glm_error *err);

#endif
