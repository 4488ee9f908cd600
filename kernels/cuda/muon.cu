/* Muon: momentum before, decay and update after Newton-Schulz (newton.cu), many matrices at once.
 * Bound by the products; the passes here move 16 bytes an element before (m, g -> m, u) and 10 after
 * (w, BF16 update -> w). */
#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/newton.cuh"
#include "kernels/cuda/vec.cuh"

enum { THREADS = 256, FOUR = vec_wide<float> };

struct rates {
    float shrink, rest, keep, ahead, scale, rate;
};

/* The rates of the step, or those of the call; whether to stop. */
static __device__ inline bool now(struct rates *c, const struct muon *p)
{
    const struct step_rates *const r = p->rates;

    if (r == NULL)
        return false;
    c->shrink = (float)(r->lr * r->decay);
    c->scale = (float)r->grad_scale;
    c->rate = (float)(r->lr * p->factor);
    return r->stop != 0;
}

/* Rows `first` on, of [B*R] rows together, `rows` of them a block; x is [B*R,C] of the batch that
 * begins at matrix b0. */
struct piece {
    struct muon p;
    struct rates c;
    int64_t b0, all;
    int rows;
    bool wide;
};

static __device__ inline int64_t row_at(const struct piece *k, int64_t row)
{
    const struct muon *p = &k->p;
    const int64_t b = k->b0 + row / p->R, r = row % p->R;
    const int64_t run = p->run > 0 ? p->run : p->R;

    return b * p->batch_stride + r / run * p->run_stride + r % run * p->row_stride;
}

/* Four neighbours a thread, or one: a warp's store fills whole sectors (of eight, in two stores, each
 * would fill half of them). */
template <int V> static __global__ void k_before(struct piece k, float *u)
{
    const int across = (int)(k.p.C / V);
    const int64_t first = (int64_t)blockIdx.x * k.rows;

    if (now(&k.c, &k.p))
        return;
    for (int i = threadIdx.x; i < k.rows * across; i += THREADS) {
        const int64_t row = first + i / across, d = i % across * V;
        if (row >= k.all)
            return;
        const int64_t at = row_at(&k, row) + d;
        vec<float, V> m = vec_load<V>((const float *)k.p.m + at);
        vec<float, V> g = vec_load<V>((const float *)k.p.g + at);
#pragma unroll
        for (int e = 0; e < V; e++) {
            const float ge = g.at[e] * k.c.scale;
            m.at[e] += k.c.rest * (ge - m.at[e]);
            g.at[e] = k.c.ahead * ge + k.c.keep * m.at[e];
        }
        vec_store((float *)k.p.m + at, m);
        vec_store(u + row * k.p.C + d, g);
    }
}

static int before(struct piece k, float *u, glm_stream stream, struct glm_error *err)
{
    k.rows = eight_rows(k.wide ? k.p.C / FOUR : k.p.C, THREADS);
    const unsigned grid = blocks_of(k.all, k.rows);
    return k.wide ? LAUNCH(k_before<FOUR>, grid, THREADS, 0, stream, err, k, u)
                  : LAUNCH(k_before<1>, grid, THREADS, 0, stream, err, k, u);
}

/* Decay and update in one pass over w. */
template <class E> static __global__ void k_after(struct piece k, const E *o)
{
    const int across = (int)((k.p.C + EIGHT - 1) / EIGHT);
    const int64_t first = (int64_t)blockIdx.x * k.rows;
    float w[EIGHT], v[EIGHT];

    if (now(&k.c, &k.p))
        return;
    for (int i = threadIdx.x; i < k.rows * across; i += THREADS) {
        const int64_t row = first + i / across, d = i % across * EIGHT;
        if (row >= k.all)
            return;
        const int64_t at = row_at(&k, row) + d;
        const int n = eight_part(d, k.p.C);
        eight_get(w, (const float *)k.p.w + at, n, k.wide);
        eight_get(v, o + row * k.p.C + d, n, k.wide);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) {
            w[e] -= k.c.shrink * w[e];
            w[e] -= k.c.rate * v[e];
        }
        eight_put((float *)k.p.w + at, w, n, k.wide);
        if (k.p.copy != NULL)
            eight_narrow((bf16 *)k.p.copy + at, w, n, k.wide);
    }
}

static int one_batch(struct piece k, glm_stream stream, struct glm_error *err)
{
    const struct muon *const p = &k.p;
    const unsigned grid = blocks_of(k.all, k.rows);
    struct newton s = {};

    cuda_begin(stream); /* each batch in the memory of the one before */
    if (newton_open(&s, k.all / p->R, p->R, p->C, p->low_precision, stream, err) != 0
        || before(k, s.u, stream, err) != 0
        || newton_run(&s, s.u, p->coeff, p->steps, stream, err) != 0)
        return (int)err->code;
    return BY_TYPE(
        s.type, E, LAUNCH(k_after<E>, grid, THREADS, 0, stream, err, k, (const E *)s.x));
}

CUDA_OP(muon)
{
    if (newton_check("muon", p->dtype, p->B, p->R, p->C, p->steps, err) != 0)
        return err->code;
    const int64_t most = newton_batch(p->B, p->R, p->C, p->low_precision);
    const int64_t across = (p->C + EIGHT - 1) / EIGHT;
    const void *const all[] = {p->w, p->m, p->g, p->copy};
    const int64_t strides[] = {p->C, p->batch_stride, p->row_stride, p->run_stride};
    struct piece k = {};
    k.p = *p;
    k.c.shrink = (float)(p->lr * p->decay);
    k.c.rest = (float)(1 - p->momentum);
    k.c.keep = p->nesterov ? (float)p->momentum : 1;
    k.c.ahead = p->nesterov ? k.c.rest : 0;
    k.c.scale = (float)p->grad_scale;
    k.c.rate = (float)(p->lr * p->factor);
    k.rows = eight_rows(across, THREADS);
    k.wide = EIGHT_WIDE(all, strides);
    for (k.b0 = 0; k.b0 < p->B; k.b0 += most) {
        k.all = (p->B - k.b0 < most ? p->B - k.b0 : most) * p->R;
        if (one_batch(k, stream, err) != 0)
            return err->code;
    }
    return 0;
}
