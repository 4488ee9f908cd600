/* A decoder layer. x must outlive it: the residual is not copied. */
#include "train/layer.h"

#include "train/mutate.h"

/* ---- forward ---------------------------------------------------------------------------------- */

/* Is the indexer's output used by anything? */
static bool indexer_runs(const struct layer *l, const struct run *r)
{
    return l->owns_indexer
        && (!r->o->dense_attention || r->o->indexer_loss != MODEL_INDEXER_OFF);
}

static int choose(
    struct layer *l, struct run *r, const int32_t *index, const int32_t *given)
{
    bool own = l->owns_indexer;
#ifdef MUTATE_INDEX_RECOMPUTED
    own = true; /* the parameters are those of the layer it should have listened to */
#endif
    l->index = index;
    if (!own || (l->owns_indexer && !indexer_runs(l, r)))
        return 0;
    const size_t mark = r->temp.at;
    if (indexer_fwd(&l->indexer, r, l->a, l->mla.c_q) != 0 || r->o->dense_attention)
        return r->err->code;
    int32_t *mine = keep_ids(r, r->T * r->K);
    l->index = mine;
    (void)(given ? r->k->to_device(
               mine, given, (size_t)(r->T * r->K) * sizeof *mine, r->stream, r->err)
                 : indexer_choose(&l->indexer, r, mine));
    r->temp.at = mark;
    return r->err->code;
}

static int attend(
    struct layer *l, struct run *r, const int32_t *index, const int32_t *given)
{
    const int64_t n = r->T * r->c->hidden_size;
    const size_t mark = r->temp.at;
    void *y = temp_elem(r, n);
    if (norm_fwd(r, &l->norm1, l->x, 0, l->a) == 0
        && mla_latent_fwd(&l->mla, r, l->a) == 0 && choose(l, r, index, given) == 0
        && mla_fwd(&l->mla, r, l->a, l->index, y) == 0)
        (void)RUN(r, add, .y = l->x1, .a = l->x, .b = y, .n = n, .dtype = r->dtype);
    r->temp.at = mark;
    return r->err->code;
}

int layer_fwd(struct layer *l, struct run *r, const void *x, const int32_t *index,
    const int32_t *given_index, const int32_t *given_expert, void *y)
{
    const int64_t n = r->T * r->c->hidden_size;
    const size_t mark = r->temp.at;
    void *f = temp_elem(r, n);
    l->x = x;
    l->a = lean_elem(r, n);
    l->x1 = keep_elem(r, n);
    l->b = lean_elem(r, n);
    if (attend(l, r, index, given_index) != 0
        || norm_fwd(r, &l->norm2, l->x1, 0, l->b) != 0
        || (l->dense ? mlp_fwd(&l->mlp, r, l->b, f)
                     : moe_fwd(&l->moe, r, l->b, given_expert, f))
            != 0
        || RUN(r, add, .y = y, .a = l->x1, .b = f, .n = n, .dtype = r->dtype) != 0)
        goto out;
    if (r->o->inference && l->owns_indexer && r->o->indexer_loss != MODEL_INDEXER_OFF)
        indexer_kl(&l->indexer, r, &l->mla, l->index);
out:
    r->temp.at = mark;
    return r->err->code == 0 ? 0 : glm_within(r->err, "layer %d", (int)l->number);
}

/* ---- backward --------------------------------------------------------------------------------- */

/* What a lean forward did not keep of the attention half, in temporary memory. */
static int again(struct layer *l, struct run *r)
{
    if (!run_lean(r))
        return 0;
    l->a = temp_elem(r, r->T * r->c->hidden_size);
    if (norm_again(r, &l->norm1, l->x, 0, l->a) != 0)
        return r->err->code;
    return mla_again(&l->mla, r);
}

static int again_b(struct layer *l, struct run *r)
{
    if (!run_lean(r))
        return 0;
    l->b = temp_elem(r, r->T * r->c->hidden_size);
    return norm_again(r, &l->norm2, l->x1, 0, l->b);
}

static bool indexer_learns(const struct layer *l, const struct run *r)
{
    return l->owns_indexer && r->o->indexer_loss != MODEL_INDEXER_OFF;
}

static int learn(struct layer *l, struct run *r)
{
    return indexer_learns(l, r)
        ? indexer_bwd(&l->indexer, r, &l->mla, l->index, l->a, l->mla.c_q)
        : 0;
}

int layer_bwd_indexer(struct layer *l, struct run *r)
{
    const size_t mark = r->temp.at;
    if (indexer_learns(l, r) && again(l, r) == 0)
        learn(l, r);
    r->temp.at = mark;
    return r->err->code;
}

int layer_bwd(struct layer *l, struct run *r, const void *dy, void *dx)
{
    const int64_t n = r->T * r->c->hidden_size;
    const size_t mark = r->temp.at;
    void *d = temp_elem(r, n), *dx1 = temp_elem(r, n);
    const size_t half = r->temp.at;
    if (again_b(l, r) != 0
        || (l->dense ? mlp_bwd(&l->mlp, r, l->b, dy, d)
                     : moe_bwd(&l->moe, r, l->b, dy, d))
            != 0
        || norm_bwd(r, &l->norm2, d, l->x1, 0, dy, dx1, 0) != 0)
        goto out;
    r->temp.at = half;
    if (again(l, r) != 0 || learn(l, r) != 0
        || mla_bwd(&l->mla, r, l->a, l->index, dx1, d) != 0)
        goto out;
    norm_bwd(r, &l->norm1, d, l->x, 0, dx1, dx, 0);
out:
    r->temp.at = mark;
    return r->err->code == 0 ? 0 : glm_within(r->err, "layer %d", (int)l->number);
}
