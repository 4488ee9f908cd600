/* The loss's chunk of rows, for its plain kernels and those for tensor cores. */
#ifndef KERNELS_CUDA_INDEXER_LOSS_CUH
#define KERNELS_CUDA_INDEXER_LOSS_CUH

#include "kernels/cuda/indexer.cuh"

struct loss_chunk {
    struct indexer_rows r;
    float *target, *score; /* [rows, width] each; score becomes dI */
    float *kl, *dq, *dk, *dw;
    const void *mq, *mk; /* [T,MN,MDq]; keys mk_stride apart, [.,MNk,MDq] */
    const float *lse;    /* [T,MN] */
    const int32_t *index;
    int64_t K, MN, MNk, MDq, mk_stride;
    int64_t fill; /* last rows of a sequence that are padding */
    float main_scale, coeff;
};

/* target of what is not below 0 in it. */
int loss_main_plain(const struct loss_chunk *c, glm_stream s, struct glm_error *err);
/* dq and dw of the chunk's rows; adds to dk. */
int loss_back_plain(const struct loss_chunk *c, glm_stream s, struct glm_error *err);

/* The same by tensor cores: indexer_main.cu, indexer_back.cu, which takes scratch memory for chunks of
 * at most `rows` rows. */
bool loss_main_fits(const struct loss_chunk *c);
int loss_main_mma(const struct loss_chunk *c, glm_stream s, struct glm_error *err);
bool loss_main_wgmma_fits(const struct loss_chunk *c, glm_stream s);
int loss_main_wgmma(const struct loss_chunk *c, glm_stream s, struct glm_error *err);
bool loss_back_fits(const struct loss_chunk *c);
size_t loss_back_bytes(const struct loss_chunk *c, int64_t rows);
int loss_back_mma(
    const struct loss_chunk *c, void *scratch, glm_stream s, struct glm_error *err);

#endif
