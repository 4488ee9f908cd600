#include "kernels/cpu/gemm.h"

#include <blis.h>
#include <pthread.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/simd.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

/* ---- one block -------------------------------------------------------------------------------- */

struct gemm_matrix gemm_at(struct gemm_matrix m, int64_t i, int64_t j)
{
    const int64_t at = m.transposed ? j * m.stride + i : i * m.stride + j;

    m.p = (char *)m.p + at * (int64_t)glm_dtype_size(m.type);
    return m;
}

bool gemm_types(enum glm_dtype a, enum glm_dtype b, enum glm_dtype c)
{
    const bool doubles = a == GLM_F64 && b == GLM_F64 && c == GLM_F64;
    const bool floats = (a == GLM_F32 || a == GLM_BF16) && (b == GLM_F32 || b == GLM_BF16)
        && (c == GLM_F32 || c == GLM_BF16);

    return doubles || floats;
}

/* Rows as stored, to and from F32 without gaps. */
SIMD_CLONES static void widen(
    float *to, const uint16_t *from, int64_t stride, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            to[i * cols + j] = bf16_to_f32(from[i * stride + j]);
    }
}

SIMD_CLONES static void narrow(
    uint16_t *to, int64_t stride, const float *from, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            to[i * stride + j] = bf16_from_f32(from[i * cols + j]);
    }
}

static void zero(struct gemm_matrix c, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        memset(gemm_at(c, i, 0).p, 0, (size_t)n * glm_dtype_size(c.type));
}

static void call_blis(struct gemm_matrix c, struct gemm_matrix a, struct gemm_matrix b,
    int64_t m, int64_t n, int64_t k, bool accumulate)
{
    const trans_t ta = a.transposed ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE;
    const trans_t tb = b.transposed ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE;
    rntm_t how = BLIS_RNTM_INITIALIZER;

    bli_rntm_set_num_threads(1, &how);
    bli_rntm_disable_l3_sup(&how);
    if (c.type == GLM_F64) {
        double one = 1, beta = accumulate;
        bli_dgemm_ex(ta, tb, m, n, k, &one, a.p, a.stride, 1, b.p, b.stride, 1, &beta,
            c.p, c.stride, 1, NULL, &how);
    } else {
        float one = 1, beta = accumulate;
        bli_sgemm_ex(ta, tb, m, n, k, &one, a.p, a.stride, 1, b.p, b.stride, 1, &beta,
            c.p, c.stride, 1, NULL, &how);
    }
}

/* An F32 copy of a BF16 block of rows x cols (as stored) in scratch memory. */
static int as_f32(struct gemm_matrix *x, int64_t rows, int64_t cols, bool copy,
    glm_stream pool, struct glm_error *err)
{
    float *const p = pool_scratch(pool, (size_t)rows * (size_t)cols * sizeof *p, err);

    if (p == NULL)
        return err->code;
    if (copy)
        widen(p, x->p, x->stride, rows, cols);
    *x = (struct gemm_matrix){p, cols, GLM_F32, x->transposed};
    return 0;
}

int gemm_block(struct gemm_matrix c, struct gemm_matrix a, struct gemm_matrix b,
    int64_t m, int64_t n, int64_t k, bool accumulate, glm_stream pool,
    struct glm_error *err)
{
    const struct gemm_matrix given[3] = {a, b, c};
    int code = 0;

    if (m == 0 || n == 0)
        return 0;
    if (k == 0) {
        if (!accumulate)
            zero(c, m, n);
        return 0;
    }
    if (a.type == GLM_BF16)
        code = as_f32(&a, a.transposed ? k : m, a.transposed ? m : k, true, pool, err);
    if (code == 0 && b.type == GLM_BF16)
        code = as_f32(&b, b.transposed ? n : k, b.transposed ? k : n, true, pool, err);
    if (code == 0 && c.type == GLM_BF16)
        code = as_f32(&c, m, n, accumulate, pool, err);
    if (code == 0)
        call_blis(c, a, b, m, n, k, accumulate);
    if (code == 0 && given[2].type == GLM_BF16)
        narrow(given[2].p, given[2].stride, c.p, m, n);
    if (a.p != given[0].p)
        pool_scratch_free(pool, a.p);
    if (b.p != given[1].p)
        pool_scratch_free(pool, b.p);
    if (c.p != given[2].p)
        pool_scratch_free(pool, c.p);
    return code;
}

/* ---- a matrix cut into blocks, one a thread ---------------------------------------------------- */

/* Blocks in C's rows and columns, so that threads have as much to do as each other. A block
 * reads its rows of A and columns of B: of the cuts into as many blocks as there are threads, the
 * one that reads least. */
struct cut {
    int64_t rows, cols; /* of a block */
    int64_t across;     /* blocks side by side */
    int64_t blocks;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static struct cut cut_for(int64_t M, int64_t N, int64_t K, int threads)
{
    enum { UNIT = 16 };
    const double small =
        64.0 * 64 * 64; /* multiply-adds that are not worth waking a thread for */
    const double work = (double)M * (double)N * (double)K;
    struct cut best = {.rows = M, .cols = N, .across = 1, .blocks = 1};
    int64_t least = -1;

    if (work / threads < small)
        threads = work < 2 * small ? 1 : (int)(work / small);
    for (int down = 1; down <= threads; down++) {
        if (threads % down != 0)
            continue;
        struct cut c = {.rows = ceil_div(ceil_div(M, down), UNIT) * UNIT,
            .cols = ceil_div(ceil_div(N, threads / down), UNIT) * UNIT};
        c.across = ceil_div(N, c.cols);
        c.blocks = c.across * ceil_div(M, c.rows);
        const int64_t reads = c.rows + c.cols;
        if (c.blocks > best.blocks || (c.blocks == best.blocks && reads < least)) {
            best = c;
            least = reads;
        }
    }
    return best;
}

/* The first failure of several threads. */
struct first_error {
    pthread_mutex_t lock;
    struct glm_error *err;
};

static void keep_first(struct first_error *f, const struct glm_error *mine)
{
    if (mine->code == GLM_OK)
        return;
    pthread_mutex_lock(&f->lock);
    if (f->err->code == GLM_OK)
        *f->err = *mine;
    pthread_mutex_unlock(&f->lock);
}

struct gemm_job {
    const struct gemm *p;
    struct cut cut;
    glm_stream pool;
    struct first_error *first;
};

static void gemm_blocks(const void *ctx, int64_t begin, int64_t end)
{
    const struct gemm_job *job = ctx;
    const struct gemm *p = job->p;
    const struct gemm_matrix a = {(void *)(uintptr_t)p->a, p->lda, p->a_type, p->trans_a};
    const struct gemm_matrix b = {(void *)(uintptr_t)p->b, p->ldb, p->b_type, p->trans_b};
    const struct gemm_matrix c = {p->c, p->ldc, p->c_type, false};
    struct glm_error err = {0};

    for (int64_t i = begin; i < end && err.code == GLM_OK; i++) {
        const int64_t row = i / job->cut.across * job->cut.rows;
        const int64_t col = i % job->cut.across * job->cut.cols;
        const int64_t m = p->M - row < job->cut.rows ? p->M - row : job->cut.rows;
        const int64_t n = p->N - col < job->cut.cols ? p->N - col : job->cut.cols;
        gemm_block(gemm_at(c, row, col), gemm_at(a, row, 0), gemm_at(b, 0, col), m, n,
            p->K, p->accumulate, job->pool, &err);
    }
    keep_first(job->first, &err);
}

int cpu_gemm(const struct gemm *p, glm_stream stream, struct glm_error *err)
{
    if (!gemm_types(p->a_type, p->b_type, p->c_type))
        return glm_fail(err, GLM_EFORMAT, "gemm: no version for %s = %s x %s",
            glm_dtype_name(p->c_type), glm_dtype_name(p->a_type),
            glm_dtype_name(p->b_type));
    if (p->M < 0 || p->N < 0 || p->K < 0)
        return CHECK_SHAPE3(err, "gemm", "M %lld, N %lld, K %lld", p->M, p->N, p->K);
    if (p->lda < (p->trans_a ? p->M : p->K) || p->ldb < (p->trans_b ? p->K : p->N)
        || p->ldc < p->N)
        return CHECK_SHAPE3(err, "gemm",
            "rows closer than they are long: lda %lld, ldb %lld, "
            "ldc %lld",
            p->lda, p->ldb, p->ldc);
    if (p->M == 0 || p->N == 0)
        return 0;

    struct first_error first = {PTHREAD_MUTEX_INITIALIZER, err};
    const struct gemm_job job = {
        p, cut_for(p->M, p->N, p->K, pool_threads(stream)), stream, &first};
    pool_for(stream, job.cut.blocks, 1, gemm_blocks, &job);
    return err->code;
}

/* ---- groups ------------------------------------------------------------------------------------ */

struct group_job {
    const struct grouped_gemm *p;
    int64_t pieces, cols; /* a group's N is cut into pieces of cols */
    glm_stream pool;
    struct first_error *first;
};

static void one_group(
    const struct group_job *job, int64_t g, int64_t at, int64_t n, struct glm_error *err)
{
    const struct grouped_gemm *p = job->p;
    const int64_t row = p->offset[g], rows = p->offset[g + 1] - row;
    const bool tn = p->kind == GROUP_TN;
    struct gemm_matrix a = {(void *)(uintptr_t)p->a, tn ? p->N : p->K, p->a_type, false};
    struct gemm_matrix b = {
        (void *)(uintptr_t)p->b, p->kind == GROUP_NN ? p->N : p->K, p->b_type, false};
    struct gemm_matrix c = {p->c, tn ? p->K : p->N, p->c_type, false};

    a = gemm_at(a, row, 0);
    if (tn) { /* C[g] rows [at, at+n) = columns of A_g, transposed, times B_g */
        b = gemm_at(b, row, 0);
        c = gemm_at(c, g * p->N + at, 0);
        a.transposed = true;
        gemm_block(c, gemm_at(a, at, 0), b, n, p->K, rows, p->accumulate, job->pool, err);
        return;
    }
    b = gemm_at(b, g * (p->kind == GROUP_NT ? p->N : p->K), 0);
    b.transposed = p->kind == GROUP_NT;
    c = gemm_at(c, row, at);
    gemm_block(c, a, gemm_at(b, 0, at), rows, n, p->K, p->accumulate, job->pool, err);
}

static void groups(const void *ctx, int64_t begin, int64_t end)
{
    const struct group_job *job = ctx;
    struct glm_error err = {0};

    for (int64_t i = begin; i < end && err.code == GLM_OK; i++) {
        const int64_t at = i % job->pieces * job->cols;
        const int64_t left = job->p->N - at;
        if (left > 0)
            one_group(
                job, i / job->pieces, at, left < job->cols ? left : job->cols, &err);
    }
    keep_first(job->first, &err);
}

static int check_groups(const struct grouped_gemm *p, struct glm_error *err)
{
    if (!gemm_types(p->a_type, p->b_type, p->c_type))
        return glm_fail(err, GLM_EFORMAT, "grouped_gemm: no version for %s = %s x %s",
            glm_dtype_name(p->c_type), glm_dtype_name(p->a_type),
            glm_dtype_name(p->b_type));
    if (p->G < 0 || p->N < 0 || p->K < 0)
        return CHECK_SHAPE3(
            err, "grouped_gemm", "G %lld, N %lld, K %lld", p->G, p->N, p->K);
    if (p->offset[0] < 0)
        return glm_fail(
            err, GLM_EFORMAT, "grouped_gemm: offset 0 is %d", (int)p->offset[0]);
    for (int64_t g = 0; g < p->G; g++) {
        if (p->offset[g + 1] < p->offset[g])
            return glm_fail(err, GLM_EFORMAT,
                "grouped_gemm: offsets descend from %d to %d at group %lld",
                (int)p->offset[g], (int)p->offset[g + 1], (long long)g);
    }
    return 0;
}

int cpu_grouped_gemm(
    const struct grouped_gemm *p, glm_stream stream, struct glm_error *err)
{
    enum { UNIT = 48 };
    const int threads = pool_threads(stream);

    if (check_groups(p, err) != 0)
        return err->code;
    if (p->N == 0)
        return 0;
    /* With many groups a thread takes whole ones; with few they are shared. */
    const int64_t want = p->G >= 4 * threads ? 1 : threads;
    const int64_t cols = ceil_div(ceil_div(p->N, want), UNIT) * UNIT;
    struct first_error first = {PTHREAD_MUTEX_INITIALIZER, err};
    const struct group_job job = {p, ceil_div(p->N, cols), cols, stream, &first};

    pool_for(stream, p->G * job.pieces, 1, groups, &job);
    return err->code;
}
