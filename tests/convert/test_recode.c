/* Conversions through the engine against the codec on whole tensors. */
#include "convert/recode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "convert/target.h"
#include "tests/support/memflow.h"
#include "tests/support/models.h"
#include "tests/support/smallckpt.h"

struct side { /* a manifest and its arrays */
    struct manifest *m;
    struct memflow f;
};

static struct table *table;

static void begin(void)
{
    table = models_table("t1", false);
}
static void end(void)
{
    table_free(table);
}
TestSuite(recode, .init = begin, .fini = end, .timeout = 1800);

static void side_free(struct side *s)
{
    memflow_clear(&s->f);
    manifest_free(s->m);
}

static int64_t count_of(const struct ckpt_tensor *t)
{
    const struct rect all = rect_whole(t->grid.dims);
    return rect_count(&all);
}

static void release(struct side *s)
{
    struct glm_error err = {0};
    s->m = manifest_new(table);
    for (int64_t i = 0; i < table->count; i++) {
        const struct table_entry *e = &table->entries[i];
        manifest_add_tensor(
            s->m, e->name, SECTION_WEIGHT, e->dtype, e->shape, e->rank, e->stack, e);
    }
    manifest_index(s->m, &err);
    memflow_init(&s->f, s->m);
    for (int64_t i = 0; i < s->m->tensor_count; i++)
        smallckpt_elements(
            &s->m->tensors[i], 0, count_of(&s->m->tensors[i]), s->f.data[i]);
}

/* Converts into *to; returns the items. */
static struct flow_item *convert(
    struct side *from, struct side *to, const char *dtype, const char *rule, int threads)
{
    struct glm_error err = {0};
    struct target_form form;
    struct flow_item *items;
    struct flow_stats stats;
    target_form_parse(&form, dtype, rule, &err);
    target_manifest(&to->m, from->m, table, &form, true, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    memflow_init(&to->f, to->m);
    cr_assert_eq(
        recode_plan(from->m, to->m, form.rule, &items, &err), GLM_OK, "%s", err.text);
    const struct flow_source source = memflow_source(&from->f);
    const struct flow_sink sink = memflow_sink(&to->f, false);
    cr_assert_eq(flow_run(&source, &sink, items, threads, "convert", NULL, &stats, &err),
        GLM_OK, "%s", err.text);
    return items;
}

static size_t bytes_of(const struct ckpt_tensor *t)
{
    return (size_t)count_of(t) * glm_dtype_size(t->dtype);
}

/* Codes and scales of one member (a matrix) by the codec, in one piece; and what it lost. */
static void expect_member(const struct side *from, const struct side *to, int64_t a,
    int64_t b, int64_t member, enum codec_rule rule, struct codec_error *lost)
{
    const struct ckpt_tensor *x = &from->m->tensors[a], *y = &to->m->tensors[b];
    const struct ckpt_tensor *s = &to->m->tensors[y->scale];
    const int64_t rows = x->grid.dims[1], cols = x->grid.dims[2], n = rows * cols;
    const int64_t scales = s->grid.dims[1] * s->grid.dims[2];
    const size_t size = glm_dtype_size(s->dtype);
    const unsigned char *in =
        from->f.data[a] + (size_t)(member * n) * glm_dtype_size(x->dtype);
    uint8_t *q = malloc((size_t)n);
    unsigned char *scale = malloc((size_t)scales * size);
    float *back = malloc((size_t)n * sizeof *back);
    if (s->block[0] == 1) {
        codec_mxfp8_encode(in, x->dtype, rows, cols, rule, q, scale);
        codec_mxfp8_decode(q, scale, rows, cols, back, GLM_F32);
    } else {
        codec_fp8_encode(
            in, x->dtype, rows, cols, s->block, rule, q, (float *)(void *)scale);
        codec_fp8_decode(q, (float *)(void *)scale, rows, cols, s->block, back, GLM_F32);
    }
    cr_assert_eq(memcmp(q, to->f.data[b] + member * n, (size_t)n), 0, "%s", y->name);
    cr_assert_eq(memcmp(scale, to->f.data[y->scale] + (size_t)(member * scales) * size,
                     (size_t)scales * size),
        0, "%s", s->name);
    codec_compare(lost, in, x->dtype, back, GLM_F32, n);
    free(q);
    free(scale);
    free(back);
}

static void same_report(
    const struct codec_error *a, const struct codec_error *b, const char *name)
{
    cr_assert_eq(a->count, b->count, "%s", name);
    cr_assert_eq(a->changed, b->changed, "%s", name);
    cr_assert_eq(a->non_finite, b->non_finite, "%s", name);
    cr_assert(a->max_abs == b->max_abs && a->max_rel == b->max_rel, "%s", name);
    cr_assert_leq(fabs(a->signal - b->signal), 1e-12 * b->signal, "%s", name);
    cr_assert_leq(fabs(a->noise - b->noise), 1e-12 * b->noise, "%s", name);
}

static void quantised(const char *dtype, const char *rule_name, enum codec_rule rule)
{
    struct side from, to;
    int64_t changed = 0;
    release(&from);
    struct flow_item *items = convert(&from, &to, dtype, rule_name, 3);
    for (int64_t b = 0; b < to.m->tensor_count; b++) {
        const struct ckpt_tensor *y = &to.m->tensors[b];
        struct codec_error lost = {0};
        if (y->block[0] * y->block[1] > 1)
            continue;
        if (y->scale < 0) {
            cr_assert_eq(items[b].action, FLOW_COPY);
            cr_assert_eq(
                memcmp(to.f.data[b], from.f.data[items[b].from], bytes_of(y)), 0);
            continue;
        }
        for (int64_t e = 0; e < y->grid.dims[0]; e++)
            expect_member(&from, &to, items[b].from, b, e, rule, &lost);
        same_report(&items[b].error, &lost, y->name);
        changed += y->grid.dims[0];
    }
    cr_assert_eq(changed, 236); /* of T1's 289 tensors */
    for (int64_t b = 0; b < to.m->tensor_count; b++)
        for (int64_t k = 0; k < tile_count(&to.m->tensors[b].grid); k++)
            cr_assert_eq(to.f.done[b][k], 1, "%s", to.m->tensors[b].name);
    free(items);
    side_free(&from);
    side_free(&to);
}

Test(recode, mxfp8_is_what_the_codec_makes_of_whole_tensors)
{
    quantised("mxfp8", NULL, RULE_TE_ROUND_UP);
    quantised("mxfp8", "ocp_floor", RULE_OCP_FLOOR);
}

Test(recode, fp8_is_what_the_codec_makes_of_whole_tensors)
{
    quantised("fp8", NULL, RULE_AMAX);
    quantised("fp8", "pow2", RULE_POW2);
}

Test(recode, reports_do_not_depend_on_the_number_of_threads)
{
    struct side from, one, many;
    release(&from);
    struct flow_item *a = convert(&from, &one, "mxfp8", NULL, 1);
    struct flow_item *b = convert(&from, &many, "mxfp8", NULL, 5);
    for (int64_t i = 0; i < one.m->tensor_count; i++) {
        cr_assert_eq(memcmp(&a[i].error, &b[i].error, sizeof a[i].error), 0, "%s",
            one.m->tensors[i].name);
        cr_assert_eq(
            memcmp(one.f.data[i], many.f.data[i], bytes_of(&one.m->tensors[i])), 0);
    }
    free(a);
    free(b);
    side_free(&from);
    side_free(&one);
    side_free(&many);
}

/* From codes to values of another type, and to the other form of codes. */
static void from_codes(const char *first, const char *second, enum glm_dtype plain)
{
    struct side from, mid, to;
    release(&from);
    struct flow_item *a = convert(&from, &mid, first, NULL, 2);
    struct flow_item *b = convert(&mid, &to, second, NULL, 3);
    int64_t seen = 0;
    for (int64_t i = 0; i < to.m->tensor_count; i++) {
        const struct ckpt_tensor *y = &to.m->tensors[i];
        if (b[i].action != FLOW_RECODE || b[i].from_scale < 0)
            continue;
        const struct ckpt_tensor *s = &mid.m->tensors[b[i].from_scale];
        const int64_t rows = y->grid.dims[1], cols = y->grid.dims[2], n = rows * cols;
        const int64_t scales = s->grid.dims[1] * s->grid.dims[2];
        void *want = malloc((size_t)n * sizeof(float));
        cr_assert_eq(y->dtype, plain);
        for (int64_t e = 0; e < y->grid.dims[0]; e++) {
            const uint8_t *q = mid.f.data[b[i].from] + e * n;
            const unsigned char *scale = mid.f.data[b[i].from_scale]
                + (size_t)(e * scales) * glm_dtype_size(s->dtype);
            if (s->block[0] == 1)
                codec_mxfp8_decode(q, scale, rows, cols, want, plain);
            else
                codec_fp8_decode(q, (const float *)(const void *)scale, rows, cols,
                    s->block, want, plain);
            cr_assert_eq(
                memcmp(want, to.f.data[i] + (size_t)(e * n) * glm_dtype_size(plain),
                    (size_t)n * glm_dtype_size(plain)),
                0, "%s", y->name);
        }
        free(want);
        seen++;
    }
    cr_assert_gt(seen, 30);
    free(a);
    free(b);
    side_free(&from);
    side_free(&mid);
    side_free(&to);
}

Test(recode, codes_become_the_values_they_stand_for)
{
    from_codes("mxfp8", "bf16", GLM_BF16);
    from_codes("fp8", "bf16", GLM_BF16);
    from_codes("mxfp8", "f32", GLM_F32);
    from_codes("fp8", "f32", GLM_F32);
}

Test(recode, widening_and_back_loses_nothing)
{
    struct side from, wide, back;
    release(&from);
    struct flow_item *a = convert(&from, &wide, "f32", NULL, 2);
    struct flow_item *b = convert(&wide, &back, "bf16", NULL, 2);
    for (int64_t i = 0; i < from.m->tensor_count; i++) {
        cr_assert_eq(a[i].error.changed + b[i].error.changed, 0);
        cr_assert_eq(back.m->tensors[i].dtype, from.m->tensors[i].dtype);
        cr_assert_eq(
            memcmp(from.f.data[i], back.f.data[i], bytes_of(&from.m->tensors[i])), 0,
            "%s", from.m->tensors[i].name);
    }
    free(a);
    free(b);
    side_free(&from);
    side_free(&wide);
    side_free(&back);
}

Test(recode, what_cannot_be_converted_is_refused_by_name)
{
    struct glm_error err = {0};
    struct side from;
    struct flow_item *items;
    struct manifest *to;
    release(&from);
    from.m->tensors[0].dtype = GLM_I32;
    target_manifest(&to, from.m, table, &(struct target_form){.same = true}, true, &err);
    to->tensors[0].dtype = GLM_BF16;
    cr_assert_eq(recode_plan(from.m, to, RULE_AMAX, &items, &err), GLM_EUSAGE);
    cr_assert_null(items);
    cr_assert_not_null(strstr(err.text, from.m->tensors[0].name), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "I32"), "%s", err.text);
    manifest_free(to);
    side_free(&from);
}

/* ---- scales of every type and block ----------------------------------------------------------- */

static const struct coded {
    enum glm_dtype scale;
    int64_t block[2];
} forms[] = {
    {GLM_F32, {128, 128}},
    {GLM_F16, {128, 128}},
    {GLM_BF16, {128, 128}},
    {GLM_F8_E8M0, {128, 128}},
    {GLM_U8, {128, 128}},
    {GLM_F32, {1, 32}},
    {GLM_F32, {1, 64}},
    {GLM_F32, {1, 128}},
    {GLM_BF16, {1, 128}},
    {GLM_F8_E8M0, {1, 128}},
    {GLM_F8_E8M0, {1, 32}},
    {GLM_U8, {1, 32}},
    {GLM_BF16, {16, 48}},
    {GLM_F8_E8M0, {64, 32}},
};

/* The k-th scale of any tensor: four bits of mantissa at most, exact in every type; those that
 * hold exponents alone get a power of two. Neighbours differ, rows of blocks too. */
static double scale_value(enum glm_dtype dtype, int64_t k)
{
    const bool exponent = dtype == GLM_F8_E8M0 || dtype == GLM_U8;
    return ldexp(exponent ? 1 : 1 + (double)(k * 5 % 8) / 8, (int)(k * 7 % 11) - 8);
}

static void put_scale(enum glm_dtype dtype, int64_t k, unsigned char *out)
{
    int exponent;
    const double v = scale_value(dtype, k), half = frexp(v, &exponent);
    const float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t high = (uint16_t)(bits >> 16); /* BF16: the upper half of F32 */
    const uint16_t f16 = (uint16_t)((exponent + 14) << 10 | (int)((2 * half - 1) * 1024));
    if (dtype == GLM_F32)
        memcpy(out + 4 * k, &f, 4);
    else if (dtype == GLM_BF16)
        memcpy(out + 2 * k, &high, 2);
    else if (dtype == GLM_F16)
        memcpy(out + 2 * k, &f16, 2);
    else
        out[k] = (unsigned char)(exponent - 1 + 127);
}

/* A code by the definition of E4M3. */
static double code_value(unsigned char c)
{
    const int e = c >> 3 & 15, m = c & 7;
    const double v = e == 0 ? ldexp(m, -9) : ldexp(1 + m / 8.0, e - 7);
    if ((c & 127) == 127)
        return NAN;
    return c & 128 ? -v : v;
}

/* Every weight that the forms quantise, as codes with such scales. */
static void release_coded(struct side *s, const struct coded *form)
{
    struct glm_error err = {0};
    char name[256];
    s->m = manifest_new(table);
    for (int64_t i = 0; i < table->count; i++) {
        const struct table_entry *e = &table->entries[i];
        int64_t shape[3];
        memcpy(shape, e->shape, sizeof shape);
        manifest_add_tensor(s->m, e->name, SECTION_WEIGHT,
            e->quantised ? GLM_F8_E4M3 : e->dtype, shape, e->rank, e->stack, e);
        if (!e->quantised)
            continue;
        for (int k = 0; k < 2; k++) {
            int64_t *n = &shape[e->rank - 2 + k];
            *n = (*n + form->block[k] - 1) / form->block[k];
        }
        table_scale_name(e->name, ".weight_scale_inv", name, sizeof name);
        struct ckpt_tensor *t = manifest_add_tensor(
            s->m, name, SECTION_WEIGHT, form->scale, shape, e->rank, e->stack, e);
        memcpy(t->block, form->block, sizeof t->block);
        s->m->tensors[s->m->tensor_count - 2].scale = s->m->tensor_count - 1;
    }
    manifest_index(s->m, &err);
    memflow_init(&s->f, s->m);
    for (int64_t i = 0; i < s->m->tensor_count; i++)
        for (int64_t k = 0; k < count_of(&s->m->tensors[i]); k++) {
            if (s->m->tensors[i].dtype == GLM_F8_E4M3)
                s->f.data[i][k] = (unsigned char)(k * 37 + k / 251);
            else if (s->m->tensors[i].block[1] > 1)
                put_scale(form->scale, k, s->f.data[i]);
        }
}

/* Element (row, column) of member e of a weight of the codes: code times the scale of its block. */
static double coded_value(const struct side *s, int64_t tensor, const struct coded *form,
    int64_t e, int64_t row, int64_t col)
{
    const struct ckpt_tensor *t = &s->m->tensors[tensor];
    const int64_t rows = t->grid.dims[1], cols = t->grid.dims[2];
    const int64_t high = (rows + form->block[0] - 1) / form->block[0];
    const int64_t wide = (cols + form->block[1] - 1) / form->block[1];
    const int64_t k =
        e * high * wide + row / form->block[0] * wide + col / form->block[1];
    return code_value(s->f.data[tensor][(e * rows + row) * cols + col])
        * scale_value(form->scale, k);
}

/* In F32 and BF16: four bits of code times four of scale fit both. */
static double plain_value(const unsigned char *data, enum glm_dtype dtype, int64_t k)
{
    float f;
    uint32_t bits = 0;
    memcpy((char *)&bits + (dtype == GLM_BF16 ? 2 : 0),
        data + (size_t)k * glm_dtype_size(dtype), glm_dtype_size(dtype));
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void decoded(const struct coded *form, const char *dtype)
{
    struct side from, to;
    int64_t seen = 0;
    release_coded(&from, form);
    struct flow_item *items = convert(&from, &to, dtype, NULL, 3);
    for (int64_t i = 0; i < to.m->tensor_count; i++) {
        const struct ckpt_tensor *t = &to.m->tensors[i];
        if (items[i].from_scale < 0)
            continue;
        for (int64_t k = 0; k < count_of(t); k++) {
            const int64_t cols = t->grid.dims[2], row = k / cols;
            const double got = plain_value(to.f.data[i], t->dtype, k);
            const double want = coded_value(&from, items[i].from, form,
                row / t->grid.dims[1], row % t->grid.dims[1], k % cols);
            if (!(got == want || (isnan(got) && isnan(want))))
                cr_assert_fail(
                    "%s scales of %dx%d to %s: element %lld of %s is %g, not %g",
                    glm_dtype_name(form->scale), (int)form->block[0], (int)form->block[1],
                    dtype, (long long)k, t->name, got, want);
        }
        cr_assert_eq(items[i].error.changed, 0, "%s", t->name);
        seen++;
    }
    cr_assert_gt(seen, 30);
    free(items);
    side_free(&from);
    side_free(&to);
}

Test(recode, scales_of_every_type_and_block_give_code_times_scale)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        decoded(&forms[i], "f32");
        decoded(&forms[i], "bf16");
    }
}

/* Blocks of 1 x 32 are MXFP8 only if their scales are exponents. */
Test(recode, rows_of_blocks_with_f32_scales_are_not_taken_for_mxfp8)
{
    const struct coded rows = {GLM_F32, {1, 32}}, mx = {GLM_U8, {1, 32}};
    struct side from, to;
    release_coded(&from, &rows);
    struct flow_item *items = convert(&from, &to, "mxfp8", NULL, 2);
    for (int64_t i = 0; i < to.m->tensor_count; i++)
        if (to.m->tensors[i].scale >= 0) {
            cr_assert_eq(items[i].action, FLOW_RECODE);
            cr_assert_eq(to.m->tensors[to.m->tensors[i].scale].dtype, GLM_F8_E8M0);
        }
    free(items);
    side_free(&from);
    side_free(&to);
    release_coded(&from, &mx);
    items = convert(&from, &to, "mxfp8", NULL, 2);
    for (int64_t i = 0; i < to.m->tensor_count; i++)
        cr_assert_eq(items[i].action, FLOW_COPY, "%s", to.m->tensors[i].name);
    free(items);
    side_free(&from);
    side_free(&to);
}

Test(recode, scales_of_a_type_that_is_none_are_refused_by_name)
{
    const struct coded odd = {GLM_I32, {128, 128}};
    struct glm_error err = {0};
    struct target_form form;
    struct flow_item *items;
    struct side from;
    struct manifest *to;
    release_coded(&from, &odd);
    target_form_parse(&form, "f32", NULL, &err);
    target_manifest(&to, from.m, table, &form, true, &err);
    cr_assert_eq(recode_plan(from.m, to, form.rule, &items, &err), GLM_EUSAGE);
    cr_assert_not_null(
        strstr(err.text, "weight_scale_inv': scales of type I32"), "%s", err.text);
    manifest_free(to);
    side_free(&from);
}
