/* One source, three element types: each file of kernels/cpu that includes this is compiled with
 * MODE_F32, MODE_F64 and MODE_BF16. `elem` is what lies in memory, `real` what is computed with
 * ("acc" in ops.h); MODE_DTYPE and MODE_ACC are their names.
 *
 *     OP_FN(swiglu_fwd) { ... }     defines swiglu_fwd_f32, _f64, _bf16; table.c dispatches.
 */
#ifndef KERNELS_CPU_MODE_H
#define KERNELS_CPU_MODE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/bf16.h"
#include "kernels/ops.h"

#if defined(MODE_F64)
typedef double elem;
typedef double real;
#define MODE_NAME(name) name##_f64
#define MODE_DTYPE GLM_F64
#define MODE_ACC GLM_F64
static inline real get(elem x)
{
    return x;
}
static inline elem put(real x)
{
    return x;
}
#elif defined(MODE_BF16)
typedef uint16_t elem;
typedef float real;
#define MODE_NAME(name) name##_bf16
#define MODE_DTYPE GLM_BF16
#define MODE_ACC GLM_F32
static inline real get(elem x)
{
    return bf16_to_f32(x);
}
static inline elem put(real x)
{
    return bf16_from_f32(x);
}
#else
typedef float elem;
typedef float real;
#define MODE_NAME(name) name##_f32
#define MODE_DTYPE GLM_F32
#define MODE_ACC GLM_F32
static inline real get(elem x)
{
    return x;
}
static inline elem put(real x)
{
    return x;
}
#endif

/* Rounds to elem and back: a rounding point inside a formula. */
static inline real low(real x)
{
    return get(put(x));
}

#define OP_FN(op)                                                                        \
    int MODE_NAME(op)(const struct op *p, glm_stream stream, struct glm_error *err);     \
    int MODE_NAME(op)(const struct op *p, glm_stream stream, struct glm_error *err)

#endif
