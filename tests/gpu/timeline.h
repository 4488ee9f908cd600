/* What gpu_time times: one line per operation and shape of the full-width slice (GLM-5.2 widths, 16
 * experts), and the arrays such a line runs on. */
#ifndef TESTS_GPU_TIMELINE_H
#define TESTS_GPU_TIMELINE_H

#include "tests/gpu/opcase.h"

enum { LINES = 160, DROPS = 4 };

struct timeline {
    const char *kernel; /* "K2": spec's number */
    enum op_id op;
    char name[96];
    _Alignas(16) char p[STRUCT_BYTES];
    double flops;            /* 0: bytes alone bound it */
    double bytes;            /* that must move; 0: every array once, in/outs twice */
    const char *drop[DROPS]; /* fields that are NULL */
};

struct timelines {
    struct timeline line[LINES];
    int count;
};

/* All lines for T tokens in one sequence. */
void timeline_list(struct timelines *out, int64_t T);

/* ---- arrays ----------------------------------------------------------------------------------- */

/* Functions of libglm-cuda-test.so, NULL where the backend's memory is the host's. */
struct timesupport {
    int (*fill)(void *to, int64_t n, int bf16, uint64_t seed, float scale, float mean);
    int (*event)(int which, void *stream);
    float (*elapsed)(int from, int to);
    int (*copy)(void *to, const void *from, int64_t bytes, void *stream);
};

struct timearrays {
    const struct kernels *k;
    glm_stream stream;
    struct fields f;
    void *memory[FIELDS];
    _Alignas(16) char p[STRUCT_BYTES]; /* the struct with its pointers */
};

/* Random numbers where there are floats, sensible ones where there are integers; what a backward pass
 * expects of its forward pass is computed. close is harmless on zeros. */
int timearrays_open(struct timearrays *a, const struct timeline *line,
    const struct kernels *k, glm_stream stream, const struct timesupport *gpu,
    uint64_t seed, struct glm_error *err);
void timearrays_close(struct timearrays *a);
/* Bytes that one set of arrays takes; those that must move. */
double timeline_size(const struct timeline *line);
double timeline_bytes(const struct timeline *line);

#endif
