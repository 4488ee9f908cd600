/* One loop body, compiled for the baseline processor and for AVX2, chosen at run time.
 *
 * The body is a static SIMD_BODY function; SIMD_AVX2 marks the caller that compiles it wide. The
 * arithmetic is IEEE per element in both (no contraction, no reassociation), so the bits are the
 * same; only the speed differs. -DSIMD_BASELINE leaves the wide copies out: the sanitizer build has
 * it, so the tests see both.
 *
 * SIMD_CLONES on a function does the same without a second caller, for x86-64-v4 too: the compiler
 * makes the copies and the program's start chooses. The loops must be in it or in SIMD_BODY
 * functions. (clang has no such copies of C functions; sanitizers come too late for the choice.) */
#ifndef KERNELS_BASE_SIMD_H
#define KERNELS_BASE_SIMD_H

#include <stdbool.h>

#define SIMD_BODY static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__) && !defined(SIMD_BASELINE)
#define SIMD_AVX2 __attribute__((target("avx2")))
static inline bool simd_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#ifndef __clang__
#define SIMD_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#endif
#else
#define SIMD_AVX2
static inline bool simd_avx2(void)
{
    return false;
}
#endif

#ifndef SIMD_CLONES
#define SIMD_CLONES
#endif

#endif
