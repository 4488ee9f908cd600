/* A stream sample begins at a token of the epoch's order, which is found without a table of all
 * documents: sums are kept for every SOURCE_STEP-th one, the few between are walked. */
#include "train/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t source_documents(const struct source *s)
{
    return s->hi - s->lo;
}

static int64_t source_document(const struct source *s, int64_t rank)
{
    return s->lo + permute_at(&s->order, rank);
}

static int64_t source_length(const void *ctx, int64_t rank)
{
    const struct source *const s = ctx;
    return tokens_length(&s->file, source_document(s, rank));
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Lays the documents out for an epoch. */
static void source_order(struct source *s, int64_t epoch)
{
    int64_t sum = 0;
    s->order =
        permute_open(source_documents(s), s->o->seed, "document order", s->name, epoch);
    s->epoch = epoch;
    if (s->before == NULL)
        return;
    for (int64_t rank = 0; rank < source_documents(s); rank++) {
        if (rank % SOURCE_STEP == 0)
            s->before[rank / SOURCE_STEP] = sum;
        sum += source_length(s, rank);
    }
}

static int source_short(const struct source *s, struct glm_error *err)
{
    return glm_fail(err, GLM_EFORMAT,
        "%s: part %s: %lld tokens in %lld documents (%lld without a row) are less than "
        "one "
        "sample of %lld + 1 tokens: use a shorter sequence, another split or more data",
        s->file.file.path, dataset_part_name(s->o->part), (long long)s->tokens,
        (long long)source_documents(s), (long long)s->skipped, (long long)s->o->length);
}

static int source_stream(struct source *s, struct glm_error *err)
{
    const int64_t marks = (source_documents(s) + SOURCE_STEP - 1) / SOURCE_STEP;
    for (int64_t d = s->lo; d < s->hi; d++)
        s->skipped += tokens_length(&s->file, d) == 0;
    s->samples = s->tokens > 0 ? (s->tokens - 1) / s->o->length : 0;
    s->rows = s->samples * s->o->length;
    if (s->samples < 1)
        return source_short(s, err);
    s->before = malloc((size_t)marks * sizeof *s->before);
    if (s->before == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for the order of %lld documents",
            s->file.file.path, (long long)source_documents(s));
    source_order(s, 0);
    return GLM_OK;
}

static int source_packed(struct source *s, struct glm_error *err)
{
    if (source_documents(s) > 0) {
        source_order(s, 0);
        if (packing_plan(
                &s->packs, source_documents(s), source_length, s, s->o->length, err)
            != GLM_OK)
            return err->code;
    }
    s->skipped = s->packs.skipped;
    s->samples = s->packs.count;
    s->rows = s->packs.rows;
    /* A pack that is not full is a sample, but fewer rows than one sequence are no dataset. */
    return s->rows < s->o->length ? source_short(s, err) : GLM_OK;
}

int source_open(struct source *s, const char *path, const char *split,
    const struct dataset_options *o, struct glm_error *err)
{
    char hex[DIGEST_HEX];
    *s = (struct source){.o = o};
    if (tokens_open(&s->file, path, err) != GLM_OK
        || dataset_split(split, s->file.documents, o->part, &s->lo, &s->hi, err)
            != GLM_OK)
        goto out;
    s->tokens = s->file.start[s->hi] - s->file.start[s->lo];
    digest_hex(s->file.fingerprint, hex);
    snprintf(s->name, sizeof s->name, "%s %s", hex, dataset_part_name(o->part));
    if (o->packing == PACKING_STREAM)
        source_stream(s, err);
    else
        source_packed(s, err);
out:
    if (err->code != GLM_OK)
        source_close(s);
    return err->code;
}

void source_close(struct source *s)
{
    tokens_close(&s->file);
    packing_clear(&s->packs);
    free(s->before);
    *s = (struct source){.file.file = {.fd = -1, .direct = -1}};
}

void source_locate(const struct source *s, int64_t local, int64_t *epoch, int64_t *number)
{
    *epoch = local / s->samples;
    const struct permutation p =
        permute_open(s->samples, s->o->seed, "sample order", s->name, *epoch);
    *number = permute_at(&p, local % s->samples);
}

/* ---- stream --------------------------------------------------------------------------------- */

/* The document that holds token `at` of the order; *first: where in it. */
static int64_t source_find(const struct source *s, int64_t at, int64_t *first)
{
    int64_t lo = 0, hi = (source_documents(s) - 1) / SOURCE_STEP;
    while (lo < hi) {
        const int64_t mid = hi - (hi - lo) / 2;
        if (s->before[mid] <= at)
            lo = mid;
        else
            hi = mid - 1;
    }
    int64_t rank = lo * SOURCE_STEP, left = at - s->before[lo];
    for (int64_t n; left >= (n = source_length(s, rank)); rank++)
        left -= n;
    *first = left;
    return rank;
}

/* Tokens [at, at + n) of the order become tokens and, one to the left, labels. */
static int source_fill_stream(struct source *s, int64_t epoch, int64_t number,
    struct sample *out, struct glm_error *err)
{
    const int64_t L = s->o->length, at = number * L;
    int64_t first;
    if (epoch != s->epoch)
        source_order(s, epoch);
    int64_t rank = source_find(s, at, &first);
    /* Row r's label is token r + 1; the first token of all has no row that it is the label of. */
    int64_t done = 0;
    while (done < L + 1) {
        const int64_t document = source_document(s, rank);
        const int64_t left = tokens_length(&s->file, document) - first;
        const int64_t n = left < L + 1 - done ? left : L + 1 - done;
        if (done == 0) {
            uint8_t ignored;
            if (tokens_read(
                    &s->file, document, first, 1, s->o->vocab, out->tokens, &ignored, err)
                    != GLM_OK
                || tokens_read(&s->file, document, first + 1, n - 1, s->o->vocab,
                       out->labels, out->loss_mask, err)
                    != GLM_OK)
                return err->code;
        } else if (tokens_read(&s->file, document, first, n, s->o->vocab,
                       out->labels + done - 1, out->loss_mask + done - 1, err)
            != GLM_OK) {
            return err->code;
        }
        done += n;
        first = 0;
        rank++;
    }
    memcpy(out->tokens + 1, out->labels, (size_t)(L - 1) * sizeof *out->tokens);
    for (int64_t r = 0; r < L; r++)
        out->positions[r] = (int32_t)r;
    out->cu_seqlens[0] = 0;
    out->cu_seqlens[1] = (int32_t)L;
    out->sequences = 1;
    out->rows = L;
    return GLM_OK;
}

/* ---- packs ---------------------------------------------------------------------------------- */

static int source_fill_piece(const struct source *s, const struct pack_piece *piece,
    int64_t at, struct sample *out, struct glm_error *err)
{
    const int64_t document = source_document(s, piece->rank), n = piece->rows;
    uint8_t ignored;
    if (tokens_read(&s->file, document, piece->row, 1, s->o->vocab, out->tokens + at,
            &ignored, err)
            != GLM_OK
        || tokens_read(&s->file, document, piece->row + 1, n, s->o->vocab,
               out->labels + at, out->loss_mask + at, err)
            != GLM_OK)
        return err->code;
    memcpy(out->tokens + at + 1, out->labels + at, (size_t)(n - 1) * sizeof *out->tokens);
    for (int64_t r = 0; r < n; r++)
        out->positions[at + r] = (int32_t)r;
    return GLM_OK;
}

static int source_fill_pack(
    struct source *s, int64_t number, struct sample *out, struct glm_error *err)
{
    const int64_t L = s->o->length;
    struct pack_start next = s->packs.start[number];
    struct pack_piece piece;
    int64_t at = 0;
    out->sequences = 0;
    out->cu_seqlens[0] = 0;
    while (packing_next(&s->packs, number, source_length, s, &next, &piece)) {
        if (source_fill_piece(s, &piece, at, out, err) != GLM_OK)
            return err->code;
        at += piece.rows;
        out->cu_seqlens[++out->sequences] = (int32_t)at;
    }
    out->rows = at;
    if (at < L)
        out->cu_seqlens[++out->sequences] = (int32_t)L;
    for (int64_t r = at; r < L; r++) {
        out->tokens[r] = out->labels[r] = 0;
        out->loss_mask[r] = 0;
        out->positions[r] = (int32_t)(r - at);
    }
    return GLM_OK;
}

int source_fill(struct source *s, int64_t epoch, int64_t number, struct sample *out,
    struct glm_error *err)
{
    const int code = s->o->packing == PACKING_STREAM
        ? source_fill_stream(s, epoch, number, out, err)
        : source_fill_pack(s, number, out, err);
    if (code == GLM_OK && s->o->mask_after_end)
        for (int64_t r = 0; r < out->rows; r++)
            if (out->tokens[r] == s->o->end)
                out->loss_mask[r] = 0;
    return code;
}
