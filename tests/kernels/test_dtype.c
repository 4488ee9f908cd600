/* Element types: the names and widths of safetensors, each found again by its own name only. */
#include <string.h>

#include <criterion/criterion.h>

#include "kernels/base/dtype.h"

/* The list of spec/checkpoint.md 1.1, written down a second time. */
static const struct {
    const char *name;
    int bits;
} wanted[] = {
    {"BOOL", 8},
    {"U8", 8},
    {"I8", 8},
    {"I16", 16},
    {"U16", 16},
    {"I32", 32},
    {"U32", 32},
    {"I64", 64},
    {"U64", 64},
    {"F16", 16},
    {"BF16", 16},
    {"F32", 32},
    {"F64", 64},
    {"C64", 64},
    {"F8_E4M3", 8},
    {"F8_E5M2", 8},
    {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F4", 4},
};

Test(dtype, knows_every_safetensors_type)
{
    cr_assert_eq(sizeof wanted / sizeof wanted[0], (size_t)GLM_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        enum glm_dtype d;
        cr_assert(glm_dtype_find(wanted[i].name, strlen(wanted[i].name), &d), "%s",
            wanted[i].name);
        cr_expect_str_eq(glm_dtype_name(d), wanted[i].name);
        cr_expect_eq(glm_dtype_bits(d), wanted[i].bits, "%s", wanted[i].name);
        if (wanted[i].bits >= 8)
            cr_expect_eq(glm_dtype_size(d), (size_t)wanted[i].bits / 8);
    }
}

Test(dtype, refuses_other_names)
{
    static const char *const bad[] = {
        "", "bf16", "BF1", "BF16 ", "F8", "F8_E4M3FN", "F4 ", "X"};
    enum glm_dtype d;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect(!glm_dtype_find(bad[i], strlen(bad[i]), &d), "'%s'", bad[i]);
    cr_expect(!glm_dtype_find("F32\0", 4, &d));
}

Test(dtype, finds_names_that_are_not_terminated)
{
    enum glm_dtype d;

    cr_assert(glm_dtype_find("F8_E4M3FNUZ", 7, &d));
    cr_assert_eq(d, GLM_F8_E4M3);
}
