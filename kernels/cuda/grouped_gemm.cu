/* Products of groups: which of the makers of tiles takes a product. The choice depends on types,
 * shapes and addresses alone. */
#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/vec.cuh"

/* Whether rows of both inputs may be copied 16 bytes at a time. */
static bool aligned(const struct grouped_gemm *p)
{
    const int64_t a_row = p->kind == GROUP_TN ? p->N : p->K;
    const int64_t b_row = p->kind == GROUP_NN ? p->N : p->K;

    return vec_fits(p->a, a_row, 2) && vec_fits(p->b, b_row, 2);
}

CUDA_OP(grouped_gemm)
{
    if (cuda_type("grouped_gemm", p->a_type, err) != 0
        || cuda_type("grouped_gemm", p->b_type, err) != 0
        || cuda_type("grouped_gemm", p->c_type, err) != 0)
        return err->code;
    if (p->G < 0 || p->N < 0 || p->K < 0 || p->N > INT32_MAX / 2 || p->K > INT32_MAX / 2)
        return glm_fail(err, GLM_EFORMAT, "grouped_gemm: impossible shape: G %lld, N %lld, K %lld",
            (long long)p->G, (long long)p->N, (long long)p->K);
    if (p->G > GROUPS_MOST)
        return glm_fail(err, GLM_EUSAGE, "grouped_gemm: %lld groups: on the GPU at most %d",
            (long long)p->G, GROUPS_MOST);
    cuda_begin(stream);
    if (p->G == 0 || p->N == 0)
        return 0;
    if (p->a_type != GLM_BF16 || p->b_type != GLM_BF16 || !aligned(p)
        || stream->grouped == CUDA_GROUPED_PLAIN)
        return cuda_grouped_plain(p, stream, err);
    /* The copy engine must know where the token side ends, and no array may be empty. */
    if (stream->grouped >= CUDA_GROUPED_WGMMA && stream->major == 9 && p->rows > 0 && p->K > 0)
        return cuda_grouped_wgmma(p, stream, err);
    return cuda_grouped_mma(p, stream, err);
}
