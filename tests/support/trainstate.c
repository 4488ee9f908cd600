/* A flow whose source is arithmetic: the commands' own engine and writer store what it gives. */
#include "tests/support/trainstate.h"

#include <stdio.h>
#include <string.h>

#include "convert/build.h"
#include "tests/support/rng.h"

/* ---- elements --------------------------------------------------------------------------------- */

static uint64_t seed_of(const struct ckpt_tensor *t)
{
    return rng_text(rng_text(rng_text(RNG_TEXT, section_name(t->section)), "/"), t->name);
}

static uint64_t bits_of(const struct ckpt_tensor *t, uint64_t x)
{
    switch (t->dtype) {
    case GLM_F32:
        return t->section == SECTION_V ? (x & 0x007FFFFF) | 0x38000000
            : t->section == SECTION_M  ? (x & 0x807FFFFF) | 0x3C000000
                                       : (x & 0x807FFFFF) | 0x3D000000;
    case GLM_F8_E4M3:
        return (x & 0x8F) | 0x30;
    case GLM_F64:
        return (x & 0x800FFFFFFFFFFFFFu) | 0x3FE0000000000000u;
    case GLM_U8:
        return x & 0xFF;
    default:
        return x >> 8;
    }
}

/* The F32 bits of a master that rounds to these of a weight. */
static uint32_t master_bits(uint32_t weight, uint64_t x)
{
    const uint32_t step = (uint32_t)(x & 0x7FFF);
    return (x & 0x8000) != 0 && (weight & 0x7FFFFFFF) != 0 ? weight - step
                                                           : weight + step;
}

struct place { /* walks a rectangle's elements by their flat index */
    const struct ckpt_tensor *t;
    const struct rect *at;
};

static int64_t flat(const struct place *p, int64_t i)
{
    const int64_t cols = rect_len(p->at, 2), rows = rect_len(p->at, 1);
    const int64_t e = p->at->lo[0] + i / (rows * cols);
    const int64_t r = p->at->lo[1] + i / cols % rows, c = p->at->lo[2] + i % cols;
    return (e * p->t->grid.dims[1] + r) * p->t->grid.dims[2] + c;
}

static void fill(const struct ckpt_tensor *t, const struct rect *at, unsigned char *out)
{
    const struct place p = {t, at};
    const uint64_t seed = seed_of(t);
    const size_t size = glm_dtype_size(t->dtype);
    const int64_t n = rect_count(at);

    for (int64_t i = 0; i < n; i++) {
        const uint64_t bits = bits_of(t, rng_mix(seed + (uint64_t)flat(&p, i)));
        memcpy(out + (size_t)i * size, &bits, size);
    }
}

static void fill_master(const struct ckpt_tensor *t, const struct rect *at,
    const unsigned char *weight, enum glm_dtype dtype, unsigned char *out)
{
    const struct place p = {t, at};
    const uint64_t seed = seed_of(t);
    const int64_t n = rect_count(at);

    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t bits;
        if (dtype == GLM_BF16) {
            memcpy(&half, weight + 2 * i, sizeof half);
            bits =
                master_bits((uint32_t)half << 16, rng_mix(seed + (uint64_t)flat(&p, i)));
        } else {
            memcpy(&bits, weight + 4 * i, sizeof bits);
        }
        memcpy(out + 4 * i, &bits, sizeof bits);
    }
}

/* ---- the source ------------------------------------------------------------------------------- */

struct made {
    struct reader *reader;
    const struct manifest *m; /* what this source gives */
};

static int read_made(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *thread, struct glm_error *err)
{
    const struct made *g = ctx;
    const struct ckpt_tensor *t = &g->m->tensors[tensor];
    const struct manifest *have = reader_manifest(g->reader);
    const int64_t weight = manifest_find(have, SECTION_WEIGHT, t->name);

    (void)digests;
    *known = false;
    *data = buf->data;
    if (t->section == SECTION_WEIGHT)
        return reader_read(g->reader, weight, at, true, buf->data, buf->size, data, NULL,
            thread->reader, err);
    if (t->section != SECTION_MASTER) {
        fill(t, at, buf->data);
        return GLM_OK;
    }
    unsigned char *from;
    const enum glm_dtype dtype = have->tensors[weight].dtype;
    const size_t size = (size_t)rect_count(at) * glm_dtype_size(dtype) + 2 * DIO_ALIGN;
    if (dio_reserve(&thread->aux, size, err) == GLM_OK
        && reader_read(g->reader, weight, at, true, thread->aux.data, thread->aux.size,
               &from, NULL, thread->reader, err)
            == GLM_OK)
        fill_master(t, at, from, dtype, buf->data);
    return (int)err->code;
}

/* ---- the plan --------------------------------------------------------------------------------- */

static int add(struct manifest *m, const char *name, enum ckpt_section s,
    enum glm_dtype dtype, const struct table_entry *e, struct glm_error *err)
{
    if (manifest_add_tensor(m, name, s, dtype, e->shape, e->rank, e->stack, e) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    return GLM_OK;
}

/* Codes of m: E4M3, one scale per 200 x 48 elements. Codes of v: U8, one per 1 x 24. */
static int add_coded(struct manifest *m, enum ckpt_section s, const struct table_entry *e,
    struct glm_error *err)
{
    const int64_t block[2] = {s == SECTION_M ? 200 : 1, s == SECTION_M ? 48 : 24};
    int64_t shape[3];
    char name[512];

    if (add(m, e->name, s, s == SECTION_M ? GLM_F8_E4M3 : GLM_U8, e, err) != GLM_OK)
        return (int)err->code;
    memcpy(shape, e->shape, sizeof shape);
    for (int i = 0; i < 2; i++) {
        int64_t *n = &shape[e->rank - 2 + i];
        *n = (*n + block[i] - 1) / block[i];
    }
    table_scale_name(e->name, ".weight_scale", name, sizeof name);
    struct ckpt_tensor *t =
        manifest_add_tensor(m, name, s, GLM_F32, shape, e->rank, e->stack, e);
    if (t == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    memcpy(t->block, block, sizeof block);
    m->tensors[m->tensor_count - 2].scale = m->tensor_count - 1;
    return GLM_OK;
}

static int add_section(
    struct manifest *m, enum ckpt_section s, bool codes, struct glm_error *err)
{
    for (int64_t i = 0; err->code == GLM_OK && i < m->table->count; i++) {
        const struct table_entry *e = &m->table->entries[i];
        const bool muon = e->optimizer == OPT_MUON || e->optimizer == OPT_MUON_HEADS;
        const bool adam = e->optimizer == OPT_ADAMW;
        if (codes
            && ((s == SECTION_M && e->quantised)
                || (s == SECTION_V && adam && e->rank > 1)))
            add_coded(m, s, e, err);
        else if (s == SECTION_MASTER || (s == SECTION_MOMENTUM ? muon : adam))
            add(m, e->name, s, GLM_F32, e, err);
    }
    return (int)err->code;
}

static int add_train(struct manifest *m, struct glm_error *err)
{
    static const struct {
        const char *name;
        enum glm_dtype dtype;
        int rank;
        int64_t shape[3];
    } rows[] = {{"data_position", GLM_I64, 1, {4}}, {"loss_scale", GLM_F64, 0, {0}},
        {"samples", GLM_I64, 0, {0}}, {"schedule", GLM_F64, 1, {3}},
        {"seed", GLM_U64, 0, {0}}, {"stage", GLM_U8, 1, {5}}, {"step", GLM_I64, 0, {0}}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (manifest_add_tensor(m, rows[i].name, SECTION_TRAIN, rows[i].dtype,
                rows[i].shape, rows[i].rank, false, NULL)
            == NULL)
            return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    return GLM_OK;
}

static int make_manifest(struct manifest **out, const struct manifest *from,
    const struct build *b, const struct trainstate_options *o, struct glm_error *err)
{
    const struct target_form same = {.same = true};

    if (target_manifest(out, from, b->table, &same, true, err) != GLM_OK)
        return (int)err->code;
    struct manifest *m = *out;
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const enum glm_dtype d = m->tensors[i].dtype;
        if (d != GLM_BF16 && d != GLM_F32)
            return glm_fail(err, GLM_EUSAGE,
                "'%s' is %s: masters are made of BF16 and F32", m->tensors[i].name,
                glm_dtype_name(d));
        m->tensors[i].derived = o->derived && d == GLM_BF16;
    }
    if (add_section(m, SECTION_MASTER, false, err) != GLM_OK
        || add_section(m, SECTION_M, o->codes, err) != GLM_OK
        || add_section(m, SECTION_V, o->codes, err) != GLM_OK
        || add_section(m, SECTION_MOMENTUM, false, err) != GLM_OK
        || add_train(m, err) != GLM_OK)
        return (int)err->code;
    return manifest_index(m, err);
}

int trainstate_write(const struct trainstate_options *o, struct glm_error *err)
{
    struct made g = {0};
    struct build b = {0};
    struct convert_report report = {0};
    struct manifest *m = NULL;

    if (reader_open(&g.reader, o->ckpt, err) != GLM_OK)
        return (int)err->code;
    const struct manifest *from = reader_manifest(g.reader);
    if (build_config(&b, g.reader, err) != GLM_OK
        || build_begin(&b, "trainstate", err) != GLM_OK
        || build_table(&b, o->ckpt, from->without_mtp, err) != GLM_OK
        || make_manifest(&b.m, from, &b, o, err) != GLM_OK
        || make_manifest(&m, from, &b, o, err) != GLM_OK
        || build_inherit(&b, g.reader, true, err) != GLM_OK
        || build_place(&b,
               o->topology != NULL ? o->topology : placement_topology(from->placement),
               o->zstd ? ENC_ZSTD : ENC_PLAIN, o->shard_size, err)
            != GLM_OK)
        goto out;
    g.m = m;
    const struct flow_source source = {.m = m, .ctx = &g, .read = read_made};
    const struct build_run run = {.out = o->out, .verb = "make", .threads = o->threads};
    build_run(&b, &source, &run, &report, NULL, NULL, err);
out:
    if (m != NULL)
        manifest_free(m);
    build_clear(&b);
    reader_close(g.reader);
    return (int)err->code;
}
