/* Type changes, strip by strip; scales collected per member and put by its last job.
 *
 * A strip is 128 rows over the whole width: whole scale blocks of every form, and small enough that
 * the wide (F32) copies stay in bounds when a tile band is not. */
#include "convert/recode.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STRIP = 128 };

struct recode_member {
    pthread_mutex_t lock;
    int64_t expected;                     /* jobs still to end */
    unsigned char *old_scale, *new_scale; /* of the whole member; new_scale: being made */
};

int recode_members_new(struct recode_member **out, int64_t count, struct glm_error *err)
{
    *out = calloc((size_t)count + 1, sizeof **out);
    if (*out == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " matrices", count);
    for (int64_t i = 0; i < count; i++)
        pthread_mutex_init(&(*out)[i].lock, NULL);
    return GLM_OK;
}

void recode_members_free(struct recode_member *members, int64_t count)
{
    for (int64_t i = 0; members != NULL && i < count; i++) {
        free(members[i].old_scale);
        free(members[i].new_scale);
        pthread_mutex_destroy(&members[i].lock);
    }
    free(members);
}

struct recode_member *recode_member_at(struct recode_member *members, int64_t i)
{
    return &members[i];
}

void recode_member_expect(struct recode_member *member)
{
    member->expected++;
}

/* ---- one strip -------------------------------------------------------------------------------- */

struct form { /* how elements are stored on one side */
    enum glm_dtype dtype;
    bool scaled, mx;
    int64_t block[2];     /* scaled: elements per scale */
    unsigned char *scale; /* of the whole member, as held_size says */
    int64_t scale_cols;
    size_t scale_size; /* of one scale as it is held */
};

/* Scales are held as the codecs take them: E8M0 codes in the MXFP8 form, F32 in every other,
 * whatever their type in the file. */
static size_t held_size(const struct ckpt_tensor *scale)
{
    return codec_is_mx(scale->dtype, scale->block) ? 1 : sizeof(float);
}

static struct form form_of(const struct manifest *m, int64_t tensor, int64_t scale)
{
    struct form f = {.dtype = m->tensors[tensor].dtype, .scaled = scale >= 0};

    if (f.scaled) {
        const struct ckpt_tensor *s = &m->tensors[scale];
        f.block[0] = s->block[0];
        f.block[1] = s->block[1];
        f.scale_cols = s->grid.dims[2];
        f.mx = codec_is_mx(s->dtype, s->block);
        f.scale_size = held_size(s);
    }
    return f;
}

static unsigned char *scale_at(const struct form *f, int64_t row)
{
    return f->scale + (size_t)(row / f->block[0] * f->scale_cols) * f->scale_size;
}

/* Stored elements -> F32 (or any of the plain types that the codec writes). */
static void decode(const struct form *f, const unsigned char *from, int64_t row,
    int64_t rows, int64_t cols, void *to, enum glm_dtype type)
{
    if (!f->scaled)
        codec_cast(from, f->dtype, to, type, rows * cols);
    else if (f->mx)
        codec_mxfp8_decode(from, scale_at(f, row), rows, cols, to, type);
    else
        codec_fp8_decode(from, (const float *)(const void *)scale_at(f, row), rows, cols,
            f->block, to, type);
}

static void encode(const struct form *f, const void *from, enum glm_dtype type,
    int64_t row, int64_t rows, int64_t cols, enum codec_rule rule, unsigned char *to)
{
    if (f->mx)
        codec_mxfp8_encode(from, type, rows, cols, rule, to, scale_at(f, row));
    else
        codec_fp8_encode(from, type, rows, cols, f->block, rule, to,
            (float *)(void *)scale_at(f, row));
}

/* One strip from `a` to `b`, and what it lost. wide, back: rows*cols floats. */
static void change(const struct form *a, const unsigned char *from, const struct form *b,
    unsigned char *to, int64_t row, int64_t rows, int64_t cols, enum codec_rule rule,
    float *wide, float *back, struct codec_error *error)
{
    const void *x = from;
    enum glm_dtype xt = a->dtype;
    const bool direct = !a->scaled && (a->dtype == GLM_BF16 || a->dtype == GLM_F32);
    struct codec_error part = {0};

    if (!direct) {
        decode(a, from, row, rows, cols, wide, GLM_F32);
        x = wide;
        xt = GLM_F32;
    }
    if (b->scaled) {
        encode(b, x, xt, row, rows, cols, rule, to);
        decode(b, to, row, rows, cols, back, GLM_F32);
        codec_compare(&part, x, xt, back, GLM_F32, rows * cols);
    } else {
        decode(a, from, row, rows, cols, to, b->dtype);
        codec_compare(&part, x, xt, to, b->dtype, rows * cols);
    }
    codec_error_add(error, &part);
}

/* ---- one job ---------------------------------------------------------------------------------- */

static struct rect member_rect(const struct manifest *m, int64_t tensor, int64_t member)
{
    struct rect r = rect_whole(m->tensors[tensor].grid.dims);
    r.lo[0] = member;
    r.hi[0] = member + 1;
    return r;
}

/* The source's scales of this member, read once, as held_size says. Under the member's lock. */
static int load_scale(const struct flow_source *source, int64_t tensor, int64_t e,
    struct recode_member *member, struct flow_thread *t, struct glm_error *err)
{
    const struct rect all = member_rect(source->m, tensor, e);
    const struct ckpt_tensor *s = &source->m->tensors[tensor];
    const int64_t n = rect_count(&all);
    const size_t size = (size_t)n * glm_dtype_size(s->dtype);
    const struct rect tiles = tile_cover(&s->grid, &all);
    unsigned char *data, *digests = malloc((size_t)rect_count(&tiles) * DIGEST_SIZE);
    bool known;

    member->old_scale = malloc((size_t)n * held_size(s));
    if (digests == NULL || member->old_scale == NULL)
        glm_fail(err, GLM_ENOMEM, "no memory for scales");
    else if (dio_reserve(&t->aux, size + 2 * DIO_ALIGN, err) == GLM_OK
        && source->read(
               source->ctx, tensor, &all, &t->aux, &data, digests, &known, t, err)
            == GLM_OK) {
        if (codec_is_mx(s->dtype, s->block))
            memcpy(member->old_scale, data, size);
        else
            codec_scale_widen(data, s->dtype, (float *)(void *)member->old_scale, n);
    }
    free(digests);
    return (int)err->code;
}

static int ready_scales(const struct flow_source *source, const struct flow_sink *sink,
    const struct flow_item *item, int64_t tensor, int64_t e, struct recode_member *member,
    struct flow_thread *t, struct glm_error *err)
{
    const int64_t scale = sink->m->tensors[tensor].scale;

    pthread_mutex_lock(&member->lock);
    if (item->from_scale >= 0 && member->old_scale == NULL)
        load_scale(source, item->from_scale, e, member, t, err);
    if (err->code == GLM_OK && scale >= 0 && member->new_scale == NULL) {
        const struct ckpt_tensor *s = &sink->m->tensors[scale];
        const struct rect all = member_rect(sink->m, scale, e);
        assert(held_size(s) == glm_dtype_size(s->dtype)); /* put as it is held */
        member->new_scale = calloc((size_t)rect_count(&all), held_size(s));
        if (member->new_scale == NULL)
            glm_fail(err, GLM_ENOMEM, "no memory for scales");
    }
    pthread_mutex_unlock(&member->lock);
    return (int)err->code;
}

/* Ends one job of a member; the last one puts the scales and lets the buffers go. */
static int end_job(const struct flow_sink *sink, int64_t tensor, int64_t e,
    struct recode_member *member, struct flow_thread *t, struct glm_error *err)
{
    const int64_t scale = sink->m->tensors[tensor].scale;

    pthread_mutex_lock(&member->lock);
    const bool last = --member->expected == 0;
    pthread_mutex_unlock(&member->lock);
    if (!last)
        return GLM_OK;
    if (scale >= 0) {
        const struct rect all = member_rect(sink->m, scale, e);
        sink->put(sink->ctx, scale, &all, member->new_scale, NULL, t, err);
    }
    free(member->old_scale);
    free(member->new_scale);
    member->old_scale = member->new_scale = NULL;
    return (int)err->code;
}

int recode_job(const struct flow_source *source, const struct flow_sink *sink,
    const struct flow_item *item, int64_t tensor, const struct rect *at,
    struct recode_member *member, struct codec_error *error, struct flow_thread *t,
    struct glm_error *err)
{
    struct form a = form_of(source->m, item->from, item->from_scale);
    struct form b = form_of(sink->m, tensor, sink->m->tensors[tensor].scale);
    const int64_t cols = rect_len(at, 2), rows = rect_len(at, 1), count = rows * cols;
    const size_t ea = glm_dtype_size(a.dtype), eb = glm_dtype_size(b.dtype);
    const struct rect tiles = tile_cover(&source->m->tensors[item->from].grid, at);
    const size_t strip = (size_t)(STRIP * cols) * sizeof(float);
    unsigned char *data, *digests = malloc((size_t)rect_count(&tiles) * DIGEST_SIZE);
    bool known;

    if (digests == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for tile digests");
    if (ready_scales(source, sink, item, tensor, at->lo[0], member, t, err) != GLM_OK
        || dio_reserve(&t->in, (size_t)count * ea + 2 * DIO_ALIGN, err) != GLM_OK
        || dio_reserve(&t->out, (size_t)count * eb, err) != GLM_OK
        || dio_reserve(&t->wide, strip, err) != GLM_OK
        || dio_reserve(&t->back, strip, err) != GLM_OK
        || source->read(
               source->ctx, item->from, at, &t->in, &data, digests, &known, t, err)
            != GLM_OK)
        goto out;
    a.scale = member->old_scale;
    b.scale = member->new_scale;
    for (int64_t r = 0; r < rows; r += STRIP) {
        const int64_t n = rows - r < STRIP ? rows - r : STRIP;
        change(&a, data + (size_t)(r * cols) * ea, &b,
            t->out.data + (size_t)(r * cols) * eb, at->lo[1] + r, n, cols, item->rule,
            (float *)(void *)t->wide.data, (float *)(void *)t->back.data, error);
    }
    if (sink->put(sink->ctx, tensor, at, t->out.data, NULL, t, err) == GLM_OK)
        end_job(sink, tensor, at->lo[0], member, t, err);
out:
    free(digests);
    return (int)err->code;
}

/* ---- the plan --------------------------------------------------------------------------------- */

static bool same_form(const struct manifest *a, const struct ckpt_tensor *x,
    const struct manifest *b, const struct ckpt_tensor *y)
{
    if (x->dtype != y->dtype || (x->scale < 0) != (y->scale < 0))
        return false;
    if (x->scale < 0)
        return true;
    const struct ckpt_tensor *p = &a->tensors[x->scale], *q = &b->tensors[y->scale];
    return p->dtype == q->dtype && p->block[0] == q->block[0]
        && p->block[1] == q->block[1];
}

static bool castable(enum glm_dtype d)
{
    return d == GLM_BF16 || d == GLM_F16 || d == GLM_F32;
}

static int check_change(
    const struct manifest *m, const struct ckpt_tensor *t, struct glm_error *err)
{
    if (t->scale >= 0) {
        const struct ckpt_tensor *s = &m->tensors[t->scale];
        if (!codec_is_scale(s->dtype))
            return glm_fail(err, GLM_EUSAGE,
                "'%s': scales of type %s cannot be converted; scales must be "
                "F32, F16, BF16, F8_E8M0 or U8",
                s->name, glm_dtype_name(s->dtype));
        if (t->dtype == GLM_F8_E4M3 && STRIP % s->block[0] == 0)
            return GLM_OK;
        return glm_fail(err, GLM_EUSAGE,
            "'%s': %s with blocks of %" PRId64 "x%" PRId64
            " cannot be converted; blocks must be "
            "E4M3 and their rows divide %d",
            t->name, glm_dtype_name(t->dtype), s->block[0], s->block[1], STRIP);
    }
    if (castable(t->dtype))
        return GLM_OK;
    return glm_fail(err, GLM_EUSAGE, "'%s': %s cannot be converted", t->name,
        glm_dtype_name(t->dtype));
}

int recode_plan(const struct manifest *source, const struct manifest *sink,
    enum codec_rule rule, struct flow_item **items, struct glm_error *err)
{
    struct flow_item *out = calloc((size_t)sink->tensor_count + 1, sizeof *out);

    *items = NULL;
    if (out == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    for (int64_t i = 0; i < sink->tensor_count; i++)
        out[i] = (struct flow_item){FLOW_COPY, -1, -1, rule, {0}};
    for (int64_t i = 0; i < sink->tensor_count; i++) {
        const struct ckpt_tensor *t = &sink->tensors[i];
        if (out[i].action == FLOW_SCALE)
            continue;
        const int64_t from = manifest_find(source, t->section, t->name);
        if (from < 0) {
            glm_fail(err, GLM_EFORMAT, "'%s' (%s) is not in the source", t->name,
                section_name(t->section));
            break;
        }
        out[i].from = from;
        if (t->block[0] * t->block[1] > 1
            || same_form(source, &source->tensors[from], sink, t))
            continue;
        out[i].action = FLOW_RECODE;
        out[i].from_scale = source->tensors[from].scale;
        if (t->scale >= 0)
            out[t->scale].action = FLOW_SCALE;
        if (check_change(source, &source->tensors[from], err) != GLM_OK
            || check_change(sink, t, err) != GLM_OK)
            break;
    }
    if (err->code != GLM_OK)
        free(out);
    else
        *items = out;
    return (int)err->code;
}
