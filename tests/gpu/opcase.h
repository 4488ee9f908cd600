/* One operation of kernels/ops.h on one set of arguments, run by any backend and compared.
 *
 * An operation is described once (opdesc.c): which members of its struct are pointers, whether the
 * operation reads or writes them, of what type and how many elements they are. From that, one
 * function uploads, runs and downloads every operation. Cases (cases_*.c) fill in shapes and data:
 *
 *     struct rmsnorm_fwd p = {.T = 5, .D = 63, .eps = 1e-5f, .dtype = dtype};
 *     struct opcase *c = case_new(s, OP_rmsnorm_fwd, &p, "T 5, D 63");   // floats: random
 *     case_drop(c, "x_add");                                             // NULL
 *     case_run(s, c);                                                    // compares, frees
 *
 * The reference is the CPU backend in F64 on the same numbers. What the CPU backend is off by in the
 * case's own type is the measure of what the other backend may be off by. */
#ifndef TESTS_GPU_OPCASE_H
#define TESTS_GPU_OPCASE_H

#include <stdio.h>

#include "kernels/kernels.h"

/* ---- descriptions ----------------------------------------------------------------------------- */

enum op_id {
#define OP_ID(op) OP_##op,
    OPS(OP_ID)
#undef OP_ID
        OP_COUNT
};

enum dir { IN, OUT, INOUT };

/* A pointer in an operation's struct. Of n = 0 elements is not NULL; optional ones are dropped. */
struct field {
    const char *name;
    size_t at; /* of the pointer in the struct */
    int64_t n;
    enum glm_dtype type;
    enum dir dir;
};

enum { FIELDS = 16, TYPES = 3, STRUCT_BYTES = 320 };

struct fields {
    struct field field[FIELDS];
    int count;
    size_t type_at[TYPES]; /* the members that name element types */
    int types;
};

const char *op_name(enum op_id op);
size_t op_size(enum op_id op);
bool op_there(enum op_id op, const struct kernels *k);
int op_run(enum op_id op, const struct kernels *k, const void *p, glm_stream stream,
    struct glm_error *err);
/* The fields of the struct at p; types and counts depend on what it holds. */
void op_fields(enum op_id op, const void *p, struct fields *out);

/* ---- cases ------------------------------------------------------------------------------------ */

/* What is expected of floats; integers are always equal. */
enum expect {
    NEAR,  /* as near to F64 as the CPU backend in the same type, three times over */
    SAME,  /* near the CPU backend in the same type: F64 has another meaning */
    EXACT, /* the CPU backend's bits */
};

struct opcase;
/* A check of its own for operations whose right answers are several. Outputs are those of the
 * backend in c's arrays `got`. Returns false and a reason. */
typedef bool case_check(const struct opcase *c, char why[200]);

struct opcase {
    enum op_id op;
    char name[96];
    _Alignas(16) char p[STRUCT_BYTES];
    struct fields f;
    void *data
        [FIELDS]; /* on the host: inputs, and what in/out begins with; NULL: dropped */
    void *got[FIELDS];        /* the backend's outputs */
    int alias[FIELDS];        /* 1 + the field whose memory a field lies in, 0: its own */
    int64_t alias_at[FIELDS]; /* elements from its beginning */
    enum expect expect;
    case_check *check;
    double floor; /* error that is always allowed, relative to the largest; 0: by type */
};

/* What runs, and what came out. */
struct suite {
    const struct kernels *cpu, *other;
    glm_stream cpu_stream, stream;
    const char *only, *words; /* a name, a part of a case's; NULL: all */
    bool small, list, noise;
    int repeats;
    int lock; /* a file's descriptor: who uses the GPU holds it; -1: nobody else does */
    double on_cpu, on_other, waited; /* seconds */
    FILE *json;
    bool varied[OP_COUNT][FIELDS], ran[OP_COUNT];
    int passed, failed, skipped;
    /* cudatest_noise_start, _stop (support.h) */
    int (*noise_start)(void);
    int (*noise_stop)(void);
};

/* Copies the struct and fills what has floats with random numbers; integers are zeros. The name is
 * a format. NULL if the case is not wanted: then there is nothing to do. */
struct opcase *case_new(struct suite *s, enum op_id op, const void *p, const char *name,
    ...) GLM_PRINTF(4, 5);
/* The array of a field, to be changed in place. */
void *case_data(struct opcase *c, const char *field);
void case_scale(struct opcase *c, const char *field, double by);
void case_fill(struct opcase *c, const char *field, double value);
void case_copy(struct opcase *c, const char *field, const void *from);
/* Small whole numbers in [-most, most], whose sums are exact in any order. */
void case_whole(struct opcase *c, const char *field, int most);
void case_drop(struct opcase *c, const char *field);
/* field lies in the memory of another, `at` elements behind its beginning. */
void case_alias(struct opcase *c, const char *field, const char *in, int64_t at);
/* The struct with pointers to the host arrays, to compute inputs from others by the CPU backend. */
void *case_args(struct opcase *c);
/* Runs, compares, prints, frees c. */
void case_run(struct suite *s, struct opcase *c);
/* After the last case of an operation: every output must have varied somewhere. */
void suite_close(struct suite *s);

/* cases_*.c */
void cases_elementwise(struct suite *s, enum glm_dtype dtype);
void cases_norms(struct suite *s, enum glm_dtype dtype);
void cases_gemm(struct suite *s, enum glm_dtype dtype);
void cases_attention(struct suite *s, enum glm_dtype dtype);
void cases_indexer(struct suite *s, enum glm_dtype dtype);
void cases_moe(struct suite *s, enum glm_dtype dtype);
void cases_head(struct suite *s, enum glm_dtype dtype);
void cases_optimizer(struct suite *s, enum glm_dtype dtype);

#endif
