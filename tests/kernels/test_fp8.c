/* Scalar codecs against fixtures/codec (PyTorch and ml_dtypes): every code, every BF16 input, every
 * scale. Scale rules at their boundaries against exact arithmetic in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "ckpt/digest.h"
#include "kernels/base/bf16.h"
#include "kernels/base/fp8.h"

static void read_golden(const char *name, void *out, size_t size)
{
    char path[128];

    snprintf(path, sizeof path, "fixtures/codec/%s", name);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fread(out, 1, size, f), size, "%s is short", path);
    cr_assert_eq(fgetc(f), EOF, "%s is long", path);
    fclose(f);
}

static bool same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || f32_bits(a) == f32_bits(b);
}

Test(fp8, decodes_every_e4m3_code)
{
    float want[256];

    read_golden("e4m3_values.f32", want, sizeof want);
    for (int q = 0; q < 256; q++)
        cr_expect(
            same_float(fp8_e4m3_decode((uint8_t)q), want[q]), "code %02x", (unsigned)q);
}

Test(fp8, decodes_every_e8m0_code)
{
    float want[256];

    read_golden("e8m0_values.f32", want, sizeof want);
    for (int e = 0; e < 256; e++) {
        cr_expect(same_float(fp8_e8m0_decode((uint8_t)e), want[e]), "code %d", e);
        if (e < 255)
            cr_expect_eq(fp8_e8m0_inverse((uint8_t)e), ldexpf(1, 127 - e), "code %d", e);
    }
    cr_expect(isnan(fp8_e8m0_inverse(255)));
}

Test(fp8, encodes_every_bf16_value)
{
    static uint8_t want[65536];

    read_golden("e4m3_of_bf16.u8", want, sizeof want);
    for (unsigned h = 0; h < 65536; h++)
        cr_expect_eq(fp8_e4m3_encode(bf16_to_f32((uint16_t)h)), want[h], "bf16 %04x", h);
}

Test(fp8, encodes_every_bf16_value_under_every_scale)
{
    static uint8_t q[65536];
    struct digest *d = digest_new();
    unsigned char got[DIGEST_SIZE];
    char hex[DIGEST_HEX], line[160];
    bool found = false;

    digest_begin(d);
    for (int e = 0; e < 255; e++) {
        for (unsigned h = 0; h < 65536; h++)
            q[h] =
                fp8_e4m3_encode(bf16_to_f32((uint16_t)h) * fp8_e8m0_inverse((uint8_t)e));
        digest_update(d, q, sizeof q);
    }
    digest_end(d, got);
    digest_hex(got, hex);
    FILE *f = fopen("fixtures/codec/digests.txt", "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "e4m3_of_bf16_times_every_scale ", 31) == 0) {
            cr_expect_eq(strncmp(line + 31, hex, 64), 0);
            found = true;
        }
    cr_expect(found);
    fclose(f);
    digest_free(d);
}

Test(fp8, gives_each_finite_code_back)
{
    for (int q = 0; q < 256; q++)
        if ((q & 0x7F) != 0x7F)
            cr_expect_eq(fp8_e4m3_encode(fp8_e4m3_decode((uint8_t)q)), q);
    cr_expect_eq(fp8_e4m3_encode(fp8_e4m3_decode(0x7F)), 0x7F);
    cr_expect_eq(fp8_e4m3_encode(fp8_e4m3_decode(0xFF)), 0x7F); /* NaN has one code */
}

/* Second method: the nearest of all values by search, ties to the even code, in double. */
Test(fp8, rounds_to_the_nearest_code)
{
    for (int q = 0; q < 0x7E; q++) {
        const float lo = fp8_e4m3_decode((uint8_t)q),
                    hi = fp8_e4m3_decode((uint8_t)(q + 1));
        const float middle = (lo + hi) / 2; /* exact: at most five significant bits */
        cr_expect_eq(fp8_e4m3_encode(middle), q + (q & 1));
        cr_expect_eq(fp8_e4m3_encode(nextafterf(middle, 0)), q);
        cr_expect_eq(fp8_e4m3_encode(nextafterf(middle, 1000)), q + 1);
        cr_expect_eq(fp8_e4m3_encode(-middle), 0x80 | (q + (q & 1)));
    }
    cr_expect_eq(fp8_e4m3_encode(465), 0x7E);
    cr_expect_eq(fp8_e4m3_encode(INFINITY), 0x7E);
    cr_expect_eq(fp8_e4m3_encode(-INFINITY), 0xFE);
    cr_expect_eq(fp8_e4m3_encode(NAN), 0x7F);
    cr_expect_eq(fp8_e4m3_encode(-NAN), 0x7F);
    cr_expect_eq(fp8_e4m3_encode(-0.0f), 0x80);
}

/* spec/training.md 6.2: the exhaustive statement about positive finite BF16 maxima. */
Test(fp8, round_up_rule_is_tight_and_never_saturates)
{
    int largest = 0;

    for (unsigned h = 1; h < 0x7F80; h++) {
        const float amax = bf16_to_f32((uint16_t)h);
        const int e = fp8_mx_scale_te(amax);
        cr_assert_lt(e, 255);
        cr_assert_leq((double)amax / 448, ldexp(1, e - 127), "bf16 %04x", h);
        if (e > 0)
            cr_assert_gt((double)amax / 448, ldexp(1, e - 128), "bf16 %04x", h);
        cr_assert_leq((double)amax * ldexp(1, 127 - e), 448.0);
        largest = e > largest ? e : largest;
    }
    cr_expect_eq(largest, 247);
    cr_expect_eq(fp8_mx_scale_te(0), 0);
    cr_expect_eq(fp8_mx_scale_te(INFINITY), 254);
    cr_expect_eq(fp8_e8m0_round_up(NAN), 255);
}

Test(fp8, rounds_scales_up_at_every_power_of_two)
{
    for (int e = 1; e <= 253; e++) {
        const float p = ldexpf(1, e - 127);
        cr_expect_eq(fp8_e8m0_round_up(p), e);
        cr_expect_eq(fp8_e8m0_round_up(nextafterf(p, INFINITY)), e + 1);
        cr_expect_eq(fp8_e8m0_round_up(nextafterf(p, 0)), e);
    }
    cr_expect_eq(fp8_e8m0_round_up(0x1p-127f), 0);
    cr_expect_eq(fp8_e8m0_round_up(nextafterf(0x1p-127f, 1)), 1);
    cr_expect_eq(fp8_e8m0_round_up(0x1p-149f), 0);
    cr_expect_eq(fp8_e8m0_round_up(0x1p127f), 254);
    cr_expect_eq(fp8_e8m0_round_up(0x1.fffffep127f), 254);
    cr_expect_eq(fp8_e8m0_round_up(INFINITY), 254);
}

/* The floor rule is one binade lower exactly where the maximum's significand exceeds 1.75. */
Test(fp8, floor_rule_differs_only_above_one_and_three_quarters)
{
    for (unsigned h = 0x0080; h < 0x7F80; h++) {
        const float amax = bf16_to_f32((uint16_t)h);
        const int up = fp8_mx_scale_te(amax), floor_e = fp8_mx_scale_ocp(amax);
        const bool above = (h & 0x7F) > 0x60;
        if (h >> 7 > 8) /* lower ones are held at 0 */
            cr_expect_eq(up - floor_e, above, "bf16 %04x", h);
    }
    cr_expect_eq(fp8_mx_scale_ocp(0), 0);
    cr_expect_eq(fp8_mx_scale_ocp(INFINITY), 254);
}

Test(fp8, block_scale_follows_its_rule_at_the_ends)
{
    cr_expect_eq(fp8_block_scale(448, false), 1.0f);
    cr_expect_eq(fp8_block_scale(0, false), 1.0f);
    cr_expect_eq(fp8_block_scale(0, true), 1.0f);
    cr_expect_eq(fp8_block_scale(0x1p-149f, false), 1.0f); /* the quotient rounds to 0 */
    cr_expect(isinf(fp8_block_scale(INFINITY, false)));
    cr_expect(isinf(fp8_block_scale(INFINITY, true)));
    cr_expect_eq(fp8_block_scale(448, true), 1.0f);
    cr_expect_eq(fp8_block_scale(450, true), 2.0f);
    cr_expect_eq(fp8_block_scale(447, true), 1.0f);
    cr_expect_eq(fp8_block_scale(448 * 0x1p-140f, true), 0x1p-140f);
    cr_expect_eq(fp8_block_scale(450 * 0x1p-140f, true), 0x1p-139f);
}
