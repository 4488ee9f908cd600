#include "train/dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/blend.h"
#include "train/source.h"

__extension__ typedef __int128 dataset_wide;

struct dataset {
    struct dataset_options o; /* sources is NULL: the caller's are not kept */
    struct source *source;
    char **path;
    int count;
    struct blend blend;
    unsigned char fingerprint[DIGEST_SIZE];
};

/* ---- parts ---------------------------------------------------------------------------------- */

const char *dataset_part_name(enum dataset_part part)
{
    static const char *const names[DATASET_PARTS] = {"train", "valid", "test"};
    return names[part];
}

/* One share in millionths, *s moved behind it. */
static bool dataset_share(const char **s, int64_t *out)
{
    enum { DECIMALS = 6 };
    int64_t v = 0;
    int digits = 0, decimals = -1;
    for (; (**s >= '0' && **s <= '9') || (**s == '.' && decimals < 0); (*s)++) {
        if (**s == '.') {
            decimals = 0;
            continue;
        }
        if (v > 100000000 || decimals == DECIMALS)
            return false;
        v = v * 10 + (**s - '0');
        digits++;
        decimals += decimals >= 0;
    }
    for (int i = decimals < 0 ? 0 : decimals; i < DECIMALS; i++)
        v *= 10;
    *out = v;
    return digits > 0;
}

int dataset_split(const char *split, int64_t documents, enum dataset_part part,
    int64_t *lo, int64_t *hi, struct glm_error *err)
{
    int64_t share[DATASET_PARTS] = {1, 0, 0}, sum[DATASET_PARTS + 1] = {0};
    if (split != NULL) {
        const char *s = split;
        share[0] = 0;
        for (int i = 0; i < DATASET_PARTS; i++) {
            if (!dataset_share(&s, &share[i]))
                goto bad;
            if (*s == '\0')
                break;
            if (*s++ != ',' || i == DATASET_PARTS - 1)
                goto bad;
        }
    }
    for (int i = 0; i < DATASET_PARTS; i++)
        sum[i + 1] = sum[i] + share[i];
    const dataset_wide all = sum[DATASET_PARTS];
    if (all == 0)
        goto bad;
    *lo = (int64_t)((2 * (dataset_wide)documents * sum[part] + all) / (2 * all));
    *hi = (int64_t)((2 * (dataset_wide)documents * sum[part + 1] + all) / (2 * all));
    return GLM_OK;
bad:
    return glm_fail(err, GLM_EUSAGE,
        "split '%.60s': expected the shares of train, valid and test, like 969,30,1",
        split);
}

/* ---- opening -------------------------------------------------------------------------------- */

static int dataset_check(const struct dataset_options *o, struct glm_error *err)
{
    int weights = 0;
    if (o->source_count < 1 || o->source_count > BLEND_MAX_SOURCES)
        return glm_fail(err, GLM_EUSAGE, "%d datasets are given, 1 to %d can be",
            o->source_count, BLEND_MAX_SOURCES);
    if (o->length < 1 || o->length > DATASET_MAX_LENGTH)
        return glm_fail(err, GLM_EUSAGE, "a sequence length of %lld: expected 1 to %d",
            (long long)o->length, DATASET_MAX_LENGTH);
    for (int i = 0; i < o->source_count; i++)
        weights += o->sources[i].weight != NULL;
    if (weights != 0 && weights != o->source_count)
        return glm_fail(err, GLM_EUSAGE,
            "%d of %d datasets have a weight: give it to all or none", weights,
            o->source_count);
    return GLM_OK;
}

static int dataset_blend(
    struct dataset *ds, const struct dataset_options *o, struct glm_error *err)
{
    int64_t weight[BLEND_MAX_SOURCES];
    const char *text[BLEND_MAX_SOURCES] = {0};
    for (int i = 0; i < ds->count; i++) {
        text[i] = o->sources[i].weight;
        weight[i] = ds->source[i].samples;
    }
    if (text[0] != NULL && blend_weights(text, ds->count, weight, err) != GLM_OK)
        return err->code;
    return blend_init(&ds->blend, weight, ds->count, err);
}

static void dataset_seal(struct dataset *ds, struct digest *sum)
{
    char line[256], hex[DIGEST_HEX];
    int n = snprintf(line, sizeof line,
        "dataset 1\nlength %" PRId64 "\npacking %d\nseed %" PRIu32
        "\npart %s\nend %d %d\n",
        ds->o.length, (int)ds->o.packing, ds->o.seed, dataset_part_name(ds->o.part),
        ds->o.mask_after_end, ds->o.mask_after_end ? ds->o.end : 0);
    digest_begin(sum);
    digest_update(sum, line, (size_t)n);
    for (int i = 0; i < ds->count; i++) {
        const struct source *const s = &ds->source[i];
        digest_hex(s->file.fingerprint, hex);
        n = snprintf(line, sizeof line, "source %s %" PRId64 " %" PRId64 " %" PRId64 "\n",
            hex, s->lo, s->hi, ds->blend.weight[i]);
        digest_update(sum, line, (size_t)n);
    }
    digest_end(sum, ds->fingerprint);
}

static int dataset_fill(
    struct dataset *ds, const struct dataset_options *o, struct glm_error *err)
{
    ds->source = calloc((size_t)o->source_count, sizeof *ds->source);
    ds->path = calloc((size_t)o->source_count, sizeof *ds->path);
    struct digest *const sum = digest_new();
    if (ds->source == NULL || ds->path == NULL || sum == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for %d datasets", o->source_count);
        goto out;
    }
    for (; ds->count < o->source_count; ds->count++) {
        const char *const path = o->sources[ds->count].path;
        struct source *const s = &ds->source[ds->count];
        ds->path[ds->count] = strdup(path);
        if (ds->path[ds->count] == NULL) {
            glm_fail(err, GLM_ENOMEM, "%s: no memory for its name", path);
            goto out;
        }
        if (source_open(s, path, o->split, &ds->o, err) != GLM_OK)
            goto out;
    }
    if (dataset_blend(ds, o, err) == GLM_OK)
        dataset_seal(ds, sum);
out:
    digest_free(sum);
    return err->code;
}

int dataset_open(
    struct dataset **out, const struct dataset_options *o, struct glm_error *err)
{
    *out = NULL;
    if (dataset_check(o, err) != GLM_OK)
        return err->code;
    struct dataset *const ds = calloc(1, sizeof *ds);
    if (ds == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for a dataset");
    ds->o = *o;
    ds->o.sources = NULL;
    ds->o.split = NULL;
    if (dataset_fill(ds, o, err) != GLM_OK) {
        dataset_close(ds);
        return err->code;
    }
    *out = ds;
    return GLM_OK;
}

void dataset_close(struct dataset *ds)
{
    if (ds == NULL)
        return;
    for (int i = 0; i < ds->o.source_count; i++) {
        if (ds->source != NULL && i < ds->count)
            source_close(&ds->source[i]);
        if (ds->path != NULL)
            free(ds->path[i]);
    }
    blend_clear(&ds->blend);
    free(ds->source);
    free(ds->path);
    free(ds);
}

/* ---- samples -------------------------------------------------------------------------------- */

int sample_init(struct sample *s, int64_t length, struct glm_error *err)
{
    const size_t n = (size_t)length;
    *s = (struct sample){.length = length};
    s->tokens = calloc(n, sizeof *s->tokens);
    s->labels = calloc(n, sizeof *s->labels);
    s->loss_mask = calloc(n, sizeof *s->loss_mask);
    s->positions = calloc(n, sizeof *s->positions);
    s->cu_seqlens = calloc(n + 1, sizeof *s->cu_seqlens);
    if (s->tokens == NULL || s->labels == NULL || s->loss_mask == NULL
        || s->positions == NULL || s->cu_seqlens == NULL) {
        sample_clear(s);
        return glm_fail(
            err, GLM_ENOMEM, "no memory for a sample of %lld rows", (long long)length);
    }
    return GLM_OK;
}

void sample_clear(struct sample *s)
{
    free(s->tokens);
    free(s->labels);
    free(s->loss_mask);
    free(s->positions);
    free(s->cu_seqlens);
    *s = (struct sample){0};
}

void dataset_locate(
    const struct dataset *ds, int64_t index, int *source, int64_t *epoch, int64_t *number)
{
    int64_t local;
    *source = blend_at(&ds->blend, index, &local);
    source_locate(&ds->source[*source], local, epoch, number);
}

int dataset_sample(
    struct dataset *ds, int64_t index, struct sample *s, struct glm_error *err)
{
    int64_t local;
    assert(s->length == ds->o.length && index >= 0);
    s->source = blend_at(&ds->blend, index, &local);
    struct source *const from = &ds->source[s->source];
    if (local / from->samples > PERMUTE_MAX_EPOCH)
        return glm_fail(err, GLM_EUSAGE, "%s: sample %lld lies beyond epoch %d",
            ds->path[s->source], (long long)index, PERMUTE_MAX_EPOCH);
    source_locate(from, local, &s->epoch, &s->number);
    if (source_fill(from, s->epoch, s->number, s, err) != GLM_OK)
        return glm_within(err, "sample %lld", (long long)index);
    return GLM_OK;
}

/* ---- what it is ----------------------------------------------------------------------------- */

int64_t dataset_epoch(const struct dataset *ds)
{
    int64_t most = 0;
    for (int i = 0; i < ds->count; i++) {
        /* The last of the source's samples lies in this turn, at this place. */
        const int64_t last = ds->source[i].samples - 1, w = ds->blend.weight[i];
        const int64_t turn = last / w;
        for (int64_t at = 0; at < ds->blend.period; at++)
            if (ds->blend.source[at] == i && ds->blend.rank[at] == last % w) {
                const int64_t end = turn * ds->blend.period + at + 1;
                most = end > most ? end : most;
            }
    }
    return most;
}

void dataset_fingerprint(const struct dataset *ds, unsigned char out[DIGEST_SIZE])
{
    memcpy(out, ds->fingerprint, DIGEST_SIZE);
}

int dataset_sources(const struct dataset *ds)
{
    return ds->count;
}

struct dataset_report dataset_report(const struct dataset *ds, int source)
{
    const struct source *const s = &ds->source[source];
    return (struct dataset_report){
        .path = ds->path[source],
        .weight = ds->blend.weight[source],
        .documents = s->hi - s->lo,
        .tokens = s->tokens,
        .skipped = s->skipped,
        .samples = s->samples,
        .rows = s->rows,
    };
}
