/* What flow.c (threads and what they do with a job) and flow_jobs.c (the jobs) share. Private. */
#ifndef CONVERT_FLOW_INSIDE_H
#define CONVERT_FLOW_INSIDE_H

#include <pthread.h>

#include "convert/flow.h"
#include "convert/recode.h"

struct job {
    uint64_t key, place;
    int64_t tensor;
    struct rect at;
    struct codec_error error;
};

struct flow {
    const struct flow_source *source;
    const struct flow_sink *sink;
    struct flow_item *items;
    struct job *jobs;
    int64_t job_count, next;
    /* [tensor of the sink]: array by member, NULL unless recoded */
    struct recode_member **members;
    const char *verb;
    const struct glm_events *events;
    struct flow_stats stats;
    uint64_t total, done;
    size_t in_flight;
    pthread_mutex_t lock;
    pthread_cond_t room;
    struct flow_ask *asks; /* with a feed: one for each job */
    /* the smallest that failed: the sentence does not depend on luck */
    int64_t failed_job;
    struct glm_error error;
};

size_t flow_element_of(const struct manifest *m, int64_t tensor);
uint64_t flow_bytes_of(const struct manifest *m, int64_t tensor, const struct rect *at);
/* Bytes of a job in the sink and in the source, the scales of a recoding among them. */
uint64_t flow_job_writes(const struct flow *f, const struct job *j);
uint64_t flow_job_reads(const struct flow *f, const struct job *j);
/* Fills f->jobs, job_count and total. The caller frees jobs, also after a failure. */
int flow_make_jobs(struct flow *f, struct glm_error *err);

#endif
