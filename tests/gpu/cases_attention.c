/* Cases of attention: packs of sequences of all lengths around the tiles of 64, 80 and 128, with and
 * without key sets, heads with their own keys or one key for all, values inside the keys. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/opcase.h"
#include "tests/support/opdata.h"

struct shape {
    int lengths[8];
    int64_t N, Nk, Dq, Dv, K;   /* K 0: no sets */
    int64_t k_stride, v_stride; /* beyond what rows need */
    bool in_k;                  /* v lies at the beginning of k's rows */
    bool big;
};

static const struct shape shapes[] = {
    {{0}, 2, 2, 8, 8, 0, 0, 0, false, false}, {{1}, 1, 1, 1, 1, 0, 0, 0, false, false},
    {{1, 2, 3}, 2, 2, 24, 16, 0, 0, 0, false, false},
    {{5, 17, 1}, 2, 2, 64, 64, 4, 3, 5, false, false},
    {{63, 2}, 2, 2, 256, 256, 0, 0, 0, false, false},
    {{64}, 1, 1, 256, 256, 0, 0, 0, false, false},
    {{65, 1}, 2, 2, 256, 256, 0, 8, 16, false, false},
    {{70}, 2, 2, 256, 256, 20, 0, 0, false, false},
    {{7, 33}, 4, 1, 96, 64, 0, 0, 0, true, false},
    {{40, 3}, 16, 1, 576, 512, 16, 0, 0, true, false},
    {{20}, 64, 1, 576, 512, 0, 0, 0, true, true},
    {{127, 128, 129, 1}, 3, 3, 256, 256, 0, 0, 0, false, true},
    {{300, 211}, 4, 4, 256, 256, 0, 256, 0, false, true},
    {{300, 211}, 4, 4, 256, 256, 64, 0, 0, false, true},
    {{70, 5, 140}, 2, 2, 256, 256, 2, 0, 0, false, true},
    {{1, 70, 140}, 2, 2, 256, 256, 300, 8, 8, false, true}, /* K beyond every sequence */
    {{513}, 2, 2, 256, 256, 500, 0, 0, false, true},
    {{400, 30}, 64, 1, 576, 512, 128, 0, 0, true, true},
    {{600, 50}, 8, 1, 576, 512, 70, 8, 0, true, true}, /* more rows than a chunk */
    {{150}, 2, 2, 256, 128, 37, 0, 0, false, true},
    {{90, 60}, 2, 2, 128, 128, 0, 0, 0, false, true},
    {{1152}, 2, 2, 256, 256, 0, 8, 16, false,
        true}, /* one sequence whole: cuDNN's, if there */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void keys(struct opcase *c, const struct shape *sh, const int32_t *cu, int64_t S)
{
    case_copy(c, "cu_seqlens", cu);
    if (sh->K == 0) {
        case_drop(c, "index");
    } else {
        int32_t *const index = op_sets(cu, S, sh->K, 5);
        case_copy(c, "index", index);
        free(index);
    }
    if (sh->in_k)
        case_alias(c, "v", "k", 0);
}

/* joined: backward without dv, dk has its part (values in keys). */
static void one(struct suite *s, const struct shape *sh, enum glm_dtype dtype,
    double sharp, bool joined)
{
    int64_t S, T;
    int32_t *const cu = op_pack(sh->lengths, &S, &T);
    const int64_t k_row = sh->Nk * sh->Dq + sh->k_stride,
                  v_row = sh->in_k ? k_row : sh->Nk * sh->Dv + sh->v_stride;
    const struct attention_fwd p = {.T = T,
        .S = S,
        .N = sh->N,
        .Nk = sh->Nk,
        .Dq = sh->Dq,
        .Dv = sh->Dv,
        .K = sh->K,
        .k_stride = sh->k_stride == 0 ? 0 : k_row,
        .v_stride = sh->in_k || sh->v_stride != 0 ? v_row : 0,
        .scale = sharp / sqrt((double)sh->Dq),
        .dtype = dtype};
    const struct attention_bwd q = {.T = T,
        .S = S,
        .N = p.N,
        .Nk = p.Nk,
        .Dq = p.Dq,
        .Dv = p.Dv,
        .K = p.K,
        .k_stride = p.k_stride,
        .v_stride = p.v_stride,
        .scale = p.scale,
        .dtype = dtype};
#define NAME                                                                             \
    "T %lld in %lld, N %lld/%lld, D %lld/%lld, K %lld, rows +%lld +%lld%s%s%s",          \
        (long long)T, (long long)S, (long long)p.N, (long long)p.Nk, (long long)p.Dq,    \
        (long long)p.Dv, (long long)p.K, (long long)sh->k_stride,                        \
        (long long)sh->v_stride, sh->in_k ? ", v in k" : "", sharp > 2 ? ", sharp" : "", \
        joined ? ", no dv" : ""
    struct opcase *c = joined ? NULL : case_new(s, OP_attention_fwd, &p, NAME);
    if (c != NULL)
        keys(c, sh, cu, S);
    case_run(s, c);

    c = case_new(s, OP_attention_bwd, &q, NAME);
    if (c != NULL) {
        struct glm_error err = {0};
        keys(c, sh, cu, S);
        /* One term may make up a whole sum, and is rounded to BF16. The tensor cores take ds in BF16:
         * 2^-9 more of each term of dq and dk; over latent keys a row's parts of dk and dv are kept
         * in BF16 too. */
        if (dtype == GLM_BF16)
            c->floor = sh->Nk == sh->N ? sh->Dq == 256 && sh->Dv == 256 ? 0x1p-7 : 0x1p-8
                : sh->Dq == 576        ? 0x1p-7
                                       : 0x1p-8;
        struct attention_fwd f = p;
        const struct attention_bwd *const b = case_args(c);
        f.o = case_data(c, "o");
        f.lse = case_data(c, "lse");
        f.q = b->q;
        f.k = b->k;
        f.v = b->v;
        f.index = b->index;
        f.cu_seqlens = b->cu_seqlens;
        if (cpu_attention_fwd(&f, s->cpu_stream, &err) != 0)
            abort();
        if (joined)
            case_drop(c, "dv");
    }
    case_run(s, c);
    free(cu);
}

void cases_attention(struct suite *s, enum glm_dtype dtype)
{
    for (int i = 0; i < SHAPES; i++)
        if (!s->small || !shapes[i].big)
            one(s, &shapes[i], dtype, 1, false);
    for (int i = 0; i < SHAPES; i++)
        if (shapes[i].in_k && (!s->small || !shapes[i].big))
            one(s, &shapes[i], dtype, 1, true);
    /* One key takes nearly all: the running maximum rises late, small probabilities vanish. */
    one(s, &shapes[6], dtype, 6, false);
    one(s, &shapes[7], dtype, 6, false);
}
