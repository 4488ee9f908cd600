/* Hopper's copy engine and what goes with it: barriers in shared memory that count arrivals and
 * bytes, boxes of a tensor copied by one thread, warpgroups that exchange registers.
 *
 * A tensor map (made by cuda_tensor_map on the host, passed to a kernel as `const __grid_constant__
 * struct tensor_map`) describes an array of up to 3 dimensions and the box one copy takes. Boxes have
 * rows of 128 bytes, in shared memory one behind the other with 128-byte swizzle, as wgmma.cuh reads
 * them; what lies outside the array comes as zeros and counts as bytes.
 *
 * A barrier's phase ends when `arrivals` have come and no announced bytes are missing; ptx_barrier_wait
 * waits for the end of the phase of the parity given: 0 first, then 1, 0, ... */
#ifndef KERNELS_CUDA_TMA_CUH
#define KERNELS_CUDA_TMA_CUH

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensormap.h"

#ifdef CUDA_EMULATED
#include <emu_tma.h>
#else

/* 9.7.13.15.9 (mbarrier.init). */
static __device__ inline void ptx_barrier_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals)
        : "memory");
}

/* After the inits, before the barrier of threads that publishes them. */
static __device__ inline void ptx_barrier_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* 9.7.13.15.13 (mbarrier.arrive). */
static __device__ inline void ptx_barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives and announces bytes of copies that will report to the barrier. */
static __device__ inline void ptx_barrier_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
        "r"(bytes)
        : "memory");
}

/* 9.7.13.15.16 (mbarrier.try_wait). */
static __device__ inline void ptx_barrier_wait(uint32_t bar, int parity)
{
    int done;

    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.b32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}

/* 9.7.9.27.1.2 (cp.async.bulk.tensor): the box at (x, y[, z]), x along the rows, reports to bar. */
static __device__ inline void ptx_box_2d(
    uint32_t to, const struct tensor_map *map, uint32_t bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
        "l"(map), "r"(bar), "r"(x), "r"(y)
        : "memory");
}

static __device__ inline void ptx_box_3d(
    uint32_t to, const struct tensor_map *map, uint32_t bar, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
        : "memory");
}

/* Clusters: blocks that run side by side and see each other's shared memory. Pairs here: a kernel with
 * __cluster_dims__(2). `at` is where this block's shared memory has what is meant in the other's;
 * `mine` and `stride` are for the emulator, where a pair is one block: this block's rank, and bytes
 * between the two blocks' memory. */
struct ptx_pair {
    int mine, stride;
};

static __device__ inline int ptx_rank(void)
{
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* 9.7.13.4 (barrier.cluster): all threads of both blocks; warps need not come together. */
static __device__ inline void ptx_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* Arrives at the barrier of block `rank`. */
static __device__ inline void ptx_barrier_arrive_at(uint32_t bar, int rank, struct ptx_pair)
{
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(bar),
        "r"(rank)
        : "memory");
}

/* The box goes to both blocks, each one's barrier hears of its own. */
static __device__ inline void ptx_box_2d_both(
    uint32_t to, const struct tensor_map *map, uint32_t bar, int x, int y, struct ptx_pair)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(bar), "r"(x), "r"(y), "h"((short)3)
        : "memory");
}

static __device__ inline void ptx_box_3d_both(uint32_t to, const struct tensor_map *map,
    uint32_t bar, int x, int y, int z, struct ptx_pair)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"((short)3)
        : "memory");
}

/* 9.7.9.27.1.5 (prefetch.tensormap). */
static __device__ inline void ptx_map_prefetch(const struct tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* 9.7.9.25.4.3 (cp.async.bulk.prefetch): 16 n bytes, aligned to 16, into the second-level cache. */
static __device__ inline void ptx_prefetch(const void *from, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes)
        : "memory");
}

/* 9.7.13.1 (barrier): the first `threads` threads of those that name the same number, 1 to 15. */
static __device__ inline void ptx_meet(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* 9.7.19.5 (setmaxnreg): a warpgroup gives registers back, another takes them. */
template <int N> static __device__ inline void ptx_registers_less(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N> static __device__ inline void ptx_registers_more(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

#endif /* CUDA_EMULATED */
#endif
