/* What the norms share: a row held in registers by a team of threads, sums over columns.
 *
 * A team of TEAM threads (a warp, or the whole block) takes a row, thread i of it the vectors
 * i, i + TEAM, ... of eight elements, HELD of them. Sums over a row go eight in ascending order,
 * vectors, the warp's tree, warps in order.
 *
 * Sums over rows (gradients of a norm's weight): ROW_BLOCKS blocks, a number that shapes alone give,
 * each take rows b, b + blocks, ... in ascending order; teams of a block fold in order; rows_fold
 * adds the blocks' sums up, ROW_FOLDS slices of them side by side, in order. */
#ifndef KERNELS_CUDA_ROWS_CUH
#define KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/eight.cuh"

enum { ROW_THREADS = 256, ROW_BLOCKS = 264, ROW_FOLDS = 8, ROW_COLUMNS = 32 };

template <int TEAM> static __device__ inline int row_lane(void)
{
    return (int)threadIdx.x % TEAM;
}

template <int TEAM> static __device__ inline int row_team(void)
{
    return (int)threadIdx.x / TEAM;
}

/* room: 32 floats of shared memory. With a warp as a team no other thread need be there. */
template <int TEAM> static __device__ inline float row_sum(float x, float *room)
{
    return TEAM == WARP ? warp_sum(x) : block_sum(x, room);
}

static __device__ inline float row_sum8(const float *x)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        sum += x[k];
    return sum;
}

/* What a row's threads hold of it; zeros behind its end. D is a multiple of eight. */
template <class E, int TEAM, int HELD>
static __device__ inline void row_get(eight<E> *x, const E *row, int64_t D)
{
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const int64_t d = (int64_t)(v * TEAM + row_lane<TEAM>()) * EIGHT;
        x[v] = d < D ? eight_take(row + d) : eight<E>{};
    }
}

/* part[d] = the teams' sums x in order, by way of shared memory [teams-1][D]. */
template <int TEAM, int HELD>
static __device__ inline void row_part(
    float *part, float (*x)[EIGHT], int64_t D, float *room)
{
    const int teams = ROW_THREADS / TEAM, mine = row_team<TEAM>();

    if (mine > 0) {
#pragma unroll
        for (int v = 0; v < HELD; v++) {
            const int64_t d = (int64_t)(v * TEAM + row_lane<TEAM>()) * EIGHT;
            if (d < D)
                eight_put8(room + (mine - 1) * D + d, x[v]);
        }
    }
    __syncthreads();
    if (mine > 0)
        return;
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const int64_t d = (int64_t)(v * TEAM + row_lane<TEAM>()) * EIGHT;
        if (d >= D)
            break;
        for (int t = 1; t < teams; t++)
#pragma unroll
            for (int k = 0; k < EIGHT; k++)
                x[v][k] += room[(t - 1) * D + d + k];
        eight_put8(part + d, x[v]);
    }
}

/* to[d] += sum over `parts` rows, `pitch` apart, of part[., d]. */
int rows_fold(float *to, const float *part, int parts, int64_t pitch, int64_t D,
    glm_stream s, struct glm_error *err);

/* Blocks for T rows with `teams` teams each. */
static inline int rows_blocks(int64_t T, int teams)
{
    const int64_t all = (T + teams - 1) / teams;

    return all < ROW_BLOCKS ? (int)all : (int)ROW_BLOCKS;
}

/* call with TEAM and HELD for rows of D elements, at most ROWS_MOST; to ROWS_WARP a warp. */
enum { ROWS_WARP = WARP * EIGHT * 2, ROWS_MOST = ROW_THREADS * EIGHT * 4 };
#define BY_WIDTH(D, TEAM, HELD, ...)                                                     \
    ((D) <= WARP * EIGHT              ? ROWS_CALL(TEAM, WARP, HELD, 1, __VA_ARGS__)      \
            : (D) <= WARP * EIGHT * 2 ? ROWS_CALL(TEAM, WARP, HELD, 2, __VA_ARGS__)      \
            : (D) <= ROW_THREADS * EIGHT                                                 \
            ? ROWS_CALL(TEAM, ROW_THREADS, HELD, 1, __VA_ARGS__)                         \
            : (D) <= ROW_THREADS * EIGHT * 2                                             \
            ? ROWS_CALL(TEAM, ROW_THREADS, HELD, 2, __VA_ARGS__)                         \
            : (D) <= ROW_THREADS * EIGHT * 3                                             \
            ? ROWS_CALL(TEAM, ROW_THREADS, HELD, 3, __VA_ARGS__)                         \
            : ROWS_CALL(TEAM, ROW_THREADS, HELD, 4, __VA_ARGS__))
#define ROWS_CALL(TEAM, team, HELD, held, ...)                                           \
    ([&] {                                                                               \
        enum { TEAM = (team), HELD = (held) };                                           \
        return (int)(__VA_ARGS__);                                                       \
    }())

#endif
