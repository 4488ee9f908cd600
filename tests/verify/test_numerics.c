/* glm-verify numerics: the weights that transformers ran pass, and one changed bit is found. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/convert.h"
#include "tests/support/brief.h"
#include "tests/support/reseal.h"
#include "tests/support/tiny.h"
#include "tests/support/tmpdir.h"
#include "verify/numerics.h"

#define GOLDEN "fixtures/parity/tiny-a.safetensors"

/* A folder with "ckpt" of fixtures/tiny-a-f32, sharded. */
static char *make(bool no_mtp)
{
    char *dir = tmpdir_new(), src[512], out[512];
    struct glm_error err = {0};
    struct convert_report report;
    snprintf(src, sizeof src, "%s/model", dir);
    snprintf(out, sizeof out, "%s/ckpt", dir);
    cr_assert_eq(tiny_write(src, "fixtures/tiny-a-f32", &err), 0, "%s", err.text);
    const struct import_options o = {.src = src,
        .out = out,
        .topology = {.tp = 2, .pp = 2, .ep = 4},
        .dtype = "same",
        .no_mtp = no_mtp,
        .threads = 1};
    cr_assert_eq(
        convert_import(&o, &report, &(struct glm_events){0}, &err), 0, "%s", err.text);
    return dir;
}

static enum glm_code prove(const char *dir, struct numerics_options o,
    struct numerics_report *r, struct glm_error *err)
{
    *err = (struct glm_error){0};
    o.golden = o.golden != NULL ? o.golden : GOLDEN;
    o.dtype = o.dtype != GLM_BOOL ? o.dtype : GLM_F32;
    o.threads = 2;
    numerics_run(r, tmpdir_path(dir, "ckpt"), &o, err);
    return err->code;
}

static const struct numerics_row *find(
    const struct numerics_report *r, const char *reference, enum numerics_quantity q)
{
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->rows[i].reference, reference) == 0 && r->rows[i].quantity == q)
            return &r->rows[i];
    cr_assert_fail("no row '%s' against %s", numerics_name(q), reference);
    return NULL;
}

Test(numerics, of_the_weights_that_transformers_ran_are_within_bounds)
{
    char *dir = make(false);
    struct numerics_report r;
    struct glm_error err;
    cr_assert_eq(prove(dir, (struct numerics_options){0}, &r, &err), 0, "%s", err.text);
    cr_expect_eq(r.first, -1);
    cr_expect_eq(r.count, 9 + 10);
    /* 69 tokens; 4 indexers and 5 MoE layers, one each more with the MTP layer. */
    cr_expect_eq(find(&r, "transformers", NUMERICS_INDEX)->compared, 69 * 4);
    cr_expect_eq(find(&r, "transformers", NUMERICS_EXPERT)->compared, 69 * 5);
    cr_expect_eq(find(&r, "float64", NUMERICS_INDEX)->compared, 69 * 5);
    cr_expect_eq(find(&r, "float64", NUMERICS_EXPERT)->compared, 69 * 6);
    cr_expect_eq(find(&r, "float64", NUMERICS_INDEXER_LOSS)->compared, 9);
    for (int i = 0; i < r.count; i++)
        cr_expect_leq(r.rows[i].worst, r.rows[i].bound, "%s %s", r.rows[i].reference,
            numerics_name(r.rows[i].quantity));
    /* Every tensor with a gradient but the router biases. */
    cr_expect_eq(find(&r, "float64", NUMERICS_GRADIENT)->compared, 170 - 6);
    tmpdir_remove(dir);
}

Test(numerics, in_other_types_and_forms_and_with_recorded_sets_are_within_bounds)
{
    static const struct numerics_options forms[] = {
        {.replay = true}, {.absorbed = true}, {.dtype = GLM_F64}, {.dtype = GLM_BF16}};
    static const int rows[] = {7 + 8, 9 + 10, 9 + 10, 1};
    char *dir = make(false);
    for (int i = 0; i < 4; i += brief() ? 3 : 1) {
        struct numerics_report r;
        struct glm_error err;
        cr_assert_eq(prove(dir, forms[i], &r, &err), 0, "%d: %s", i, err.text);
        cr_expect_eq(r.count, rows[i], "%d: %d rows", i, r.count);
        cr_expect_eq(r.replayed, i == 0 || i == 3);
    }
    tmpdir_remove(dir);
}

/* A change is found where it first shows, not only somewhere. */
Test(numerics, with_one_weight_changed_name_the_first_quantity)
{
    static const struct {
        const char *tensor;
        int64_t element;
        int bit;
        const char *words;
    } changes[] = {
        {"lm_head.weight", 777, 22, "logits differ from transformers first"},
        {"model.layers.0.self_attn.indexer.wq_b.weight", 5, 30,
            "index sets differ from transformers first"},
        {"model.layers.3.mlp.gate.e_score_correction_bias", 1, 30,
            "expert sets differ from transformers first"},
        {"model.layers.8.eh_proj.weight", 100, 22, "differ from float64 first"},
        {"model.layers.8.mlp.experts.down_proj.weight", 3, 22,
            "differ from float64 first"},
    };
    char *dir = make(false);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i += brief() ? 4 : 1) {
        struct numerics_report r;
        struct glm_error err = {0};
        for (int back = 0; back < 2; back++) {
            cr_assert_eq(reseal_flip(tmpdir_path(dir, "ckpt"), SECTION_WEIGHT,
                             changes[i].tensor, changes[i].element, changes[i].bit, &err),
                0, "%s", err.text);
            if (back)
                break;
            cr_expect_eq(prove(dir, (struct numerics_options){0}, &r, &err),
                GLM_EMISMATCH, "%s", changes[i].tensor);
            cr_expect(r.first >= 0 && strstr(err.text, changes[i].words),
                "%s: '%s' is not in '%s'", changes[i].tensor, changes[i].words, err.text);
            cr_expect(strstr(err.text, GOLDEN));
            glm_error_clear(&err);
        }
    }
    tmpdir_remove(dir);
}

/* ---- what is refused -------------------------------------------------------------------------- */

static void refused(const char *dir, const char *golden, bool replay, enum glm_code code,
    const char *words)
{
    struct numerics_report r;
    struct glm_error err;
    const enum glm_code came = prove(
        dir, (struct numerics_options){.golden = golden, .replay = replay}, &r, &err);
    cr_expect_eq(came, code, "%s: %d: %s", golden, came, err.text);
    cr_expect(strstr(err.text, words), "'%s' is not in '%s'", words, err.text);
}

Test(numerics, of_another_model_are_refused)
{
    char *dir = make(false);
    refused(dir, "fixtures/parity/tiny-b.safetensors", false, GLM_EUSAGE,
        "is of another model: num_experts_per_tok is 3 there and 2 in the checkpoint");
    refused(dir, "fixtures/parity/tiny-c.safetensors", false, GLM_EUSAGE,
        "is of another model: layer ");
    tmpdir_remove(dir);
}

Test(numerics, of_a_layer_that_the_checkpoint_lacks_are_refused)
{
    char *dir = make(true);
    refused(dir, GOLDEN, false, GLM_EUSAGE, "MTP layer");
    tmpdir_remove(dir);
}

/* A copy of the golden file with one number of an array replaced. */
static const char *edited(const char *dir, const char *array, int64_t at, int32_t value)
{
    struct glm_error err = {0};
    struct st_header h;
    size_t size;
    unsigned char *bytes = tmpdir_read(GOLDEN, &size);
    cr_assert_eq(st_read(&h, GOLDEN, NULL, &err), 0, "%s", err.text);
    const struct st_tensor *t = st_find(&h, array, strlen(array));
    cr_assert(t);
    memcpy(bytes + h.data_start + t->begin + 4 * at, &value, sizeof value);
    const char *path = tmpdir_path(dir, "edited.safetensors");
    tmpdir_write(path, bytes, size);
    st_clear(&h);
    free(bytes);
    return path;
}

Test(numerics, of_a_file_that_is_no_golden_file_are_refused)
{
    char *dir = make(false);
    size_t size;
    refused(dir, "fixtures/parity/none.safetensors", false, GLM_EIO, "none.safetensors");
    refused(dir, tmpdir_path(dir, "model/model.safetensors"), false, GLM_EFORMAT,
        "no golden file");
    refused(dir, "fixtures/README.md", false, GLM_EFORMAT, "README.md");
    unsigned char *bytes = tmpdir_read(GOLDEN, &size);
    const char *cut = tmpdir_path(dir, "cut.safetensors");
    tmpdir_write(cut, bytes, size - 4);
    refused(dir, cut, false, GLM_EFORMAT, "cut.safetensors");
    /* A name that is one letter off: the array is missing. */
    char *name = memmem(bytes, size, "\"expert.4\"", 10);
    cr_assert(name);
    name[1] = 'E';
    tmpdir_write(cut, bytes, size);
    free(bytes);
    refused(dir, cut, false, GLM_EFORMAT, "golden array 'expert.4'");
    refused(dir, edited(dir, "ids", 3, 320), false, GLM_EFORMAT, "token 3 of the batch");
    tmpdir_remove(dir);
}

Test(numerics, with_recorded_sets_that_are_none_are_refused_or_different)
{
    char *dir = make(false);
    const char *path = edited(dir, "index.1", 8 * 20 + 7, 1000);
    refused(dir, path, true, GLM_EFORMAT,
        "golden array 'index.1': row 20 is no ascending set");
    refused(dir, path, false, GLM_EMISMATCH,
        "index sets differ from transformers first: 1 of 276 rows (layer 1, token 20)");
    path = edited(dir, "expert.6", 2 * 11, 8);
    refused(dir, path, true, GLM_EFORMAT,
        "golden array 'expert.6': row 11 is no ascending set");
    tmpdir_remove(dir);
}

Test(numerics, that_are_not_numbers_are_beyond_any_bound)
{
    char *dir = make(false);
    float nan = NAN;
    int32_t bits;
    memcpy(&bits, &nan, sizeof bits);
    refused(dir, edited(dir, "logits", 320 * 5 + 9, bits), false, GLM_EMISMATCH,
        "logits differ from transformers first: by nan, at most 1e-05 is allowed "
        "(token 5, vocabulary entry 9)");
    tmpdir_remove(dir);
}
