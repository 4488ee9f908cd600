/* Philox against the vectors published with Random123, normals against fixtures/philox.py (NumPy),
 * and a whole checkpoint against the digests of the files that transformers wrote. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/random.h"
#include "tests/support/tiny.h"
#include "tests/support/tmpdir.h"

Test(random, philox_gives_the_published_vectors)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
            {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
            {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        philox4x32_10(known[i].counter, known[i].key, out);
        cr_assert_arr_eq(out, known[i].out, sizeof out, "vector %zu", i);
    }
}

Test(random, normals_are_numpys_to_the_last_bit)
{
    static const struct {
        const char *name;
        uint64_t first;
        double value[4];
    } golden[] = {
        /* philox.normal(7, "init", name, 4, first) */
        {"model.norm.weight", 0,
            {0x1.bca03d62dd79ap+0, -0x1.13edcdf68cf1bp+0, 0x1.92e63a6933b24p+0,
                0x1.0d9bbbc6ff848p-1}},
        {"model.layers.3.mlp.experts.11.up_proj.weight", 4294967294u,
            {-0x1.d65eefc7918e8p-1, -0x1.93c62d6f85654p-1, 0x1.175ee1c6bcb43p+0,
                0x1.db9ad381d06bdp-1}},
    };
    for (size_t i = 0; i < 2; i++) {
        const struct random_stream s = random_open(7, "init", golden[i].name);
        for (uint64_t k = 0; k < 4; k++) {
            const double v = random_normal(&s, golden[i].first + k);
            cr_assert(v == golden[i].value[k], "%s %d: %a, expected %a", golden[i].name,
                (int)k, v, golden[i].value[k]);
        }
    }
}

Test(random, normals_have_the_moments_of_a_normal_distribution)
{
    const struct random_stream s = random_open(1, "init", "moments");
    enum { N = 400000 };
    double sum[5] = {0};
    for (uint64_t i = 0; i < N; i++) {
        const double z = random_normal(&s, i);
        for (int k = 1; k <= 4; k++)
            sum[k] += pow(z, k);
    }
    cr_assert_float_eq(sum[1] / N, 0.0, 0.01);
    cr_assert_float_eq(sum[2] / N, 1.0, 0.02);
    cr_assert_float_eq(sum[3] / N, 0.0, 0.04);
    cr_assert_float_eq(sum[4] / N, 3.0, 0.10);
}

Test(random, streams_of_other_names_seeds_and_purposes_differ)
{
    const struct random_stream a = random_open(1, "init", "x"),
                               b = random_open(1, "init", "y");
    const struct random_stream c = random_open(2, "init", "x"),
                               d = random_open(1, "data", "x");
    const double z = random_normal(&a, 5);
    cr_assert(z != random_normal(&b, 5) && z != random_normal(&c, 5)
        && z != random_normal(&d, 5));
    cr_assert(z != random_normal(&a, 5 + (UINT64_C(1) << 32)), "the index has 64 bits");
}

Test(tiny, files_are_the_ones_transformers_wrote)
{
    static const char *const names[] = {"tiny-a-bf16", "tiny-a-f32", "tiny-a-bf16-nomtp",
        "tiny-a-bf16-fused", "tiny-a-f32-fused", "tiny-b-bf16", "tiny-b-f32",
        "tiny-b-plain-bf16", "tiny-c-bf16", "tiny-c-f32"};
    char *dir = tmpdir_new();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct glm_error err = {0};
        char fixture[64];
        snprintf(fixture, sizeof fixture, "fixtures/%s", names[i]);
        cr_expect_eq(tiny_write(tmpdir_path(dir, "%s", names[i]), fixture, &err), 0, "%s",
            err.text);
    }
    tmpdir_remove(dir);
}

Test(tiny, a_changed_digest_is_refused)
{
    struct glm_error err = {0};
    char *dir = tmpdir_new();
    size_t size;
    char *sums = tmpdir_read("fixtures/tiny-b-plain-bf16/SHA256SUMS", &size);
    char *header = NULL;
    sums[3] = sums[3] == 'a' ? 'b' : 'a';
    tmpdir_write(tmpdir_path(dir, "SHA256SUMS"), sums, size);
    free(sums);
    const char *copied[] = {"tiny.json", "config.json"};
    for (int i = 0; i < 2; i++) {
        header = tmpdir_read(
            tmpdir_path("fixtures/tiny-b-plain-bf16", "%s", copied[i]), &size);
        tmpdir_write(tmpdir_path(dir, "%s", copied[i]), header, size);
        free(header);
    }
    cr_assert_eq(tiny_write(tmpdir_path(dir, "out"), dir, &err), GLM_EMISMATCH);
    cr_assert(strstr(err.text, "config.json"), "%s", err.text);
    tmpdir_remove(dir);
}
