/* Forward over latent keys (attention_latent.cuh), Hopper.
 *
 * Two warpgroups: for the scores each has 32 keys of a tile, for O each has 256 of the 512 columns.
 * They tell each other the rows' maxima and P, in BF16, through shared memory. Tiles are gathered one
 * ahead by cp.async. The floor is the larger of 2*64*1088 operations a pair and the gather of 1152
 * bytes. */
#include "kernels/cuda/attention_latent.cuh"

enum { THREADS = 256 };
enum { SHARED = 3 * K_TILE + PANEL + 2 * HEADS * (int)sizeof(float) };

#ifdef ATTENTION_WGMMA

/* s to probabilities against the new maximum of the whole tile; by how much old sums shrink. */
static __device__ inline void softmax(float (&s)[16], int left, float scale2, float *room,
    float most[2], float sum[2], float shrink[2])
{
    const int l = threadIdx.x % WARP, group = threadIdx.x / 128;
    const int row = threadIdx.x / WARP % 4 * 16 + l / 4;
    float top[2];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = most[half];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &x = s[i / 2 * 4 + 2 * half + i % 2];
            if (i / 2 * 8 + l % 4 * 2 + i % 2 >= left)
                x = -INFINITY;
            top[half] = fmaxf(top[half], x);
        }
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xFFFFFFFFu, top[half], 1));
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xFFFFFFFFu, top[half], 2));
        if (l % 4 == 0)
            room[group * HEADS + row + 8 * half] = top[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = fmaxf(top[half], room[(1 - group) * HEADS + row + 8 * half]);
        const float base = top[half] * scale2; /* finite: a tile has a key */
        shrink[half] = ptx_exp2(most[half] * scale2 - base);
        float part = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &x = s[i / 2 * 4 + 2 * half + i % 2];
            x = ptx_exp2(x * scale2 - base);
            part += x;
        }
        most[half] = top[half];
        sum[half] = sum[half] * shrink[half] + part;
    }
}

/* o += P times 256 columns of V. */
static __device__ inline void add_values(float (&o)[128], uint32_t p, uint32_t v)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        ptx_wgmma_256<0, 1>(o, wgmma_k(p + k * 32), wgmma_mn(v + k * 2048, PANEL), 1);
}

static __device__ inline void store(const struct attention_fwd &p, int64_t t,
    const float (&o)[128], const float most[2], float sum[2], float *room)
{
    const int l = threadIdx.x % WARP, group = threadIdx.x / 128;
    const int row = threadIdx.x / WARP % 4 * 16 + l / 4;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(0xFFFFFFFFu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xFFFFFFFFu, sum[half], 2);
        if (l % 4 == 0)
            room[group * HEADS + row + 8 * half] = sum[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int head = row + 8 * half;
        const float all = room[head] + room[HEADS + head], part = 1 / all;
        bf16 *to = (bf16 *)p.o + (t * p.N + head) * VALUE + 256 * group + l % 4 * 2;
        if (head >= p.N)
            continue;
        if (group == 0 && l % 4 == 0)
            ((float *)p.lse)[t * p.N + head] = most[half] * (float)p.scale + logf(all);
#pragma unroll
        for (int n = 0; n < 32; n++)
            *(uint32_t *)(to + 8 * n) =
                ptx_pack(o[4 * n + 2 * half] * part, o[4 * n + 2 * half + 1] * part);
    }
}

static __global__ __launch_bounds__(THREADS, 1) void k_latent(struct attention_fwd p)
{
    extern __shared__ __align__(1024) unsigned char mem[];
    const int64_t t = blockIdx.x;
    const struct row_keys keys = latent_keys(p, t);
    const bf16 *k = (const bf16 *)p.k;
    const uint32_t q_at = ptx_shared(mem), k_at = q_at + K_TILE, p_at = k_at + 2 * K_TILE;
    float *room = (float *)(mem + 3 * K_TILE + PANEL);
    const int group = threadIdx.x / 128, tiles = (keys.count + 63) / 64;
    const float scale2 = (float)p.scale * LOG2E;
    float o[128], s[16], most[2] = {-INFINITY, -INFINITY}, sum[2] = {}, shrink[2];
    int row[2];

#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0;
    head_rows((int)p.N, row);
    gather<K_PANELS>(q_at, (const bf16 *)p.q + t * p.N * LATENT, LATENT, row);
    tile_keys(keys, 0, row);
    gather<K_PANELS>(k_at, k, p.k_stride, row);
    ptx_copy_commit();
    tile_keys(keys, 1, row);
    for (int j = 0; j < tiles; j++) {
        const uint32_t here = k_at + (uint32_t)(j % 2 * K_TILE);
        arrived();
        ptx_wgmma_begin();
        half_products<K_PANELS>(s, q_at, here, 32 * group);
        ptx_wgmma_commit();
        if (j + 1 < tiles)
            gather<K_PANELS>(k_at + (uint32_t)((j + 1) % 2 * K_TILE), k, p.k_stride, row);
        ptx_copy_commit();
        tile_keys(keys, j + 2, row);
        ptx_wgmma_wait<0>();
        ptx_hold(s);
        softmax(s, keys.count - j * 64 - 32 * group, scale2, room, most, sum, shrink);
        store_tile(mem + 3 * K_TILE, threadIdx.x / WARP % 4 * 16, 32 * group, s);
        ptx_shared_to_async();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] *= shrink[i / 2 % 2];
        ptx_hold(o);
        ptx_wgmma_begin();
        add_values(o, p_at, here + (uint32_t)(4 * group * PANEL));
        ptx_wgmma_commit();
        ptx_wgmma_wait<0>();
        ptx_hold(o);
    }
    ptx_copy_wait<0>();
    store(p, t, o, most, sum, room);
}

#else
static __global__ void k_latent(struct attention_fwd) {}
#endif

int attention_latent_fwd(
    const struct attention_fwd *p, glm_stream stream, struct glm_error *err)
{
    return LAUNCH(k_latent, (unsigned)p->T, THREADS, SHARED, stream, err, *p);
}
