/* What CUDA adds to C++, for kernels compiled by the host's compiler. shared.sed has turned
 *     __shared__ float room[32];         into   EMU_STATIC(room, float[32]);
 *     extern __shared__ char all[];      into   EMU_DYNAMIC(all, char); */
#ifndef TESTS_EMU_CUDA_RUNTIME_H
#define TESTS_EMU_CUDA_RUNTIME_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <type_traits>

#include <cuda_runtime_api.h>

#include <emu.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __cluster_dims__(...)

#define EMU_STATIC(name, ...)                                                            \
    static const char name##_key_ = 0;                                                   \
    auto &name =                                                                         \
        *(std::add_pointer_t<__VA_ARGS__>)emu_static(&name##_key_, sizeof(__VA_ARGS__))
#define EMU_DYNAMIC(name, ...)                                                           \
    std::add_pointer_t<__VA_ARGS__> const name =                                         \
        (std::add_pointer_t<__VA_ARGS__>)emu_dynamic()

struct dim3 : emu_dim {
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : emu_dim{x_, y_, z_} {}
};

#define threadIdx emu_thread_at
#define blockIdx emu_block_at
#define blockDim emu_block_size
#define gridDim emu_grid_size
static const int warpSize = 32;

/* ---- starting --------------------------------------------------------------------------------- */

#define LAUNCH(kernel, grid, block, shared, s, err, ...)                                 \
    emu_launch(__FILE__ ": " #kernel, dim3(grid), dim3(block), (size_t)(shared), (s),    \
        (err), emu_bind((kernel), __VA_ARGS__))

/* A call with its arguments as they are now. */
template <class... P, class... A>
static inline auto emu_bind(void (*kernel)(P...), A... a)
{
    return [kernel, args = std::tuple<std::decay_t<P>...>(a...)] {
        std::apply(kernel, args);
    };
}

template <class F> struct emu_noted {
    const char *name;
    dim3 grid, block;
    size_t shared;
    F go;

    static void run(void *self)
    {
        emu_noted *const n = (emu_noted *)self;
        emu_run(
            n->name, n->grid, n->block, n->shared, [](void *ctx) { (*(F *)ctx)(); },
            &n->go);
    }
    static void done(void *self) { delete (emu_noted *)self; }
};

template <class S, class E, class F>
static inline int emu_launch(
    const char *name, dim3 grid, dim3 block, size_t shared, S s, E *err, F go)
{
    if (s->dry || grid.x == 0 || grid.y == 0 || grid.z == 0)
        return (int)err->code;
    if (emu_recording()) {
        emu_note(emu_noted<F>::run, emu_noted<F>::done,
            new emu_noted<F>{name, grid, block, shared, go});
        return (int)err->code;
    }
    emu_run(
        name, grid, block, shared, [](void *ctx) { (*(F *)ctx)(); }, &go);
    return cuda_check(cudaGetLastError(), name, err);
}

/* ---- vectors ---------------------------------------------------------------------------------- */

#define EMU_VECTORS(type, name, size)                                                    \
    struct alignas(2 * size) name##2                                                     \
    {                                                                                    \
        type x, y;                                                                       \
    };                                                                                   \
    struct name##3                                                                       \
    {                                                                                    \
        type x, y, z;                                                                    \
    };                                                                                   \
    struct alignas(4 * size > 16 ? 16 : 4 * size) name##4                                \
    {                                                                                    \
        type x, y, z, w;                                                                 \
    };                                                                                   \
    static inline name##2 make_##name##2(type x, type y)                                 \
    {                                                                                    \
        return {x, y};                                                                   \
    }                                                                                    \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                 \
    {                                                                                    \
        return {x, y, z, w};                                                             \
    }
EMU_VECTORS(float, float, 4)
EMU_VECTORS(int, int, 4)
EMU_VECTORS(unsigned, uint, 4)
EMU_VECTORS(double, double, 8)
EMU_VECTORS(short, short, 2)
EMU_VECTORS(unsigned short, ushort, 2)
EMU_VECTORS(unsigned char, uchar, 1)
EMU_VECTORS(long long, longlong, 8)
EMU_VECTORS(unsigned long long, ulonglong, 8)

/* ---- bits and arithmetic ---------------------------------------------------------------------- */

template <class To, class From> static inline To emu_cast(From x)
{
    To y;
    static_assert(sizeof x == sizeof y, "");
    memcpy(&y, &x, sizeof y);
    return y;
}

static inline unsigned __float_as_uint(float x)
{
    return emu_cast<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return emu_cast<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return emu_cast<float>(x);
}
static inline float __int_as_float(int x)
{
    return emu_cast<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return emu_cast<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return emu_cast<double>(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by)
{
    return (unsigned)((((unsigned long long)hi << 32) | lo) >> (by & 31));
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned how)
{
    const unsigned long long all = (unsigned long long)b << 32 | a;
    unsigned y = 0;
    for (int i = 0; i < 4; i++)
        y |= (unsigned)(all >> (how >> 4 * i & 7) * 8 & 255) << 8 * i;
    return y;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frcp_rn(float x)
{
    return 1 / x;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
#define __expf(x) expf(x)   /* the C library has the name for itself */
#define __logf(x) logf(x)   /* the C library has the name for itself */
#define __log2f(x) log2f(x) /* the C library has the name for itself */
#define __sinf(x) sinf(x)   /* the C library has the name for itself */
#define __cosf(x) cosf(x)   /* the C library has the name for itself */
static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return 1 / sqrtf(x);
}
static inline float __saturatef(float x)
{
    return x > 1 ? 1 : x > 0 ? x : 0;
}
static inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
using std::isfinite;
using std::isinf;
using std::isnan;
template <class A, class B> static inline auto min(A a, B b)
{
    return a < b ? a : b;
}
template <class A, class B> static inline auto max(A a, B b)
{
    return a > b ? a : b;
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldca(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T x)
{
    *p = x;
}
template <class T> static inline void __stcg(T *p, T x)
{
    *p = x;
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned)
{
    emu_spin();
}
static inline void __trap()
{
    emu_die("trap");
}
static inline uint64_t __cvta_generic_to_shared(const void *p)
{
    return (uintptr_t)p;
}
static inline long long clock64()
{
    static long long t;
    return t += 100;
}

/* ---- meeting ---------------------------------------------------------------------------------- */

static inline void __syncthreads()
{
    emu_block(0);
}
static inline int __syncthreads_or(int x)
{
    return emu_block(x != 0) > 0;
}
static inline int __syncthreads_and(int x)
{
    return emu_block(x == 0) == 0;
}
static inline int __syncthreads_count(int x)
{
    return emu_block(x != 0);
}
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu)
{
    emu_warp(mask & emu_live(), 0, "__syncwarp");
}

template <class T> static inline uint64_t emu_word(T x)
{
    uint64_t w = 0;
    static_assert(sizeof x <= sizeof w, "");
    memcpy(&w, &x, sizeof x);
    return w;
}

/* The value of lane `from`; a lane outside the mask has none. */
template <class T>
static inline T emu_shuffle(unsigned mask, T x, int from, const char *what)
{
    const uint64_t *const all = emu_warp(mask, emu_word(x), what);
    T y;
    if (!(mask >> from & 1))
        emu_die("%s from lane %d, which is not in %08x", what, from, mask);
    memcpy(&y, &all[from], sizeof y);
    return y;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32)
{
    return emu_shuffle(
        mask, x, emu_lane() / width * width + (from & (width - 1)), "__shfl_sync");
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T x, int by, int width = 32)
{
    const int lane = emu_lane(), from = lane ^ by;
    return emu_shuffle(
        mask, x, from / width > lane / width ? lane : from, "__shfl_xor_sync");
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    const int lane = emu_lane(), from = lane % width - (int)by;
    return emu_shuffle(mask, x, from < 0 ? lane : lane - (int)by, "__shfl_up_sync");
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    const int lane = emu_lane(), from = lane % width + (int)by;
    return emu_shuffle(
        mask, x, from >= width ? lane : lane + (int)by, "__shfl_down_sync");
}

template <class F>
static inline unsigned emu_vote(unsigned mask, uint64_t said, const char *what, F ok)
{
    const uint64_t *const all = emu_warp(mask, said, what);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && ok(all[i]))
            bits |= 1u << i;
    return bits & emu_live();
}

static inline unsigned __ballot_sync(unsigned mask, int x)
{
    return emu_vote(mask, x != 0, "__ballot_sync", [](uint64_t v) { return v != 0; });
}
static inline int __any_sync(unsigned mask, int x)
{
    return emu_vote(mask, x != 0, "__any_sync", [](uint64_t v) { return v != 0; }) != 0;
}
static inline int __all_sync(unsigned mask, int x)
{
    return emu_vote(mask, x != 0, "__all_sync", [](uint64_t v) { return v == 0; }) == 0;
}
template <class T> static inline unsigned __match_any_sync(unsigned mask, T x)
{
    const uint64_t own = emu_word(x);
    return emu_vote(mask, own, "__match_any_sync", [=](uint64_t v) { return v == own; });
}
/* Of warps that have not parted. */
static inline unsigned __activemask()
{
    return emu_live();
}

template <class T, class F>
static inline T emu_reduce(unsigned mask, T x, const char *what, F two)
{
    const uint64_t *const all = emu_warp(mask, emu_word(x), what);
    T y = x;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && i != emu_lane())
            y = two(y, (T)all[i]);
    return y;
}
template <class T> static inline T __reduce_add_sync(unsigned mask, T x)
{
    return emu_reduce(mask, x, "__reduce_add_sync", [](T a, T b) { return (T)(a + b); });
}
template <class T> static inline T __reduce_max_sync(unsigned mask, T x)
{
    return emu_reduce(
        mask, x, "__reduce_max_sync", [](T a, T b) { return a > b ? a : b; });
}
template <class T> static inline T __reduce_min_sync(unsigned mask, T x)
{
    return emu_reduce(
        mask, x, "__reduce_min_sync", [](T a, T b) { return a < b ? a : b; });
}
template <class T> static inline T __reduce_or_sync(unsigned mask, T x)
{
    return emu_reduce(mask, x, "__reduce_or_sync", [](T a, T b) { return (T)(a | b); });
}

/* ---- atomics: of integers alone --------------------------------------------------------------- */

template <class T, class F> static inline T emu_atomic(T *p, F change)
{
    static_assert(std::is_integral<T>::value, "no atomics of floats: their order shows");
    const T old = *p;
    *p = change(old);
    return old;
}
#define EMU_ATOMIC(name, expression)                                                     \
    template <class T, class U> static inline T name(T *p, U u)                          \
    {                                                                                    \
        const T x = (T)u;                                                                \
        return emu_atomic(p, [=](T old) { return (T)(expression); });                    \
    }
EMU_ATOMIC(atomicAdd, old + x)
EMU_ATOMIC(atomicSub, old - x)
EMU_ATOMIC(atomicMax, old > x ? old : x)
EMU_ATOMIC(atomicMin, old < x ? old : x)
EMU_ATOMIC(atomicOr, old | x)
EMU_ATOMIC(atomicAnd, old &x)
EMU_ATOMIC(atomicXor, old ^ x)
EMU_ATOMIC(atomicExch, x)
EMU_ATOMIC(atomicInc, old >= x ? 0 : old + 1)
template <class T, class A, class B> static inline T atomicCAS(T *p, A expected, B value)
{
    return emu_atomic(p, [=](T old) { return old == (T)expected ? (T)value : old; });
}

#endif
