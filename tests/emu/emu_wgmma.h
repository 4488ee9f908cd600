/* What wgmma does (kernels/cuda/wgmma.cuh): each thread computes its own accumulators, at once, from
 * operands found through the descriptors. Nothing is queued here, so a missing wait is not found. */
#ifndef TESTS_EMU_WGMMA_H
#define TESTS_EMU_WGMMA_H

template <int N> static inline void ptx_hold(float (&)[N]) {}
static inline void ptx_wgmma_begin(void) {}
static inline void ptx_wgmma_commit(void) {}
template <int N> static inline void ptx_wgmma_wait(void) {}
static inline void ptx_shared_to_async(void) {}

/* Element (mn, k) of an operand: 128-byte swizzle on the bits of the address itself. A descriptor has
 * 18 bits of the address; the rest are those of the block's shared memory. */
static inline float emu_operand(uint64_t desc, bool mn_major, int mn, int k)
{
    const uint32_t base = ptx_shared(emu_dynamic()), mask = 0x3FFFF;
    const uint32_t at = base + (((uint32_t)(desc & 0x3FFF) << 4) - (base & mask) & mask);
    const uint32_t lbo = (uint32_t)(desc >> 16 & 0x3FFF) << 4;
    const uint32_t sbo = (uint32_t)(desc >> 32 & 0x3FFF) << 4;
    uint32_t a = mn_major ? at + mn / 64 * lbo + k / 8 * sbo + k % 8 * 128 + mn % 64 * 2
                          : at + mn / 8 * sbo + mn % 8 * 128 + k * 2;

    if (desc >> 62 != 1)
        emu_die("wgmma: a descriptor of layout %d", (int)(desc >> 62));
    a ^= (a >> 7 & 7) << 4;
    return __uint_as_float((uint32_t) * (const uint16_t *)emu_at(a) << 16);
}

/* d += A B of this thread's 2 x N/4 elements; a[half][k] its rows of A. */
static inline void emu_wgmma(
    float *d, int n, const float (&a)[2][16], uint64_t b, bool b_mn, int more)
{
    for (int i = 0; i < n / 2; i++) {
        const int col = i / 4 * 8 + emu_lane() % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += a[i / 2 % 2][k] * emu_operand(b, b_mn, col, k);
        d[i] = more ? d[i] + sum : sum;
    }
}

static inline void emu_wgmma_shared(
    float *d, int n, uint64_t a, bool a_mn, uint64_t b, bool b_mn, int more)
{
    float x[2][16];

    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 16; k++)
            x[half][k] = emu_operand(
                a, a_mn, emu_thread() / 32 % 4 * 16 + emu_lane() / 4 + 8 * half, k);
    }
    emu_wgmma(d, n, x, b, b_mn, more);
}

template <int A_MN, int B_MN>
static inline void ptx_wgmma_32(float (&d)[16], uint64_t a, uint64_t b, int more)
{
    emu_wgmma_shared(d, 32, a, A_MN, b, B_MN, more);
}

template <int A_MN, int B_MN>
static inline void ptx_wgmma_64(float (&d)[32], uint64_t a, uint64_t b, int more)
{
    emu_wgmma_shared(d, 64, a, A_MN, b, B_MN, more);
}

template <int A_MN, int B_MN>
static inline void ptx_wgmma_128(float (&d)[64], uint64_t a, uint64_t b, int more)
{
    emu_wgmma_shared(d, 128, a, A_MN, b, B_MN, more);
}

template <int B_MN>
static inline void ptx_wgmma_256_regs(
    float (&d)[128], const uint32_t *a, uint64_t b, int more)
{
    uint32_t own[4] = {a[0], a[1], a[2], a[3]};
    float x[2][16];
    const uint64_t *all = EMU_ALL("wgmma", own);

    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 16; k++)
            x[half][k] = emu_a(all, emu_lane() / 4 + 8 * half, k);
    }
    EMU_DONE("wgmma");
    emu_wgmma(d, 256, x, b, B_MN, more);
}

template <int B_MN>
static inline void ptx_wgmma_64_regs(
    float (&d)[32], const uint32_t *a, uint64_t b, int more)
{
    uint32_t own[4] = {a[0], a[1], a[2], a[3]};
    float x[2][16];
    const uint64_t *all = EMU_ALL("wgmma", own);

    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 16; k++)
            x[half][k] = emu_a(all, emu_lane() / 4 + 8 * half, k);
    }
    EMU_DONE("wgmma");
    emu_wgmma(d, 64, x, b, B_MN, more);
}

#endif
