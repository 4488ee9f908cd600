/* What the instructions of kernels/cuda/ptx.cuh do, lane by lane. */
#ifndef TESTS_EMU_PTX_H
#define TESTS_EMU_PTX_H

static inline void *emu_at(uint32_t shared)
{
    return (void *)(uintptr_t)shared;
}
static inline uint32_t ptx_shared(const void *p)
{
    return (uint32_t)(uintptr_t)p;
}

/* What each lane points to, of T; emu_done when all have read. */
#define EMU_ALL(what, mine) emu_warp(0xFFFFFFFFu, (uint64_t)(uintptr_t)(mine), what)
#define EMU_DONE(what) emu_warp(0xFFFFFFFFu, 0, what)

static inline float emu_half(const uint32_t *r, int i)
{
    return __uint_as_float(i % 2 == 0 ? r[i / 2] << 16 : r[i / 2] & 0xFFFF0000u);
}

/* Row i, column k of A [16,16] in fragments: register 0 rows 0-7, 1 rows 8-15, 2, 3 columns 8-15. */
static inline float emu_a(const uint64_t *lanes, int i, int k)
{
    const uint32_t *r = (const uint32_t *)lanes[i % 8 * 4 + k % 8 / 2];
    return emu_half(r, (i / 8 + k / 8 * 2) * 2 + k % 2);
}

static inline float emu_b(const uint64_t *lanes, int k, int j)
{
    const uint32_t *r = (const uint32_t *)lanes[j * 4 + k % 8 / 2];
    return emu_half(r, k / 8 * 2 + k % 2);
}

static inline void ptx_mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    uint32_t own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const int lane = emu_lane();
    uint64_t as[32], bs[32];
    const uint64_t *all = EMU_ALL("mma", own);

    for (int l = 0; l < 32; l++) {
        as[l] = all[l];
        bs[l] = all[l] + 4 * sizeof(uint32_t);
    }
    for (int e = 0; e < 4; e++) {
        const int i = lane / 4 + e / 2 * 8, j = lane % 4 * 2 + e % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += emu_a(as, i, k) * emu_b(bs, k, j);
        c[e] += sum;
    }
    EMU_DONE("mma");
}

static inline uint32_t emu_pair(uint64_t lo, uint64_t hi)
{
    const uint16_t *a = (const uint16_t *)lo, *b = (const uint16_t *)hi;
    return *a | (uint32_t)*b << 16;
}

static inline void emu_ldmatrix(uint32_t *r, int n, uint32_t row, bool transposed)
{
    const int lane = emu_lane();
    const uint64_t *rows;

    if (row % 16 != 0)
        emu_die("ldmatrix: row at %u, not a multiple of 16 bytes", row);
    rows = emu_warp(0xFFFFFFFFu, row, "ldmatrix");
    for (int m = 0; m < n; m++) {
        const int i = lane / 4, k = lane % 4 * 2;
        r[m] = transposed ? emu_pair(rows[m * 8 + k] + 2 * (uint64_t)i,
                   rows[m * 8 + k + 1] + 2 * (uint64_t)i)
                          : emu_pair(rows[m * 8 + i] + 2 * (uint64_t)k,
                              rows[m * 8 + i] + 2 * (uint64_t)k + 2);
    }
    EMU_DONE("ldmatrix");
}

static inline void ptx_ldmatrix(uint32_t r[4], uint32_t row)
{
    emu_ldmatrix(r, 4, row, false);
}
static inline void ptx_ldmatrix_t(uint32_t r[4], uint32_t row)
{
    emu_ldmatrix(r, 4, row, true);
}

static inline void ptx_copy(uint32_t to, const void *from, int bytes)
{
    if (to % 16 != 0 || (bytes > 0 && (uintptr_t)from % 16 != 0) || bytes < 0
        || bytes > 16)
        emu_die("cp.async: to %u, from %p, %d bytes", to, from, bytes);
    emu_copy(emu_at(to), from, bytes, 16 - bytes);
}

static inline void ptx_copy_commit(void)
{
    emu_copy_commit();
}
template <int N> static inline void ptx_copy_wait(void)
{
    emu_copy_wait(N);
}
static inline float ptx_exp2(float x)
{
    return exp2f(x);
}

static inline float ptx_relu(float x)
{
    return x < 0 ? 0 : x;
}

#endif
