/* Writes again, byte for byte, the checkpoints that transformers wrote (fixtures/make_tiny.py).
 *
 * A fixture folder holds headers, side files, seed and SHA-256 digests; the weights are made from
 * the seed. Every file is checked against its digest, so what is written is what transformers
 * wrote, or an error. */
#ifndef TESTS_SUPPORT_TINY_H
#define TESTS_SUPPORT_TINY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/error.h"

/* fixture: "fixtures/tiny-a-bf16"; dir is created if it is not there. */
int tiny_write(const char *dir, const char *fixture, struct glm_error *err);

/* Elements first .. first + count - 1 of one tensor by the rules, before any rounding to the file's
 * type; inputs: its last dimension; name: a member's for routed experts. */
void tiny_values(uint32_t seed, bool small_latents, const char *name, int64_t inputs,
    int64_t first, int64_t count, float *out);

#endif
