/* What the model promises besides numbers: bits, counts, replays, stages, refusals. */
#include <criterion/criterion.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"
#include "tests/support/brief.h"
#include "tests/support/opdata.h"
#include "tests/support/tinymodel.h"
#include "tests/support/tmpdir.h"
#include "train/modelparams.h"

static const int PACK[] = {33, 21, 0};

struct made {
    struct tinymodel *t;
    struct model *m;
    glm_stream stream;
};

static struct made make(const char *fixture, struct model_options o, int threads)
{
    struct glm_error err = {0};
    char path[128];
    size_t size;
    struct made a = {0};
    snprintf(path, sizeof path, "fixtures/%s/config.json", fixture);
    char *config = tmpdir_read(path, &size);
    o.dtype = o.dtype ? o.dtype : GLM_F32;
    o.max_tokens = o.max_tokens ? o.max_tokens : 64;
    o.max_sequences = 4;
    a.t = tinymodel_new(config, 1, false, o.dtype, false);
    a.stream = threads > 0 ? kernels_find("cpu")->stream_new(threads, &err) : NULL;
    a.m = tinymodel_model(a.t, &o, a.stream);
    free(config);
    return a;
}

static void drop(struct made *a)
{
    model_free(a->m);
    tinymodel_free(a->t);
    kernels_find("cpu")->stream_free(a->stream);
}

static const struct model_scale SCALE = {.lm = 0.02, .mtp = 0.02, .indexer = 0.02};
static const struct model_options ALL = {.indexer_loss = MODEL_INDEXER_SPARSE,
    .indexer_coeff = 0.1,
    .mtp = true,
    .mtp_coeff = 0.3};

static void forward(
    struct made *a, const struct model_batch *b, const struct model_replay *r)
{
    struct glm_error err = {0};
    cr_assert_eq(model_forward(a->m, b, r, &err), 0, "%s", err.text);
}

static void step(struct made *a, const struct model_batch *b)
{
    struct glm_error err = {0};
    forward(a, b, NULL);
    cr_assert_eq(model_backward(a->m, &SCALE, &err), 0, "%s", err.text);
}

/* Gradients that are not the same bits, by tensor. */
static int gradients_differ(const struct made *a, const struct made *b)
{
    int bad = 0;
    for (int64_t i = 0; i < a->t->table->count; i++) {
        const size_t n = (size_t)tinymodel_count(a->t, i) * glm_dtype_size(a->t->acc);
        if (a->t->params[i].dw)
            bad += memcmp(a->t->params[i].dw, b->t->params[i].dw, n) != 0;
    }
    return bad;
}

static void check_alone(struct made *a, const struct tinybatch *pack, int s)
{
    const int64_t H = a->t->table->config.hidden_size;
    const int32_t begin = pack->batch.cu_seqlens[s],
                  n = pack->batch.cu_seqlens[s + 1] - begin;
    const size_t bytes = (size_t)(n * H) * glm_dtype_size(a->t->dtype);
    const size_t at = (size_t)(begin * H) * glm_dtype_size(a->t->dtype);
    const int32_t cu[] = {0, n};
    const struct model_batch one = {.tokens = n,
        .sequences = 1,
        .cu_seqlens = cu,
        .ids = pack->batch.ids + begin,
        .positions = pack->batch.positions + begin,
        .targets = pack->batch.targets + begin};
    forward(a, &pack->batch, NULL);
    char *hidden = malloc(bytes), *mtp = malloc(bytes);
    memcpy(hidden, (const char *)model_hidden(a->m) + at, bytes);
    memcpy(mtp, (const char *)model_mtp_hidden(a->m) + at, bytes);
    forward(a, &one, NULL);
    cr_expect_eq(memcmp(hidden, model_hidden(a->m), bytes), 0, "sequence %d", s);
    cr_expect_eq(memcmp(mtp, model_mtp_hidden(a->m), bytes), 0, "sequence %d, MTP", s);
    free(hidden);
    free(mtp);
}

Test(model, gives_a_packed_sequence_the_bits_it_has_alone)
{
    const enum glm_dtype types[] = {GLM_F32, GLM_BF16};
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    for (int i = 0; i < 4; i += brief() ? 3 : 1) {
        struct model_options o = ALL;
        o.dtype = types[i / 2];
        o.absorbed = i % 2;
        struct made a = make("tiny-a-f32", o, 2);
        check_alone(&a, &b, 0);
        check_alone(&a, &b, 1);
        drop(&a);
    }
    tinybatch_free(&b);
}

Test(model, gives_the_same_bits_when_it_keeps_less)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    for (int i = 0; i < 4; i += brief() ? 3 : 1) {
        struct model_options o = ALL;
        o.dtype = i / 2 ? GLM_BF16 : GLM_F32;
        o.absorbed = i % 2;
        struct made all = make("tiny-a-f32", o, 2);
        o.lean = true;
        struct made lean = make("tiny-a-f32", o, 2);
        step(&all, &b.batch);
        step(&lean, &b.batch);
        cr_expect_eq(gradients_differ(&all, &lean), 0);
        cr_expect_lt(model_bytes(lean.m), model_bytes(all.m));
        drop(&all);
        drop(&lean);
    }
    tinybatch_free(&b);
}

/* The losses are made with the gradients, in one. */
Test(model, gives_the_same_bits_when_losses_come_with_backward)
{
    struct made a = make("tiny-a-f32", ALL, 2), b = make("tiny-a-f32", ALL, 2);
    struct tinybatch batch = tinybatch_new(PACK, 320, 3);
    step(&a, &batch.batch);
    batch.batch.late = true;
    step(&b, &batch.batch);
    cr_expect_eq(gradients_differ(&a, &b), 0);
    const struct model_losses *x = model_losses(a.m), *y = model_losses(b.m);
    cr_expect(x->lm_sum > 0 && x->lm_sum == y->lm_sum && x->lm_count == y->lm_count);
    cr_expect(x->mtp_sum > 0 && x->mtp_sum == y->mtp_sum && x->mtp_count == y->mtp_count);
    tinybatch_free(&batch);
    drop(&a);
    drop(&b);
}

Test(model, gives_the_same_bits_with_every_number_of_threads)
{
    const int threads[] = {1, 2, 4};
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    struct made alone = make("tiny-a-f32", ALL, 0);
    step(&alone, &b.batch);
    for (int i = brief() ? 2 : 0; i < 3; i++) {
        struct made a = make("tiny-a-f32", ALL, threads[i]);
        const struct model_losses *x = model_losses(a.m), *y = model_losses(alone.m);
        step(&a, &b.batch);
        cr_expect_eq(pool_used(a.stream), threads[i], "threads that ran: %d of %d",
            pool_used(a.stream), threads[i]);
        cr_expect_eq(gradients_differ(&a, &alone), 0, "%d threads", threads[i]);
        cr_expect(x->lm_sum == y->lm_sum && x->mtp_sum == y->mtp_sum);
        cr_expect_eq(
            memcmp(x->indexer_sum, y->indexer_sum, (size_t)x->layers * sizeof(double)),
            0);
        drop(&a);
    }
    drop(&alone);
    tinybatch_free(&b);
}

Test(model, gives_the_same_bits_in_a_second_step)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3), other = tinybatch_new(PACK, 320, 4);
    struct made a = make("tiny-a-f32", ALL, 2), c = make("tiny-a-f32", ALL, 2);
    step(&a, &b.batch);
    step(&c, &other.batch);
    tinymodel_zero_grads(c.t);
    step(&c, &b.batch);
    cr_expect_eq(gradients_differ(&a, &c), 0);
    drop(&a);
    drop(&c);
    tinybatch_free(&b);
    tinybatch_free(&other);
}

Test(model, adds_gradients_of_micro_batches)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    struct made once = make("tiny-c-f32", ALL, 0), twice = make("tiny-c-f32", ALL, 0);
    step(&once, &b.batch);
    step(&twice, &b.batch);
    step(&twice, &b.batch);
    for (int64_t i = 0; i < once.t->table->count; i++)
        for (int64_t k = 0; once.t->params[i].dw && k < tinymodel_count(once.t, i); k++) {
            const float g = ((float *)once.t->params[i].dw)[k];
            const float h = ((float *)twice.t->params[i].dw)[k];
            const float room =
                1e-4f * (g < 0 ? -g : g) + 1e-6f; /* other orders of a sum */
            cr_assert(h - 2 * g <= room && 2 * g - h <= room, "%s[%lld]: %g, twice %g",
                once.t->table->entries[i].name, (long long)k, (double)g, (double)h);
        }
    drop(&once);
    drop(&twice);
    tinybatch_free(&b);
}

Test(model, allocates_nothing_in_a_step)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    struct made a = make("tiny-a-f32", ALL, 1);
    step(&a, &b.batch);
    const struct mallinfo2 before = mallinfo2();
    step(&a, &b.batch);
    const struct mallinfo2 after = mallinfo2();
    cr_expect_eq(before.uordblks, after.uordblks, "%zu bytes, then %zu", before.uordblks,
        after.uordblks);
    cr_expect_gt(model_bytes(a.m), 1000000);
    drop(&a);
    tinybatch_free(&b);
}

Test(model, takes_recorded_sets_in_place_of_its_own)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    struct made a = make("tiny-a-f32", ALL, 0);
    struct glm_error err = {0};
    const int64_t T = b.batch.tokens, K = 8, E = 2, L = 9;
    const int32_t *index[9] = {0}, *expert[9] = {0};
    int32_t *first = malloc((size_t)(T * K) * sizeof *first);
    int32_t *pair = malloc((size_t)(T * E) * sizeof *pair);
    forward(&a, &b.batch, NULL);
    for (int64_t t = 0; t < T;
         t++) { /* the first keys of the sequence; experts 2 and 5 */
        const int32_t begin = t < 33 ? 0 : 33;
        for (int64_t k = 0; k < K; k++)
            first[t * K + k] = begin + k <= t ? begin + (int32_t)k : -1;
        pair[t * E] = 2;
        pair[t * E + 1] = 5;
    }
    for (int64_t i = 0; i < L; i++) {
        index[i] = first;
        expert[i] = i < 3 ? NULL : pair;
    }
    forward(&a, &b.batch, &(struct model_replay){.index = index, .expert = expert});
    int64_t load[8] = {0};
    for (int64_t i = 0; i < L; i++) {
        cr_expect_eq(
            memcmp(model_index(a.m, i), first, (size_t)(T * K) * sizeof *first), 0);
        if (i >= 3)
            cr_expect_eq(
                memcmp(model_expert(a.m, i), pair, (size_t)(T * E) * sizeof *pair), 0);
        cr_assert_eq(model_add_loads(a.m, i, load, &err), 0);
    }
    /* Without the last row of either sequence in the MTP layer. */
    cr_expect(load[2] == 6 * T - 2 && load[5] == 6 * T - 2 && load[0] == 0,
        "loads %lld %lld %lld", (long long)load[2], (long long)load[5],
        (long long)load[0]);
    free(first);
    free(pair);
    drop(&a);
    tinybatch_free(&b);
}

Test(model, trains_nothing_but_the_indexer_in_its_stage)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    struct made a = make("tiny-a-f32",
        (struct model_options){.stage = MODEL_TRAIN_INDEXER,
            .indexer_loss = MODEL_INDEXER_DENSE,
            .dense_attention = true,
            .indexer_coeff = 1},
        0);
    step(&a, &b.batch);
    for (int64_t i = 0; i < a.t->table->count; i++) {
        const struct table_entry *e = &a.t->table->entries[i];
        double sum = 0;
        for (int64_t k = 0; a.t->params[i].dw && k < tinymodel_count(a.t, i); k++)
            sum += (double)((float *)a.t->params[i].dw)[k]
                * (double)((float *)a.t->params[i].dw)[k];
        cr_expect((sum > 0) == (e->kind == KIND_INDEXER && e->layer < 8), "%s: %g",
            e->name, sum);
    }
    cr_expect_eq(model_losses(a.m)->lm_count, 0);
    cr_expect_gt(model_losses(a.m)->indexer_sum[6], 0);
    drop(&a);
    tinybatch_free(&b);
}

Test(model, leaves_the_padding_row_alone_if_asked)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    for (int zero = 0; zero < 2; zero++) {
        struct model_options o = ALL;
        o.zero_padding_row_grad = zero;
        struct made a = make("tiny-a-f32", o, 0);
        const float *row = a.t->params[0].dw; /* of token 0, which occurs */
        double sum = 0;
        step(&a, &b.batch);
        for (int64_t k = 0; k < 160; k++)
            sum += (double)row[k] * (double)row[k];
        cr_expect_eq(sum > 0, zero == 0);
        drop(&a);
    }
    tinybatch_free(&b);
}

Test(model, runs_on_the_parameters_of_training_and_counts_for_the_balancer)
{
    struct glm_error err = {0};
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    struct made a = make("tiny-a-f32", ALL, 0); /* for its table */
    const struct model_options o = {.dtype = GLM_BF16,
        .max_tokens = 64,
        .max_sequences = 4,
        .mtp = true,
        .mtp_coeff = 0.1};
    const struct params_options how = {.dtype = GLM_BF16, .trained = PARAMS_ALL};
    struct params *p = NULL;
    struct model *m = NULL;
    int64_t total = 0;
    cr_assert_eq(params_new(&p, a.t->table, &how, &err), 0, "%s", err.text);
    params_init(p, 1, &err);
    struct model_param *link = calloc((size_t)p->count, sizeof *link);
    modelparams_link(p, link);
    cr_assert_eq(model_new(&m, a.t->table, link, &o, kernels_find("cpu"), NULL, &err), 0,
        "%s", err.text);
    cr_assert_eq(model_forward(m, &b.batch, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(modelparams_count(m, p, &err), 0);
    cr_assert_eq(model_backward(m, &SCALE, &err), 0, "%s", err.text);
    for (int64_t i = 0; i < p->count; i++)
        for (int64_t e = 0; p->p[i].routed && e < 8; e++)
            total += p->p[i].routed[e];
    /* 5 MoE layers and MTP, 2 experts a token; MTP's last row of each sequence is padding. */
    cr_expect_eq(total, 6 * 2 * b.batch.tokens - 2 * b.batch.sequences);
    /* Weights of 0.02: nearly uniform predictions. */
    const double mean = model_losses(m)->lm_sum / (double)model_losses(m)->lm_count;
    cr_expect(mean > 5.6 && mean < 6.0, "loss %g, ln 320 is 5.77", mean);
    free(link);
    model_free(m);
    params_free(p);
    drop(&a);
    tinybatch_free(&b);
}

static void refuse(struct made *a, struct model_batch b, const char *sentence)
{
    struct glm_error err = {0};
    cr_expect_eq(model_forward(a->m, &b, NULL, &err), GLM_EFORMAT);
    cr_expect_not_null(strstr(err.text, sentence), "'%s' in '%s'", sentence, err.text);
    err = (struct glm_error){0};
    cr_expect_eq(model_backward(a->m, &SCALE, &err), GLM_EUSAGE);
}

Test(model, refuses_batches_that_cannot_be)
{
    struct tinybatch b = tinybatch_new(PACK, 320, 3);
    struct made a = make("tiny-a-f32", ALL, 0);
    struct model_batch x = b.batch;
    const int32_t gap[] = {0, 0, 54}, low[] = {0, 33, 50};
    int32_t ids[54], targets[54];
    x.tokens = 65;
    refuse(&a, x, "65 tokens");
    x = b.batch;
    x.cu_seqlens = gap;
    refuse(&a, x, "sequence 0 of the batch has no tokens");
    x.cu_seqlens = low;
    refuse(&a, x, "cover 0 to 50");
    x = b.batch;
    memcpy(ids, x.ids, sizeof ids);
    ids[7] = 320;
    x.ids = ids;
    refuse(&a, x, "320");
    x = b.batch;
    memcpy(targets, x.targets, sizeof targets);
    targets[9] = 1000;
    x.targets = targets;
    refuse(&a, x, "1000");
    drop(&a);
    tinybatch_free(&b);
}

Test(model, refuses_options_that_contradict_each_other)
{
    struct made a = make("tiny-a-f32", ALL, 0);
    struct model_options bad[6];
    for (int i = 0; i < 6; i++) {
        bad[i] = ALL;
        bad[i].dtype = GLM_F32;
        bad[i].max_tokens = 64;
        bad[i].max_sequences = 4;
    }
    bad[0].dtype = GLM_F16;
    bad[1].max_tokens = 0;
    bad[2].indexer_loss = MODEL_INDEXER_DENSE;
    bad[3].dense_attention = true;
    bad[4].stage = MODEL_FREEZE_INDEXER;
    bad[5].stage = MODEL_TRAIN_INDEXER;
    bad[5].indexer_loss = MODEL_INDEXER_OFF;
    for (int i = 0; i < 6; i++) {
        struct glm_error err = {0};
        struct model *m;
        cr_expect_eq(model_new(&m, a.t->table, a.t->params, &bad[i], kernels_find("cpu"),
                         NULL, &err),
            GLM_EUSAGE, "case %d", i);
        cr_expect_null(m);
    }
    struct glm_error err = {0};
    struct model *m;
    const struct model_options good = {
        .dtype = GLM_F32, .max_tokens = 8, .max_sequences = 1};
    void *kept = a.t->params[4].dw;
    a.t->params[4].dw = NULL;
    cr_expect_eq(
        model_new(&m, a.t->table, a.t->params, &good, kernels_find("cpu"), NULL, &err),
        GLM_EFORMAT);
    cr_expect_not_null(strstr(err.text, a.t->table->entries[4].name), "%s", err.text);
    a.t->params[4].dw = kept;
    drop(&a);
}
