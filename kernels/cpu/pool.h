/* A fixed pool of threads: the stream of the CPU.
 *
 * pool_for cuts [0,n) into ranges that depend on n and grain alone and runs each once, on any
 * thread. A body that writes only what belongs to its range, and adds up nothing across ranges,
 * thus gives the same bits with every number of threads, none (stream NULL) included.
 *
 *     struct ctx or the operation itself          static void rows(const void *ctx, begin, end)
 *     pool_for(stream, p->T, 16, rows, p);        { const struct add *p = ctx; ... } */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/error.h"
#include "kernels/base/stream.h"

/* threads: 1..1024, the calling thread counted. NULL on failure. One pool serves one caller at a
 * time. */
glm_stream pool_new(int threads, struct glm_error *err);
void pool_free(glm_stream pool); /* NULL is harmless */
int pool_threads(glm_stream pool);

/* How many of the pool's threads have run a range since it was made. If a call has at least as many
 * ranges as there are threads, each thread runs one. */
int pool_used(glm_stream pool);

typedef void pool_fn(const void *ctx, int64_t begin, int64_t end);

/* Runs fn over [0,n) in ranges of `grain` (the last may be shorter); returns when all are done.
 * Within fn call nothing else with this stream, except the scratch memory. */
void pool_for(glm_stream pool, int64_t n, int64_t grain, pool_fn *fn, const void *ctx);

/* The same, cut evenly: about `pieces` per thread. The cut then depends on the number of threads,
 * so only for bodies whose result does not depend on it (elements alone, or columns of a sum). */
void pool_each(glm_stream pool, int64_t n, int64_t grain, pool_fn *fn, const void *ctx);

/* Memory for the length of one call, aligned to 64 bytes, kept by the pool: after the first step
 * nothing is allocated. From any thread. NULL with a sentence in err. */
void *pool_scratch(glm_stream pool, size_t bytes, struct glm_error *err);
void pool_scratch_free(glm_stream pool, void *memory); /* NULL memory is harmless */

#endif
