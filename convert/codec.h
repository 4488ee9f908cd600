/* Numbers in other types: MXFP8, FP8 128x128 blocks, and the casts between F32, F16 and BF16.
 *
 * All work on a rectangle of a matrix: rows x cols elements, row-major, pitch = cols. Blocks start
 * at the rectangle's origin, so callers cut on block edges. Scalar rules live in kernels/base/fp8.h
 * and bf16.h. Formulas: spec/training.md 6.2 (MXFP8), DESIGN.md 9 (FP8). */
#ifndef CONVERT_CODEC_H
#define CONVERT_CODEC_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

enum codec_rule { RULE_TE_ROUND_UP, RULE_OCP_FLOOR, RULE_AMAX, RULE_POW2 };
const char *codec_rule_name(enum codec_rule r); /* te_round_up, ocp_floor, amax, pow2 */
int codec_rule_find(const char *name, enum codec_rule *out); /* 0 if found */

/* x: BF16 or F32 (dtype). q [rows,cols] E4M3; scale [rows, ceil(cols/32)] E8M0. */
void codec_mxfp8_encode(const void *x, enum glm_dtype dtype, int64_t rows, int64_t cols,
    enum codec_rule rule, uint8_t *q, uint8_t *scale);
/* y: BF16 or F32: RNE of element * 2^(e-127); exact in both unless it under- or overflows. */
void codec_mxfp8_decode(const uint8_t *q, const uint8_t *scale, int64_t rows,
    int64_t cols, void *y, enum glm_dtype dtype);
/* scale [ceil(rows/128), ceil(cols/128)] F32. block: usually 128,128. */
void codec_fp8_encode(const void *x, enum glm_dtype dtype, int64_t rows, int64_t cols,
    const int64_t block[2], enum codec_rule rule, uint8_t *q, float *scale);
/* y = fl32(code * scale), rounded to nearest even in dtype: what published dequantisers do. */
void codec_fp8_decode(const uint8_t *q, const float *scale, int64_t rows, int64_t cols,
    const int64_t block[2], void *y, enum glm_dtype dtype);
/* The MXFP8 form, told by type and block together: FP8 has blocks of one row too. U8 scales hold
 * E8M0 codes: some publishers store them under the plain name of a byte. */
bool codec_is_mx(enum glm_dtype scale, const int64_t block[2]);
/* Whether scales can be of a type: F32, F16, BF16, F8_E8M0, U8. */
bool codec_is_scale(enum glm_dtype dtype);
/* n scales of such a type as the F32 numbers that codec_fp8_decode takes; all exact. */
void codec_scale_widen(const void *scale, enum glm_dtype dtype, float *out, int64_t n);

/* F32/F16/BF16 -> F32/F16/BF16, round to nearest even, Inf stays Inf, NaN stays NaN: quiet when
 * narrowed, its very bits when widened. The same type: a copy. y does not overlap x. */
void codec_cast(
    const void *x, enum glm_dtype from, void *y, enum glm_dtype to, int64_t n);

/* What a conversion did to values: differences of y from x, both as float64 values. */
struct codec_error {
    int64_t count, changed;  /* elements; those whose value differs (NaN equals NaN) */
    int64_t non_finite;      /* NaN or Inf in x or y: counted apart, not in the sums */
    double max_abs, max_rel; /* rel: |y-x|/|x|, x != 0 */
    double signal, noise;    /* sums of x^2 and (y-x)^2, in a fixed order */
};
/* x, y: BF16, F16, F32 or F64. Adds to *e, which starts as {0}. */
void codec_compare(struct codec_error *e, const void *x, enum glm_dtype xt, const void *y,
    enum glm_dtype yt, int64_t n);
void codec_error_add(struct codec_error *sum, const struct codec_error *part);
double codec_snr_db(
    const struct codec_error *e); /* 10 log10(signal/noise); INFINITY if no noise */

#endif
