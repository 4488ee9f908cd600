/* Our HDF5 token dataset, read without libhdf5: the user block says where everything lies. */
#include "train/tokens_inside.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "train/tokens_block.h"

enum { H5_PIECE = 1 << 20 };

static int h5_block(const struct tokens *t, struct tokens_block *b,
    unsigned char raw[TOKENS_BLOCK], struct glm_error *err)
{
    if (t->file.size < TOKENS_BLOCK)
        return glm_fail(err, GLM_EFORMAT,
            "%s: not a token dataset: %" PRIu64 " bytes are less than its user block",
            t->file.path, t->file.size);
    if (dio_pread(&t->file, 0, TOKENS_BLOCK, raw, err) != GLM_OK)
        return err->code;
    return tokens_block_parse(b, t->file.path, raw, t->file.size, err);
}

static int h5_documents(
    struct tokens *t, const struct tokens_block *b, struct glm_error *err)
{
    const struct tokens_extent *const e = &b->part[TOKENS_DOCUMENTS];
    const uint64_t bytes = tokens_part_bytes(b, TOKENS_DOCUMENTS);
    unsigned char found[DIGEST_SIZE];
    t->documents = (int64_t)e->count;
    t->start = malloc(bytes);
    if (t->start == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for %lld documents", t->file.path,
            (long long)t->documents);
    if (dio_pread(&t->file, e->offset, bytes, t->start, err) != GLM_OK)
        return err->code;
    digest_of(t->start, bytes, found);
    if (memcmp(found, e->sha256, DIGEST_SIZE) != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: /documents (%" PRIu64 " bytes at byte %" PRIu64
            ") is damaged: its digest is not the recorded one",
            t->file.path, bytes, e->offset);
    for (int64_t d = 0; d < t->documents; d++)
        if (t->start[d + 1] < t->start[d])
            return glm_fail(err, GLM_EFORMAT,
                "%s: document %lld begins at token %lld and ends at token %lld",
                t->file.path, (long long)d, (long long)t->start[d],
                (long long)t->start[d + 1]);
    if (t->start[0] != 0 || t->start[t->documents] != (int64_t)b->part[TOKENS_IDS].count)
        return glm_fail(err, GLM_EFORMAT,
            "%s: its documents cover tokens %lld to %lld, there are %" PRIu64,
            t->file.path, (long long)t->start[0], (long long)t->start[t->documents],
            b->part[TOKENS_IDS].count);
    return GLM_OK;
}

int tokens_glm_open(struct tokens *t, const char *path, struct glm_error *err)
{
    unsigned char raw[TOKENS_BLOCK];
    struct tokens_block b;
    if (dio_open_read(&t->file, path, err) != GLM_OK
        || h5_block(t, &b, raw, err) != GLM_OK)
        return err->code;
    t->format = TOKENS_GLM;
    t->dtype = b.dtype;
    t->base = b.part[TOKENS_IDS].offset;
    t->mask_base = b.part[TOKENS_MASK].offset;
    t->largest = b.largest <= INT32_MAX ? (int64_t)b.largest : -1;
    digest_of(raw, sizeof raw, t->fingerprint);
    return h5_documents(t, &b, err);
}

/* ---- digests -------------------------------------------------------------------------------- */

static int h5_feed(const struct tokens *t, struct digest *sum, uint64_t from, uint64_t to,
    unsigned char *buffer, const struct glm_events *events, struct glm_error *err)
{
    while (from < to) {
        const size_t n = to - from < H5_PIECE ? (size_t)(to - from) : H5_PIECE;
        if (glm_events_stop(events) != 0) {
            glm_fail(err, GLM_ESTOPPED, "stopped while checking %s", t->file.path);
            err->sys_errno = glm_events_stop(events);
            return err->code;
        }
        if (dio_pread(&t->file, from, n, buffer, err) != GLM_OK)
            return err->code;
        digest_update(sum, buffer, n);
        from += n;
    }
    return GLM_OK;
}

static int h5_compare(const struct tokens *t, struct digest *sum, const char *what,
    const unsigned char *wanted, struct glm_error *err)
{
    unsigned char found[DIGEST_SIZE];
    digest_end(sum, found);
    if (memcmp(found, wanted, DIGEST_SIZE) != 0)
        return glm_fail(err, GLM_EMISMATCH, "%s: %s: its digest is not the recorded one",
            t->file.path, what);
    return GLM_OK;
}

/* The parts by place in the file, then what lies between them. */
static int h5_check_all(const struct tokens *t, const struct tokens_block *b,
    struct digest *sum, unsigned char *buffer, const struct glm_events *events,
    struct glm_error *err)
{
    int order[TOKENS_PARTS] = {0}, parts = 0;
    for (int i = 0; i < TOKENS_PARTS; i++) {
        int at = parts;
        if (b->part[i].offset == 0)
            continue;
        for (; at > 0 && b->part[order[at - 1]].offset > b->part[i].offset; at--)
            order[at] = order[at - 1];
        order[at] = i;
        parts++;
        digest_begin(sum);
        const uint64_t from = b->part[i].offset;
        if (h5_feed(t, sum, from, from + tokens_part_bytes(b, (enum tokens_part)i),
                buffer, events, err)
                != GLM_OK
            || h5_compare(t, sum, tokens_part_name[i], b->part[i].sha256, err) != GLM_OK)
            return err->code;
    }
    uint64_t at = TOKENS_BLOCK;
    digest_begin(sum);
    for (int i = 0; i < parts; i++) {
        const struct tokens_extent *const e = &b->part[order[i]];
        if (h5_feed(t, sum, at, e->offset, buffer, events, err) != GLM_OK)
            return err->code;
        at = e->offset + tokens_part_bytes(b, (enum tokens_part)order[i]);
    }
    if (h5_feed(t, sum, at, b->size, buffer, events, err) != GLM_OK)
        return err->code;
    return h5_compare(t, sum, "the HDF5 structure", b->rest, err);
}

int tokens_glm_check(
    const struct tokens *t, const struct glm_events *events, struct glm_error *err)
{
    unsigned char raw[TOKENS_BLOCK];
    struct tokens_block b;
    struct digest *const sum = digest_new();
    unsigned char *const buffer = malloc(H5_PIECE);
    if (sum == NULL || buffer == NULL)
        glm_fail(err, GLM_ENOMEM, "%s: no memory to check it", t->file.path);
    else if (h5_block(t, &b, raw, err) == GLM_OK)
        h5_check_all(t, &b, sum, buffer, events, err);
    digest_free(sum);
    free(buffer);
    return err->code;
}
