/* The model against Hugging Face transformers in float32, and against an independent float64
 * reference where transformers has nothing (MTP, the indexer's loss). */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/support/parity.h"
#include "verify/golden.h"

static struct parity run(const char *name, struct parity_options o)
{
    struct glm_error err = {0};
    struct parity p;
    char path[128];
    snprintf(path, sizeof path, "fixtures/parity/%s.safetensors", name);
    o.threads = o.threads ? o.threads : 2;
    cr_assert_eq(parity_run(&p, path, &o, &err), 0, "%s", err.text);
    return p;
}

/* The bounds of float32 against float32, and their like against float64. */
static void check(const char *name, struct parity_options o)
{
    o.dtype = GLM_F32;
    const struct parity p = run(name, o);
    cr_expect_leq(p.logits, 1e-5, "%s: logits %g", name, p.logits);
    cr_expect_leq(p.loss, 1e-5, "%s: loss %g", name, p.loss);
    cr_expect_leq(p.mtp, 1e-5, "%s: MTP loss %g", name, p.mtp);
    cr_expect_leq(p.kl, 1e-5, "%s: indexer loss %g", name, p.kl);
    cr_expect_eq(p.index_wrong, 0, "%s: %d index sets", name, (int)p.index_wrong);
    cr_expect_eq(p.expert_wrong, 0, "%s: %d expert sets", name, (int)p.expert_wrong);
    cr_expect_gt(p.gradients, 100);
    cr_expect_leq(p.cosine, 1e-6, "%s: a gradient's cosine is 1 - %g", name, p.cosine);
    cr_expect_leq(p.gradient, 1e-4, "%s: %s is %g off", name, p.worst, p.gradient);
    cr_expect_leq(p.norm, 1e-5, "%s: a norm is %g off", name, p.norm);
    cr_expect_leq(p.sum, 1e-5, "%s: a sum is %g off", name, p.sum);
    cr_expect(p.indexer_still, "%s: the cross-entropy reaches the indexer", name);
}

Test(parity, indexshare_agrees_with_transformers)
{
    check("tiny-a", (struct parity_options){0});
}

Test(parity, groups_and_small_latents_agree_with_transformers)
{
    check("tiny-b", (struct parity_options){0});
}

Test(parity, plain_weights_agree_with_transformers)
{
    check("tiny-b-plain", (struct parity_options){0});
}

Test(parity, an_indexer_in_every_layer_agrees_with_transformers)
{
    check("tiny-c", (struct parity_options){0});
}

Test(parity, mtp_and_the_indexer_loss_agree_with_float64)
{
    check("tiny-a", (struct parity_options){.both = true});
    check("tiny-b", (struct parity_options){.both = true});
}

Test(parity, the_absorbed_form_agrees_too)
{
    check("tiny-a", (struct parity_options){.absorbed = true});
    check("tiny-a", (struct parity_options){.absorbed = true, .both = true});
    check("tiny-b", (struct parity_options){.absorbed = true, .both = true});
}

/* The reference is float64. What is left: it takes rotary angles as float32 products, as float32
 * programs do, and its gradients are stored as float32. */
Test(parity, in_double_the_reference_is_met_much_closer)
{
    const struct parity p =
        run("tiny-a", (struct parity_options){.both = true, .dtype = GLM_F64});
    cr_expect_leq(p.mtp, 1e-8, "MTP loss %g", p.mtp);
    cr_expect_leq(p.kl, 1e-7, "indexer loss %g", p.kl);
    cr_expect_leq(p.gradient, 1e-6, "%s is %g off", p.worst, p.gradient);
    cr_expect_leq(p.norm, 1e-6, "a norm is %g off", p.norm);
}

/* Near a tie two programs in bfloat16 choose otherwise, transformers and itself too: the arithmetic is
 * compared with transformers' sets (spec/glm-5.2.md 5 and 8.4). */
Test(parity, bfloat16_follows_transformers_in_bfloat16_with_its_sets)
{
    const struct parity p = run("tiny-a", (struct parity_options){.dtype = GLM_BF16});
    cr_expect_geq(p.bf16_cosine, 0.999, "cosine of the logits %g", p.bf16_cosine);
}

/* With sets of its own it is about as far from transformers as that, by another of its attention
 * functions, is from itself. */
Test(parity, bfloat16_chooses_as_nearly_as_transformers_by_another_attention)
{
    const struct parity p =
        run("tiny-a", (struct parity_options){.dtype = GLM_BF16, .choose = true});
    struct glm_error err = {0};
    struct golden *g;
    int64_t n;
    cr_assert_eq(golden_open(&g, "fixtures/parity/tiny-a.safetensors", &err), 0);
    const double *const itself = golden_f64(g, "bf16.sdpa", &n);
    cr_assert(itself != NULL && n == 3);
    cr_expect_gt(p.index_wrong + p.expert_wrong, 0, "nothing was chosen otherwise");
    cr_expect_leq(1 - p.bf16_cosine, 2 * itself[0], "1 - cosine %g, transformers' own %g",
        1 - p.bf16_cosine, itself[0]);
    cr_expect_leq((double)p.index_wrong, 2 * itself[1]);
    cr_expect_leq((double)p.expert_wrong, 2 * itself[2]);
    golden_close(g);
}
