/* Every operation of ops.h, doing nothing. */
#include "train/dry.h"

#define DRY_FUNCTION(op)                                                                 \
    static int dry_##op(const struct op *p, glm_stream stream, struct glm_error *err)    \
    {                                                                                    \
        (void)p;                                                                         \
        (void)stream;                                                                    \
        (void)err;                                                                       \
        return 0;                                                                        \
    }
OPS(DRY_FUNCTION)

static int dry_wait(glm_stream stream, struct glm_error *err)
{
    (void)stream;
    (void)err;
    return 0;
}

#define DRY_MEMBER(op) .op = dry_##op,
const struct kernels dry_kernels = {
    .name = "dry", .stream_wait = dry_wait, OPS(DRY_MEMBER)};
