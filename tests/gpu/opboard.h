/* The arrays of one case in one backend's memory. */
#ifndef TESTS_GPU_OPBOARD_H
#define TESTS_GPU_OPBOARD_H

#include "tests/gpu/opcase.h"

struct board {
    const struct kernels *k;
    glm_stream stream;
    const struct opcase *c;
    struct fields f;
    void *host[FIELDS]; /* data in the types of f; NULL: dropped, or an alias */
    bool ours[FIELDS];  /* host[i] was made here */
    char *memory[FIELDS];
    size_t guard; /* bytes in front of and behind each array */
    _Alignas(16) char p[STRUCT_BYTES];
};

/* Takes memory and puts the inputs there; f64: in the F64 version. A board of zeros is closed. */
int board_open(struct board *b, const struct opcase *c, const struct kernels *k,
    glm_stream stream, bool f64, bool guards, struct glm_error *err);
void board_close(struct board *b);
/* Runs once; outputs begin as rubbish, in/outs as they are in the case. */
int board_run(struct board *b, struct glm_error *err);
/* The outputs, malloc'd, NULL for inputs. */
int board_fetch(struct board *b, void *out[FIELDS], struct glm_error *err);
/* Nothing but the outputs was written. */
int board_inspect(struct board *b, struct glm_error *err);

#endif
