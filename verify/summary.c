#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "verify/inspect_private.h"

int inspect_open(struct inspect **out, const char *path, bool with_data, int threads,
    struct glm_error *err)
{
    struct inspect *in = calloc(1, sizeof *in);
    *out = NULL;
    if (in == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory");
    if (side_open(&in->side, path, !with_data, threads, err) != GLM_OK) {
        free(in);
        return err->code;
    }
    *out = in;
    return GLM_OK;
}

void inspect_close(struct inspect *in)
{
    if (in == NULL)
        return;
    side_close(&in->side);
    free(in);
}

bool inspect_is_hf(const struct inspect *in)
{
    return in->side.hf;
}

const struct manifest *inspect_manifest(const struct inspect *in)
{
    return in->side.m;
}

const struct table *inspect_table(const struct inspect *in)
{
    return in->side.table;
}

static void summary_add(struct inspect_sum *s, const struct side_row *r, int64_t elements,
    uint64_t raw, uint64_t stored)
{
    s->tensors += inspect_members(r);
    s->elements += elements;
    s->raw += raw;
    s->stored += stored;
}

static void summary_row(
    struct inspect_summary *o, const struct side *s, const struct side_row *r)
{
    const int64_t elements = r->grid.dims[0] * r->grid.dims[1] * r->grid.dims[2];
    const uint64_t raw = (uint64_t)elements * (uint64_t)glm_dtype_bits(r->dtype) / 8;
    uint64_t stored = raw;
    bool derived = false;
    if (!s->hf) {
        const struct ckpt_tensor *t = &s->m->tensors[r->tensor];
        derived = t->derived;
        stored = 0;
        for (int64_t i = 0; i < t->pieces; i++) {
            const struct ckpt_piece *p = &s->m->pieces[t->first_piece + i];
            stored += p->bytes;
            *(p->encoding == ENC_ZSTD ? &o->packed_pieces : &o->plain_pieces) += 1;
        }
    }
    const uint64_t held = derived ? 0 : raw;
    o->derived += derived;
    summary_add(&o->all, r, elements, held, stored);
    summary_add(&o->section[r->section], r, elements, held, stored);
    if (r->entry != NULL)
        summary_add(&o->kind[r->entry->kind], r, elements, held, stored);
    if (r->section != SECTION_WEIGHT)
        return;
    summary_add(&o->dtype[r->dtype], r, elements, held, stored);
    summary_add(r->is_scale ? &o->scales : &o->weights, r, elements, held, stored);
    if (r->entry != NULL && r->entry->where == WHERE_MTP && !r->is_scale)
        summary_add(&o->mtp, r, elements, held, stored);
}

int inspect_summary(
    const struct inspect *in, struct inspect_summary *out, struct glm_error *err)
{
    const struct side *s = &in->side;
    *out = (struct inspect_summary){0};
    for (int64_t i = 0; i < s->count; i++)
        summary_row(out, s, &s->rows[i]);
    if (s->hf) {
        out->shards = s->source->file_count;
        for (int64_t i = 0; i < s->source->file_count; i++)
            out->shard_bytes += s->source->files[i].header.file_size;
        return GLM_OK;
    }
    out->shards = s->m->shard_count;
    out->cells = placement_cells(s->m->placement);
    for (int64_t i = 0; i < s->m->shard_count; i++)
        out->shard_bytes += s->m->shards[i].bytes;
    struct stat st;
    if (stat(s->index->path, &st) != 0)
        return glm_fail_errno(err, "%s", s->index->path);
    out->index_bytes = (uint64_t)st.st_size;
    return GLM_OK;
}
