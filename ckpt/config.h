/* A model's configuration: config.json of the Hugging Face directory, read once, traps checked here.
 *
 * Traps (spec/glm-5.2.md 10): head_dim is ignored; n_routed_experts wins over num_experts and
 * num_local_experts; rope_theta may be nested in rope_parameters or top level; indexer_types,
 * index_topk_pattern and index_topk_freq/index_skip_topk_offset must agree where present, and a
 * frequency above 1 needs its offset or one of the lists. Sizes have no defaults. */
#ifndef CKPT_CONFIG_H
#define CKPT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

struct model_config {
    char model_type[64];      /* "glm_moe_dsa" */
    unsigned char sha256[32]; /* of config.json's bytes */
    int64_t vocab_size, hidden_size, intermediate_size, moe_intermediate_size;
    int64_t num_hidden_layers; /* main layers; MTP layers follow them */
    int64_t num_mtp_layers;    /* num_nextn_predict_layers; 0 if absent */
    int64_t num_heads, q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim,
        v_head_dim;
    int64_t n_routed_experts, n_shared_experts, num_experts_per_tok, n_group, topk_group;
    int64_t index_n_heads, index_head_dim, index_topk;
    int64_t max_position_embeddings;
    int64_t pad_token_id; /* -1 if absent */
    double rms_norm_eps, rope_theta, routed_scaling_factor,
        initializer_range; /* rope_theta: 0
                                       if the config does not say */
    bool norm_topk_prob, tie_word_embeddings;
    bool *layer_is_dense;     /* [num_hidden_layers]; owned */
    bool *layer_owns_indexer; /* [num_hidden_layers]; "full" layers; owned */
    enum glm_dtype dtype;     /* config's dtype/torch_dtype; BF16 if absent */
    /* quantization_config, if any: method "" (none), "fp8" (block scales), "mxfp8". */
    char quant_method[32];
    int64_t quant_block[2]; /* weight_block_size; 0,0 if the config does not say */
};

/* Reads config.json's text. *out is the caller's and is cleared with config_clear (harmless on a
 * zeroed struct). GLM_EFORMAT names the key and what was expected; path is for the sentence. */
int config_parse(struct model_config *out, const char *path, const char *text,
    size_t size, struct glm_error *err);
void config_clear(struct model_config *c);

#endif
