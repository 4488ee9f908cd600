#include "train/feed.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/random.h"

struct feed {
    struct dataset *data; /* NULL: mock */
    struct random_stream mock;
    int64_t length, vocab;
    uint32_t seed;
    enum dataset_part part;
};

/* ---- opening ---------------------------------------------------------------------------------- */

static int open_dataset(struct feed *f, const struct recipe *r, struct glm_error *err)
{
    const struct recipe_data *const d = &r->data;
    const struct dataset_source apart = {.path = d->eval};
    const bool own = f->part == PART_VALID && d->eval != NULL;
    struct dataset_source *source = NULL;
    char split[128];

    snprintf(
        split, sizeof split, "%.17g,%.17g,%.17g", d->split[0], d->split[1], d->split[2]);
    struct dataset_options o = {.length = f->length,
        .vocab = f->vocab,
        .seed = f->seed,
        .packing = d->documents ? PACKING_DOCUMENTS : PACKING_STREAM,
        .part = f->part,
        .split = split,
        .mask_after_end = d->eod_mask_loss,
        .end = (int32_t)(d->end_id < 0 ? -1 : d->end_id)};
    if (own) {
        o.sources = &apart;
        o.source_count = 1;
        o.part = PART_TRAIN;
        o.split = NULL;
    } else {
        if (d->sources < 1)
            return glm_fail(err, GLM_EFORMAT,
                "%s: key GLM.data: missing; training wants a dataset (or mock_data)",
                r->path);
        if ((source = calloc((size_t)d->sources, sizeof *source)) == NULL)
            return glm_fail(err, GLM_ENOMEM, "%s: no memory for the datasets", r->path);
        for (int i = 0; i < d->sources; i++)
            source[i] = (struct dataset_source){d->source[i].path, d->source[i].weight};
        o.sources = source;
        o.source_count = d->sources;
    }
    dataset_open(&f->data, &o, err);
    free(source);
    return (int)err->code;
}

int feed_open(struct feed **out, const struct recipe *r, enum dataset_part part,
    struct glm_error *err)
{
    struct feed *f = calloc(1, sizeof *f);

    *out = NULL;
    if (f == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the data");
    if (r->train.seed > UINT32_MAX) {
        glm_fail(err, GLM_EFORMAT, "%s: key ARGS.seed: %" PRId64 " exceeds 4294967295",
            r->path, r->train.seed);
        goto out;
    }
    f->length = r->batch.seq_length;
    f->vocab = r->config.vocab_size;
    f->seed = (uint32_t)r->train.seed;
    f->part = part;
    if (!r->data.mock)
        open_dataset(f, r, err);
    else
        f->mock = random_open(f->seed, "mock data", dataset_part_name(part));
out:
    if (err->code != GLM_OK) {
        feed_close(f);
        return (int)err->code;
    }
    *out = f;
    return GLM_OK;
}

void feed_close(struct feed *f)
{
    if (f == NULL)
        return;
    dataset_close(f->data);
    free(f);
}

int64_t feed_epoch(const struct feed *f)
{
    return f->data != NULL ? dataset_epoch(f->data) : INT64_MAX;
}

void feed_fingerprint(const struct feed *f, unsigned char out[DIGEST_SIZE])
{
    char text[128];

    if (f->data != NULL) {
        dataset_fingerprint(f->data, out);
        return;
    }
    const int n = snprintf(text, sizeof text, "mock %s %" PRId64 " %" PRId64 " %" PRIu32,
        dataset_part_name(f->part), f->vocab, f->length, f->seed);
    digest_of(text, (size_t)n, out);
}

/* ---- batches ---------------------------------------------------------------------------------- */

int feed_batch_init(struct feed_batch *b, int64_t samples, int64_t micro, int64_t length,
    struct glm_error *err)
{
    const int64_t parts = (samples + micro - 1) / micro, rows = parts * micro * length;

    *b = (struct feed_batch){.samples = samples, .micro = micro, .length = length};
    b->part = calloc((size_t)parts, sizeof *b->part);
    /* ids, positions, targets, and borders with one more per part */
    b->memory = calloc((size_t)(4 * rows + parts), sizeof *b->memory);
    if (b->part == NULL || b->memory == NULL) {
        feed_batch_clear(b);
        return glm_fail(
            err, GLM_ENOMEM, "no memory for a batch of %" PRId64 " rows", rows);
    }
    if (sample_init(&b->one, length, err) != GLM_OK)
        feed_batch_clear(b);
    return (int)err->code;
}

void feed_batch_clear(struct feed_batch *b)
{
    free(b->part);
    free(b->memory);
    sample_clear(&b->one);
    *b = (struct feed_batch){0};
}

/* One document of tokens in which each has a few likely followers, so that there is something to
 * learn: t' = (5 t + 1 + r) mod V with r from 0 to 3. */
static void mock_sample(const struct feed *f, int64_t index, struct sample *s)
{
    const uint32_t name[2] = {f->mock.name[0], f->mock.name[1]};
    int64_t token = 0;

    for (int64_t t = 0; t <= s->length; t++) {
        const uint64_t at = (uint64_t)index * (uint64_t)(s->length + 1) + (uint64_t)t;
        const uint32_t counter[4] = {
            (uint32_t)at, (uint32_t)(at >> 32), name[0], name[1]};
        uint32_t x[4];
        philox4x32_10(counter, f->mock.key, x);
        token = t == 0 ? (int64_t)x[0] % f->vocab
                       : (5 * token + 1 + (int64_t)(x[0] & 3)) % f->vocab;
        if (t < s->length) {
            s->tokens[t] = (int32_t)token;
            s->positions[t] = (int32_t)t;
            s->loss_mask[t] = 1;
        }
        if (t > 0)
            s->labels[t - 1] = (int32_t)token;
    }
    s->cu_seqlens[0] = 0;
    s->cu_seqlens[1] = (int32_t)s->length;
    s->sequences = 1;
    s->rows = s->length;
}

struct part_memory { /* of one micro-batch */
    int32_t *ids, *positions, *targets, *borders;
};

static void append(
    struct model_batch *p, const struct part_memory *to, const struct sample *s)
{
    const int64_t at = p->tokens, filled = s->sequences - (s->rows < s->length ? 1 : 0);

    for (int64_t i = 0; i < s->rows; i++) {
        to->ids[at + i] = s->tokens[i];
        to->positions[at + i] = s->positions[i];
        to->targets[at + i] = s->loss_mask[i] != 0 ? s->labels[i] : -100;
    }
    for (int64_t i = 0; i < filled; i++)
        to->borders[p->sequences + 1 + i] = (int32_t)(at + s->cu_seqlens[i + 1]);
    p->tokens += s->rows;
    p->sequences += filled;
}

/* A row's MTP target is the target of the next row of its sequence. */
static void count(struct feed_batch *b, const struct model_batch *p)
{
    b->rows += p->tokens;
    for (int64_t s = 0; s < p->sequences; s++)
        for (int64_t t = p->cu_seqlens[s]; t < p->cu_seqlens[s + 1]; t++)
            if (p->targets[t] >= 0) {
                b->targets++;
                b->mtp_targets += t > p->cu_seqlens[s];
            }
}

int feed_fill(
    struct feed *f, int64_t first, int64_t n, struct feed_batch *b, struct glm_error *err)
{
    const int64_t rows = b->micro * b->length;

    b->parts = (n + b->micro - 1) / b->micro;
    b->rows = b->targets = b->mtp_targets = 0;
    for (int64_t k = 0; k < b->parts; k++) {
        int32_t *const at = b->memory + k * (4 * rows + 1);
        const struct part_memory to = {at, at + rows, at + 2 * rows, at + 3 * rows};
        struct model_batch *const p = &b->part[k];
        *p = (struct model_batch){.ids = to.ids,
            .positions = to.positions,
            .targets = to.targets,
            .cu_seqlens = to.borders};
        to.borders[0] = 0;
        for (int64_t i = k * b->micro; i < n && i < (k + 1) * b->micro; i++) {
            if (f->data == NULL)
                mock_sample(f, first + i, &b->one);
            else if (dataset_sample(f->data, first + i, &b->one, err) != GLM_OK)
                return (int)err->code;
            append(p, &to, &b->one);
        }
        count(b, p);
    }
    return GLM_OK;
}
