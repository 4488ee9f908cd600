/* What the instructions of kernels/cuda/tma.cuh do. Copies are made at once, so a missing wait for a
 * full barrier is found only where the waiting thread runs first; what overtakes an empty barrier
 * spoils the results. */
#ifndef TESTS_EMU_TMA_H
#define TESTS_EMU_TMA_H

#include "tests/emu/tensormap.h"

/* In the barrier's 8 bytes. */
struct emu_mbarrier {
    uint8_t phase, arrivals, missing, is;
    int32_t bytes; /* announced and not there */
};

enum { EMU_IS_BARRIER = 0xBA };

static inline struct emu_mbarrier *emu_mbarrier_at(uint32_t bar)
{
    struct emu_mbarrier *b = (struct emu_mbarrier *)emu_at(bar);
    if (b->is != EMU_IS_BARRIER)
        emu_die("mbarrier at %u: was not initialised", bar);
    return b;
}

static inline void emu_mbarrier_change(struct emu_mbarrier *b, int arrivals, int bytes)
{
    if (b->missing < arrivals)
        emu_die("mbarrier: more arrivals than were announced");
    b->missing -= arrivals;
    b->bytes += bytes;
    if (b->missing == 0 && b->bytes == 0) {
        b->phase ^= 1;
        b->missing = b->arrivals;
    }
}

static inline void ptx_barrier_init(uint32_t bar, int arrivals)
{
    if (bar % 8 != 0 || arrivals < 1 || arrivals > 255)
        emu_die("mbarrier at %u of %d arrivals", bar, arrivals);
    const uint8_t n = (uint8_t)arrivals;
    *(struct emu_mbarrier *)emu_at(bar) =
        (struct emu_mbarrier){0, n, n, EMU_IS_BARRIER, 0};
}

static inline void ptx_barrier_fence(void) {}
static inline void ptx_barrier_arrive(uint32_t bar)
{
    emu_mbarrier_change(emu_mbarrier_at(bar), 1, 0);
}

static inline void ptx_barrier_expect(uint32_t bar, int bytes)
{
    emu_mbarrier_change(emu_mbarrier_at(bar), 1, bytes);
}

static inline void ptx_barrier_wait(uint32_t bar, int parity)
{
    while (emu_mbarrier_at(bar)->phase == parity)
        emu_spin();
}

static inline void emu_box(
    uint32_t to, const struct tensor_map *map, uint32_t bar, int rank, const int at[3])
{
    const struct emu_tensor *t = (const struct emu_tensor *)map;
    int bytes = 0;

    if (t->rank != rank || to % 1024 != 0)
        emu_die("a copy of %d dimensions to %u, the map has %d", rank, to, t->rank);
    for (int z = 0; z < t->box[2]; z++)
        for (int y = 0; y < t->box[1]; y++)
            for (int x = 0; x < t->box[0]; x++, bytes += 2) {
                const int64_t i[3] = {
                    (int64_t)at[0] + x, (int64_t)at[1] + y, (int64_t)at[2] + z};
                bool in = true;
                const char *from = (const char *)t->base;
                uint32_t a = to + (uint32_t)bytes;
                for (int d = 0; d < 3; d++) {
                    in = in && i[d] >= 0 && i[d] < t->size[d];
                    from += i[d] * t->stride[d];
                }
                a ^= (a >> 7 & 7) << 4;
                *(uint16_t *)emu_at(a) = in ? *(const uint16_t *)from : 0;
            }
    emu_mbarrier_change(emu_mbarrier_at(bar), 0, -bytes);
}

static inline void ptx_box_2d(
    uint32_t to, const struct tensor_map *map, uint32_t bar, int x, int y)
{
    const int at[3] = {x, y, 0};
    emu_box(to, map, bar, 2, at);
}

static inline void ptx_box_3d(
    uint32_t to, const struct tensor_map *map, uint32_t bar, int x, int y, int z)
{
    const int at[3] = {x, y, z};
    emu_box(to, map, bar, 3, at);
}

/* A cluster of two is one block here: the first half of the threads and of the memory is block 0. */
struct ptx_pair {
    int mine, stride;
};

static inline int ptx_rank(void)
{
    return emu_thread() / (int)(emu_block_size.x / 2);
}

static inline void ptx_cluster_sync(void)
{
    emu_block(0);
}

static inline void ptx_barrier_arrive_at(uint32_t bar, int rank, struct ptx_pair pair)
{
    ptx_barrier_arrive(bar + (uint32_t)((rank - pair.mine) * pair.stride));
}

static inline void ptx_box_2d_both(uint32_t to, const struct tensor_map *map,
    uint32_t bar, int x, int y, struct ptx_pair pair)
{
    for (int r = 0; r < 2; r++) {
        const uint32_t there = (uint32_t)((r - pair.mine) * pair.stride);
        ptx_box_2d(to + there, map, bar + there, x, y);
    }
}

static inline void ptx_box_3d_both(uint32_t to, const struct tensor_map *map,
    uint32_t bar, int x, int y, int z, struct ptx_pair pair)
{
    for (int r = 0; r < 2; r++) {
        const uint32_t there = (uint32_t)((r - pair.mine) * pair.stride);
        ptx_box_3d(to + there, map, bar + there, x, y, z);
    }
}

static inline void ptx_map_prefetch(const struct tensor_map *) {}

static inline void ptx_prefetch(const void *from, int bytes)
{
    if ((uintptr_t)from % 16 != 0 || bytes < 16 || bytes % 16 != 0)
        emu_die("prefetch of %d bytes at %p", bytes, from);
    volatile char end = ((const char *)from)[bytes - 1]; /* for the address sanitizer */
    (void)end;
}
static inline void ptx_meet(int number, int threads)
{
    emu_barrier(number, threads, 0);
}
template <int N> static inline void ptx_registers_less(void) {}
template <int N> static inline void ptx_registers_more(void) {}

#endif
