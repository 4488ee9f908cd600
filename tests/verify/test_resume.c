/* glm-verify resume: it passes when it should, and finds one changed bit wherever it is. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/reseal.h"
#include "tests/support/tmpdir.h"
#include "tests/support/trainrun.h"
#include "verify/resume.h"

struct mutant {
    enum ckpt_section section;
    const char *tensor;
    int64_t element;
    int bit;
    bool done;
};

static int mutate(void *ctx, const char *ckpt, struct glm_error *err)
{
    struct mutant *m = ctx;
    m->done = true;
    return reseal_flip(ckpt, m->section, m->tensor, m->element, m->bit, err);
}

static enum glm_code prove(
    const char *args, struct mutant *m, struct resume_report *r, char *text, size_t size)
{
    char *dir = trainrun_new(args, ""), path[1024], work[1024];
    struct glm_error err = {0};
    snprintf(path, sizeof path, "%s/recipe.yaml", dir);
    snprintf(work, sizeof work, "%s/work", dir);
    const struct resume_options o = {.recipe = path,
        .n = 4,
        .m = 3,
        .dir = work,
        .threads = 1,
        .between = m != NULL ? mutate : NULL,
        .between_ctx = m};
    resume_run(r, &o, &err);
    snprintf(text, size, "%s", err.text);
    tmpdir_remove(dir);
    return err.code;
}

Test(resume, of_an_untouched_checkpoint_gives_the_same_bits)
{
    static const char *const args[] = {
        "  optimizer: muon\n", "  bf16: true\n  micro_batch_size: 1\n"};
    for (int i = 0; i < 2; i++) {
        struct resume_report r;
        char text[1024];
        cr_assert_eq(prove(args[i], NULL, &r, text, sizeof text), GLM_OK, "%s", text);
        cr_assert_eq(r.counts.records, 4); /* as loaded, and three steps */
        cr_assert(r.counts.tiles >= r.counts.tensors && r.counts.tensors > 100);
        cr_assert(!r.difference.found);
    }
}

Test(resume, at_another_topology_gives_the_same_bits)
{
    char *dir = trainrun_new("  bf16: true\n  optimizer: muon\n", ""), path[1024];
    struct glm_error err = {0};
    struct resume_report r;
    const struct topology then = {.tp = 2, .pp = 2, .ep = 2};
    snprintf(path, sizeof path, "%s/recipe.yaml", dir);
    const struct resume_options o = {
        .recipe = path, .n = 3, .m = 2, .then = &then, .threads = 1};
    cr_assert_eq(resume_run(&r, &o, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(r.counts.records, 3);
    tmpdir_remove(dir);
}

static void finds(struct mutant m, const char *words, const char *tensor)
{
    struct resume_report r;
    char text[1024];
    const enum glm_code code = prove("  optimizer: muon\n", &m, &r, text, sizeof text);
    cr_assert(m.done);
    cr_assert_eq(code, GLM_EMISMATCH, "code %d: %s", code, text);
    cr_assert(strstr(text, words), "'%s' is not in '%s'", words, text);
    if (tensor != NULL) {
        cr_assert(r.difference.found);
        cr_assert_eq(r.difference.step, 4);
        cr_assert_str_eq(r.difference.tensor, tensor);
    }
}

Test(resume, finds_a_changed_bit_of_a_momentum)
{
    const char *name = "model.layers.2.mlp.experts.up_proj.weight";
    finds((struct mutant){SECTION_MOMENTUM, name, 3 * 24 * 48 + 5, 0, false},
        "opt/momentum/model.layers.2.mlp.experts.up_proj.weight differs first in tile 3",
        name);
}

Test(resume, finds_a_changed_bit_of_an_expert_bias)
{
    const char *name = "model.layers.1.mlp.gate.e_score_correction_bias";
    finds((struct mutant){SECTION_WEIGHT, name, 2, 3, false}, name, name);
}

Test(resume, finds_a_changed_data_position)
{
    finds((struct mutant){SECTION_TRAIN, "data_position", 0, 2, false},
        "train/data_position", "data_position");
}

Test(resume, finds_a_changed_step_count)
{
    finds((struct mutant){SECTION_TRAIN, "step", 0, 0, false}, "holds step 5", NULL);
}

Test(resume, finds_a_changed_count_of_an_optimizer)
{
    finds((struct mutant){SECTION_TRAIN, "optimizer_steps", 0, 0, false},
        "train/optimizer_steps", "optimizer_steps");
}

Test(resume, finds_the_first_step_when_the_state_is_not_looked_at)
{
    /* The data position decides what step 5 sees: the numbers differ, too. */
    struct trace_difference d;
    struct trace_counts c;
    struct glm_error err = {0};
    char *dir = trainrun_new("", "");
    struct trace_writer w[2];
    for (int i = 0; i < 2; i++) {
        struct state s = {.step = 1};
        struct train_step step = {.step = 2, .loss = i == 0 ? 1.0 : 1.0 + 0x1p-52};
        double value = 3;
        struct train_tensor t = {
            .section = SECTION_TRAIN, .name = "x", .dtype = GLM_F64, .data = &value};
        s.tensors = (struct train_tensors){.list = &t, .count = 1};
        trace_create(&w[i], tmpdir_path(dir, "%d", i), 0, &err);
        trace_add(&w[i], &s, NULL, &err);
        s.step = 2;
        trace_add(&w[i], &s, &step, &err);
        trace_finish(&w[i], &err);
    }
    trace_compare(tmpdir_path(dir, "0"), tmpdir_path(dir, "1"), &d, &c, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    cr_assert(d.found && d.step == 2 && d.tensors == 0);
    cr_assert_str_eq(d.what, "loss");
    tmpdir_remove(dir);
}

Test(resume, steps_have_to_fit_into_the_recipe)
{
    char *dir = trainrun_new("", ""), path[1024];
    struct glm_error err = {0};
    struct resume_report r;
    snprintf(path, sizeof path, "%s/recipe.yaml", dir);
    const struct resume_options o = {.recipe = path, .n = 18, .m = 3, .threads = 1};
    cr_assert_eq(resume_run(&r, &o, &err), GLM_EUSAGE);
    tmpdir_remove(dir);
}
