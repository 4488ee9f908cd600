/* Cases of the indexer. Whole numbers make scores exact in any order of sums: there sets are equal to
 * the CPU's to the last tie. Of random numbers a set is right if no key outside scores more than a
 * rounding above one inside. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/opcase.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

/* ---- top-k ------------------------------------------------------------------------------------ */

struct topk_shape {
    int lengths[8];
    int64_t N, D, K;
    bool big;
};

static const struct topk_shape tops[] = {
    {{0}, 2, 8, 3, false},
    {{1}, 1, 1, 1, false},
    {{1, 2, 3, 9}, 2, 8, 3, false},
    {{33, 1, 64}, 4, 16, 8, false},
    {{70, 5}, 32, 128, 16, false},
    {{70, 5}, 8, 128, 16, false}, /* tensor cores, with and without Hopper's own way */
    {{65}, 4, 16, 200, false},    /* sees fewer than K always */
    {{130}, 4, 64, 1, false},
    {{300, 129, 2}, 32, 128, 64, true},
    {{1500}, 4, 16, 512, true},
    {{2600, 100}, 32, 128, 2048, true},
    {{700}, 8, 32, 33, true},
};

/* The F64 scores of row t's visible keys. */
static double *scores_of(
    const struct opcase *c, const struct indexer_topk *p, int64_t t, int64_t first)
{
    const enum glm_dtype ty = p->dtype;
    double *x = op_zeros(GLM_F64, t - first + 1);

    for (int64_t j = first; j <= t; j++) {
        for (int64_t n = 0; n < p->N; n++) {
            double z = 0;
            for (int64_t d = 0; d < p->D; d++)
                z += op_at(ty, c->data[2], (t * p->N + n) * p->D + d)
                    * op_at(ty, c->data[3], j * p->D + d);
            x[j - first] += op_at(ty, c->data[4], t * p->N + n) * (z > 0 ? z : 0)
                / sqrt((double)(p->N * p->D));
        }
    }
    return x;
}

static bool row_is_right(const struct indexer_topk *p, int64_t t, int64_t first,
    const double *x, const int32_t *index, const float *score, char why[200])
{
    const int64_t seen = t - first + 1, want = seen < p->K ? seen : p->K;
    bool *const in = calloc((size_t)seen, sizeof *in);
    double size = 0, least = INFINITY, most = -INFINITY;
    bool good = true;

    for (int64_t j = 0; j < seen; j++)
        size = fmax(size, fabs(x[j]));
    const double near = size * 0x1p-17;
    for (int64_t i = 0; good && i < p->K; i++) {
        const int64_t key = index[i];
        good = i < want ? key >= first && key <= t && (i == 0 || key > index[i - 1])
                        : key == -1;
        if (!good)
            snprintf(why, 200,
                "index[%lld,%lld] is %lld, not ascending or out of %lld..%lld",
                (long long)t, (long long)i, (long long)key, (long long)first,
                (long long)t);
        if (good && i < want)
            in[key - first] = true;
        if (good && score != NULL) {
            const double s = i < want ? x[key - first] : 0;
            good = fabs(score[i] - s) <= near;
            if (!good)
                snprintf(why, 200, "score[%lld,%lld] is %.9g, expected %.9g",
                    (long long)t, (long long)i, (double)score[i], s);
        }
    }
    for (int64_t j = 0; j < seen; j++)
        in[j] ? (least = fmin(least, x[j])) : (most = fmax(most, x[j]));
    if (good && least < most - 2 * near) {
        good = false;
        snprintf(why, 200, "row %lld: a key of score %.9g is chosen, one of %.9g is not",
            (long long)t, least, most);
    }
    free(in);
    return good;
}

static bool check_sets(const struct opcase *c, char why[200])
{
    const struct indexer_topk *p = (const void *)c->p;
    const int32_t *const cu = c->data[5];
    const int64_t step =
        p->T > 300 ? 61 : 1; /* of long packs some rows, and each last one */
    bool good = true;

    for (int64_t i = 0; good && i < p->S; i++)
        for (int64_t t = cu[i]; good && t < cu[i + 1]; t++) {
            if (t % step != 0 && t + 1 < cu[i + 1])
                continue;
            double *const x = scores_of(c, p, t, cu[i]);
            good = row_is_right(p, t, cu[i], x, (const int32_t *)c->got[0] + t * p->K,
                c->got[1] == NULL ? NULL : (const float *)c->got[1] + t * p->K, why);
            free(x);
        }
    return good;
}

/* How the scores come out. SPECIAL: whole numbers, and rows that hold an infinity or no number. */
enum kind { WHOLE, TIES, NEGATIVE, RANDOM, SPECIAL };

static void fill_topk(struct opcase *c, const struct indexer_topk *p, enum kind kind)
{
    c->expect = EXACT;
    if (kind == RANDOM) {
        c->check = check_sets;
        return;
    }
    case_whole(c, "q", 2);
    case_whole(c, "k", 2);
    case_whole(c, "w", 3);
    if (kind == TIES) {
        case_fill(c, "k", 1);
    } else if (kind == NEGATIVE) { /* most keys score -0 or +0, others below */
        case_fill(c, "w", -1);
        for (int64_t j = 0; j < p->T * p->D; j++)
            if (j / p->D % 7 != 0)
                op_set(p->dtype, case_data(c, "k"), j, 0);
    } else if (kind == SPECIAL) {
        for (int64_t j = 3; j < p->T; j += 5)
            op_set(p->dtype, case_data(c, "k"), j * p->D,
                j % 3 == 0       ? NAN
                    : j % 2 == 0 ? INFINITY
                                 : -INFINITY);
    }
}

static void topk(struct suite *s, const struct topk_shape *sh, enum glm_dtype dtype,
    enum kind kind, bool hf, bool score)
{
    static const char *const names[] = {"whole", "ties", "below 0", "random", "special"};
    int64_t S, T;
    int32_t *const cu = op_pack(sh->lengths, &S, &T);
    const struct indexer_topk p = {.T = T,
        .S = S,
        .N = sh->N,
        .D = sh->D,
        .K = sh->K,
        .hf_scales = hf,
        .dtype = dtype};
    struct opcase *c =
        case_new(s, OP_indexer_topk, &p, "T %lld in %lld, N %lld, D %lld, K %lld, %s%s%s",
            (long long)T, (long long)S, (long long)p.N, (long long)p.D, (long long)p.K,
            names[kind], hf ? ", hf" : "", score ? "" : ", no score");

    if (c != NULL) {
        case_copy(c, "cu_seqlens", cu);
        fill_topk(c, &p, kind);
        if (!score)
            case_drop(c, "score");
    }
    case_run(s, c);
    free(cu);
}

/* Scales that are powers of two leave whole numbers exact. */
static bool exact_scale(const struct topk_shape *sh, bool hf)
{
    const double on_w = sqrt(hf ? (double)sh->N : (double)(sh->N * sh->D));
    const double on_z = hf ? sqrt((double)sh->D) : 1;
    int unused;

    return frexp(on_w, &unused) == 0.5 && frexp(on_z, &unused) == 0.5;
}

static void topks(struct suite *s, enum glm_dtype dtype)
{
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
        if (s->small && tops[i].big)
            continue;
        const bool large =
            tops[i].lengths[0] > 1000; /* they cost the CPU's backend much */
        for (int hf = 0; hf < (large ? 1 : 2); hf++) {
            topk(s, &tops[i], dtype, RANDOM, hf, !tops[i].big || hf);
            if (!exact_scale(&tops[i], hf))
                continue;
            for (enum kind k = WHOLE; k <= SPECIAL; k++)
                if (k != RANDOM && (!large || k == WHOLE || tops[i].N < 8))
                    topk(s, &tops[i], dtype, k, hf, k != TIES);
        }
    }
}

/* ---- loss ------------------------------------------------------------------------------------- */

struct loss_shape {
    int lengths[8];
    int64_t N, D, K, MN, MNk, MDq, more; /* K 0: dense; more: mk rows are longer */
    bool big;
};

static const struct loss_shape losses[] = {
    {{0}, 2, 8, 0, 2, 2, 8, 0, false},
    {{1}, 1, 1, 0, 1, 1, 1, 0, false},
    {{1, 2, 9}, 2, 8, 3, 3, 3, 16, 0, false},
    {{33, 1, 20}, 4, 16, 0, 2, 2, 24, 5, false},
    {{33, 1, 20}, 4, 16, 7, 4, 1, 40, 8, false},
    {{70}, 32, 128, 0, 2, 2, 256, 0, false},
    {{70, 5}, 32, 128, 16, 4, 1, 576, 0, false},
    {{70, 5}, 16, 128, 16, 2, 1, 64, 0, false},
    {{300, 129, 2}, 32, 128, 0, 4, 4, 256, 0, true},
    {{300, 129, 2}, 32, 128, 64, 4, 4, 256, 0, true},
    {{1100}, 32, 128, 512, 2, 2, 256, 0, true},
    {{257}, 8, 32, 0, 64, 1, 576, 0, true},
};

/* lse of the main heads over the keys of the case. */
static void main_lse(struct suite *s, struct opcase *c, const struct indexer_loss *p)
{
    const struct indexer_loss *const at = case_args(c);
    const int64_t width = p->MNk * p->MDq;
    struct glm_error err = {0};
    const struct attention_fwd f = {.o = op_zeros(p->dtype, p->T * p->MN * p->MDq),
        .lse = case_data(c, "lse"),
        .q = at->mq,
        .k = at->mk,
        .v = at->mk,
        .index = at->index,
        .cu_seqlens = at->cu_seqlens,
        .T = p->T,
        .S = p->S,
        .N = p->MN,
        .Nk = p->MNk,
        .Dq = p->MDq,
        .Dv = p->MDq,
        .K = p->K,
        .k_stride = p->mk_stride == 0 ? width : p->mk_stride,
        .v_stride = p->mk_stride == 0 ? width : p->mk_stride,
        .scale = p->main_scale,
        .dtype = p->dtype};

    if (cpu_attention_fwd(&f, s->cpu_stream, &err) != 0)
        abort();
    free(f.o);
}

static void loss(struct suite *s, const struct loss_shape *sh, enum glm_dtype dtype,
    bool hf, bool gradients)
{
    int64_t S, T;
    int32_t *const cu = op_pack(sh->lengths, &S, &T);
    const struct indexer_loss p = {.T = T,
        .S = S,
        .N = sh->N,
        .D = sh->D,
        .K = sh->K,
        .MN = sh->MN,
        .MNk = sh->MNk,
        .MDq = sh->MDq,
        .mk_stride = sh->more == 0 ? 0 : sh->MNk * sh->MDq + sh->more,
        .fill = hf ? 2 : 0,
        .main_scale = 1 / sqrt((double)sh->MDq),
        .coeff = 0.7,
        .hf_scales = hf,
        .dtype = dtype};
    struct opcase *c = case_new(s, OP_indexer_loss, &p,
        "T %lld in %lld, N %lld, D %lld, K %lld, main %lld/%lld x %lld +%lld%s%s",
        (long long)T, (long long)S, (long long)p.N, (long long)p.D, (long long)p.K,
        (long long)p.MN, (long long)p.MNk, (long long)p.MDq, (long long)sh->more,
        hf ? ", hf" : "", gradients ? "" : ", loss alone");

    if (c != NULL) {
        case_copy(c, "cu_seqlens", cu);
        if (sh->K == 0) {
            case_drop(c, "index");
        } else {
            int32_t *const index = op_sets(cu, S, sh->K, 3);
            case_copy(c, "index", index);
            free(index);
        }
        main_lse(s, c, &p);
        if (dtype
            == GLM_BF16) /* one term may make up a whole sum, and is rounded to BF16 */
            c->floor = 0x1p-8;
        if (!gradients)
            case_drop(c, "dq"), case_drop(c, "dk"), case_drop(c, "dw");
    }
    case_run(s, c);
    free(cu);
}

void cases_indexer(struct suite *s, enum glm_dtype dtype)
{
    topks(s, dtype);
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        if (s->small && losses[i].big)
            continue;
        loss(s, &losses[i], dtype, i % 2 == 1, true);
        if (i % 3 == 0 || !losses[i].big)
            loss(s, &losses[i], dtype, i % 2 == 0, i % 2 == 0);
    }
}
