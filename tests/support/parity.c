/* Weights by rule, a golden file, and verify/numerics.c between them. */
#include "tests/support/parity.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/tinymodel.h"
#include "verify/golden.h"
#include "verify/numerics.h"

static void take(struct parity *out, const struct numerics_row *w)
{
    double unused;
    double *const place[NUMERICS_QUANTITIES] = {[NUMERICS_LOGITS] = &out->logits,
        [NUMERICS_LOSS] = &out->loss,
        [NUMERICS_MTP_LOSS] = &out->mtp,
        [NUMERICS_INDEXER_LOSS] = &out->kl,
        [NUMERICS_GRADIENT] = &out->gradient,
        [NUMERICS_GRADIENT_COSINE] = &out->cosine,
        [NUMERICS_GRADIENT_NORM] = &out->norm,
        [NUMERICS_GRADIENT_SUM] = &out->sum};

    *(place[w->quantity] != NULL ? place[w->quantity] : &unused) = w->worst;
    if (w->quantity == NUMERICS_INDEX)
        out->index_wrong = (int64_t)w->worst;
    if (w->quantity == NUMERICS_EXPERT)
        out->expert_wrong = (int64_t)w->worst;
    if (w->quantity == NUMERICS_LOGITS_COSINE)
        out->bf16_cosine = 1 - w->worst;
    if (w->quantity == NUMERICS_GRADIENT_COSINE)
        out->bf16_gradient = w->worst;
    if (w->quantity == NUMERICS_INDEXER_GRADIENT)
        out->indexer_still = w->compared > 0 && w->worst == 0;
    if (w->quantity == NUMERICS_GRADIENT) {
        out->gradients = w->compared;
        snprintf(out->worst, sizeof out->worst, "%s", w->where);
    }
}

int parity_run(struct parity *out, const char *path, const struct parity_options *o,
    struct glm_error *err)
{
    const struct numerics_options options = {.golden = path,
        .dtype = o->dtype,
        .reference = o->both ? NUMERICS_FLOAT64 : NUMERICS_TRANSFORMERS,
        .absorbed = o->absorbed,
        .choose = o->choose,
        .threads = o->threads,
        .device = o->device};
    struct numerics_report report;
    struct golden *g = NULL;
    int64_t n = 0;

    *out = (struct parity){.indexer_still = o->both};
    if (golden_open(&g, path, err) != GLM_OK)
        return err->code;
    const char *const config = golden_text(g, "config");
    const int32_t *const seed = golden_i32(g, "seed", &n);
    if (config == NULL || seed == NULL || n != 2) {
        glm_fail(err, GLM_EFORMAT, "golden array 'seed' is not there");
    } else {
        struct tinymodel *const t =
            tinymodel_new(config, (uint32_t)seed[0], seed[1] != 0, o->dtype, !o->both);
        numerics_compare(&report, g, t->table, t->params, &options, err);
        if (err->code == GLM_EMISMATCH) { /* the caller may have its own bounds */
            snprintf(out->beyond, sizeof out->beyond, "%.255s", err->text);
            glm_error_clear(err);
        }
        for (int i = 0; err->code == GLM_OK && i < report.count; i++)
            take(out, &report.rows[i]);
        out->whole = report.whole;
        out->elements = report.elements;
        tinymodel_free(t);
    }
    golden_close(g);
    return glm_within(err, "%s", path);
}
