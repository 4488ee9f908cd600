/* The table of recipe keys: names and defaults of Megatron Core (main, August 2026), and ours.
 *
 * Where Megatron's default is something that GLM-5 does not do (dropout, LayerNorm, biased linear
 * layers, softmax routing, a mean over micro-batches), `built` says what the model does and the
 * default is that; giving Megatron's default is then an unbuilt value and is refused. */
#include <math.h>

#include "train/recipe_inside.h"

#define FIELD(f) offsetof(struct recipe, f)
#define NOWHERE SIZE_MAX
#define BIG 9007199254740992.0 /* 2^53: whole numbers a double holds */

/* clang-format off */
#define INT_(s, k, n, f, d, lo, hi, b, a, h)                                                        \
    {.name = n, .section = s, .type = RECIPE_INT, .kind = k, .def = d, .min = lo, .max = hi,        \
     .built = b, .at = f, .alias = a, .help = h}
#define REAL_(s, k, n, f, d, lo, hi, b, a, h)                                                       \
    {.name = n, .section = s, .type = RECIPE_REAL, .kind = k, .def = d, .min = lo, .max = hi,       \
     .built = b, .at = f, .alias = a, .help = h}
#define WORD_(s, k, n, f, d, c, b, a, h)                                                            \
    {.name = n, .section = s, .type = RECIPE_TEXT, .kind = k, .def = d, .choices = c, .built = b,   \
     .at = f, .alias = a, .help = h}
#define BOOL_(s, k, n, f, d, b, a, h)                                                               \
    {.name = n, .section = s, .type = RECIPE_BOOL, .kind = k, .def = d, .built = b, .at = f,        \
     .alias = a, .help = h}
#define ARCH(n, f, d, lo, h) \
    INT_(RECIPE_ARGS, RECIPE_MODEL, n, FIELD(arch.f), d, lo, 1099511627776.0, NULL, NULL, h)
#define ARCH_REAL(n, f, d, lo, hi, a, h) \
    REAL_(RECIPE_ARGS, RECIPE_MODEL, n, FIELD(arch.f), d, lo, hi, NULL, a, h)
#define INT(n, f, d, lo, h) INT_(RECIPE_ARGS, RECIPE_HONOURED, n, FIELD(f), d, lo, BIG, NULL, NULL, h)
#define REAL(n, f, d, lo, hi, h) \
    REAL_(RECIPE_ARGS, RECIPE_HONOURED, n, FIELD(f), d, lo, hi, NULL, NULL, h)
#define BOOL(n, f, d, h) BOOL_(RECIPE_ARGS, RECIPE_HONOURED, n, FIELD(f), d, NULL, NULL, h)
#define TEXT(n, f, d, h) WORD_(RECIPE_ARGS, RECIPE_HONOURED, n, FIELD(f), d, NULL, NULL, NULL, h)
#define WORD(n, f, d, c, b, h) WORD_(RECIPE_ARGS, RECIPE_HONOURED, n, FIELD(f), d, c, b, NULL, h)
/* Honoured for these values only. */
#define ONLY_BOOL(n, v, h) BOOL_(RECIPE_ARGS, RECIPE_HONOURED, n, NOWHERE, v, v, NULL, h)
#define ONLY_WORD(n, v, b, c, h) WORD_(RECIPE_ARGS, RECIPE_HONOURED, n, NOWHERE, v, c, b, NULL, h)
#define ONLY_REAL(n, v, lo, hi, h) \
    REAL_(RECIPE_ARGS, RECIPE_HONOURED, n, NOWHERE, v, lo, hi, v, NULL, h)
#define GLM_INT(n, f, d, lo, h) INT_(RECIPE_GLM, RECIPE_HONOURED, n, FIELD(f), d, lo, BIG, NULL, NULL, h)
#define GLM_BOOL(n, f, d, b, h) BOOL_(RECIPE_GLM, RECIPE_HONOURED, n, FIELD(f), d, b, NULL, h)
#define GLM_WORD(n, f, d, c, b, h) WORD_(RECIPE_GLM, RECIPE_HONOURED, n, FIELD(f), d, c, b, NULL, h)
/* Listed and passed over. */
#define SKIP(n) \
    {.name = n, .section = RECIPE_ARGS, .type = RECIPE_ANY, .kind = RECIPE_NEUTRAL, .at = NOWHERE}
/* Off is fine, on is not built. */
#define NO_FLAG(n) BOOL_(RECIPE_ARGS, RECIPE_UNBUILT, n, NOWHERE, NULL, "false", NULL, NULL)
#define NO(n) \
    {.name = n, .section = RECIPE_ARGS, .type = RECIPE_ANY, .kind = RECIPE_UNBUILT, .at = NOWHERE}

const struct recipe_key recipe_keys[] = {
    /* ---- the model ---- */
    ARCH("num_layers", num_layers, NULL, 1, "main layers; MTP layers come on top"),
    ARCH("hidden_size", hidden_size, NULL, 1, "width of the residual stream"),
    ARCH("ffn_hidden_size", ffn_hidden_size, NULL, 1,
        "width of dense MLPs; 8/3 of hidden_size in whole 64s"),
    ARCH("num_attention_heads", num_attention_heads, NULL, 1, "attention heads"),
    ARCH("q_lora_rank", q_lora_rank, NULL, 1, "width of the query latent"),
    ARCH("kv_lora_rank", kv_lora_rank, "32", 1, "width of the key and value latent"),
    ARCH("qk_head_dim", qk_head_dim, "128", 1, "of a head's key, the part without position"),
    ARCH("qk_pos_emb_head_dim", qk_pos_emb_head_dim, "64", 1, "of a head's key, the rotated part"),
    ARCH("v_head_dim", v_head_dim, "128", 1, "of a head's value"),
    ARCH("num_experts", num_experts, NULL, 1, "routed experts of a layer"),
    ARCH("moe_ffn_hidden_size", moe_ffn_hidden_size, NULL, 1, "width of an expert; ffn_hidden_size"),
    ARCH("moe_shared_expert_intermediate_size", moe_shared_expert_intermediate_size, NULL, 1,
        "width of all shared experts together"),
    WORD_(RECIPE_ARGS, RECIPE_MODEL, "moe_layer_freq", FIELD(arch.moe_layer_freq), "1", NULL, NULL,
        NULL, "which layers have experts: a list expression of 0 and 1, or every n-th"),
    ARCH("moe_router_topk", moe_router_topk, "2", 1, "experts per token"),
    ARCH("moe_router_num_groups", moe_router_num_groups, NULL, 1, "groups of experts; 1"),
    ARCH("moe_router_group_topk", moe_router_group_topk, NULL, 1, "groups a token may use; 1"),
    ARCH_REAL("moe_router_topk_scaling_factor", moe_router_topk_scaling_factor, "1", 0, 1e6, NULL,
        "what normalised expert weights are multiplied by"),
    ARCH("dsa_indexer_n_heads", dsa_indexer_n_heads, NULL, 1, "heads of the indexer"),
    ARCH("dsa_indexer_head_dim", dsa_indexer_head_dim, NULL, 1, "of an indexer head"),
    ARCH("dsa_indexer_topk", dsa_indexer_topk, NULL, 1, "keys a token attends to"),
    ARCH("dsa_indexer_topk_freq", dsa_indexer_topk_freq, "1", 1, "layers that share an index set"),
    ARCH("dsa_indexer_skip_topk_offset", dsa_indexer_skip_topk_offset, "0", 0,
        "first layers that all compute their own"),
    ARCH("vocab_size", vocab_size, NULL, 1, "rows of embedding and head"),
    ARCH("max_position_embeddings", max_position_embeddings, NULL, 1, "longest sequence; seq_length"),
    ARCH_REAL("rotary_base", rotary_base, "10000", 1, 1e18, NULL, "theta of the rotary position"),
    ARCH_REAL("layernorm_epsilon", layernorm_epsilon, "1e-05", 0, 1, "norm_epsilon",
        "of the layers' norms and the final one"),
    ARCH_REAL("init_method_std", init_method_std, "0.02", 0, 1e6, NULL,
        "of the matrices of a random start"),
    INT_(RECIPE_ARGS, RECIPE_HONOURED, "mtp_num_layers", FIELD(train.mtp_depth), NULL, 0, 64, "0|1",
        NULL, "depth of multi-token prediction; what the configuration has, without one 0"),
    BOOL("mtp_use_repeated_layer", train.mtp_repeated, "false", "one stored MTP layer at any depth"),
    ONLY_BOOL("multi_latent_attention", "true", "attention over a latent key"),
    ONLY_WORD("experimental_attention_variant", "dsa", "dsa", NULL, "sparse attention by an indexer"),
    ONLY_WORD("normalization", "RMSNorm", "RMSNorm", "LayerNorm|RMSNorm", "kind of norm"),
    ONLY_WORD("position_embedding_type", "rope", "rope|none", NULL,
        "rotated parts of queries and keys; none: no others"),
    ONLY_WORD("rope_type", "rope", "rope", "rope|yarn", "no scaling of positions"),
    ONLY_REAL("rotary_percent", "1", 0, 1, "how much of the rotated part is"),
    ONLY_REAL("rotary_scaling_factor", "1", 0, 1e6, "no scaling of positions"),
    ONLY_BOOL("swiglu", "true", "gated MLPs with SiLU"),
    ONLY_BOOL("disable_bias_linear", "true", "linear layers have no bias"),
    ONLY_BOOL("add_bias_linear", "false", "the same, said the other way"),
    ONLY_BOOL("add_qkv_bias", "false", "nor do queries, keys and values"),
    ONLY_BOOL("qk_layernorm", "true", "latents are normed"),
    ONLY_BOOL("untie_embeddings_and_output_weights", "true", "the head has weights of its own"),
    ONLY_REAL("hidden_dropout", "0", 0, 1, "none"),
    ONLY_REAL("attention_dropout", "0", 0, 1, "none"),
    ONLY_WORD("moe_router_score_function", "sigmoid", "sigmoid", "softmax|sigmoid|sqrtsoftplus",
        "of router logits"),
    ONLY_BOOL("moe_router_enable_expert_bias", "true", "biases balance the experts"),
    ONLY_WORD("moe_router_dtype", "fp32", "fp32", "fp32|fp64", "of the router's arithmetic"),
    ONLY_BOOL("moe_shared_expert_gate", "false", "the shared expert has no gate"),
    ONLY_BOOL("dsa_indexer_rope_interleaved", "true", "as attention rotates"),
    ONLY_BOOL("dsa_indexer_rotate_activation", "false", "no Hadamard transform"),
    ONLY_BOOL("dsa_indexer_scoring_relu", "true", "of the indexer's products"),
    ONLY_REAL("dsa_indexer_k_norm_epsilon", "1e-06", 0, 1, "of the indexer key's LayerNorm"),
    ONLY_BOOL("rotary_interleaved", "true", "neighbours are rotated together"),
    ONLY_BOOL("calculate_per_token_loss", "true", "a step's loss is a mean over its tokens"),

    /* ---- loss ---- */
    REAL("mtp_loss_scaling_factor", train.mtp_coeff, "0.1", 0, 1e6, "weight of the MTP loss"),
    BOOL_(RECIPE_ARGS, RECIPE_HONOURED, "mtp_detach_heads", FIELD(train.mtp_detach_heads), "false",
        "false", NULL, "MTP gradients stay in the MTP layer"),
    REAL("dsa_indexer_loss_coeff", train.indexer_coeff, "0", 0, 1e6,
        "weight of the indexer's loss; 0: off"),
    BOOL("dsa_indexer_use_sparse_loss", train.sparse_indexer_loss, "false",
        "over the chosen keys instead of all"),
    REAL_(RECIPE_ARGS, RECIPE_HONOURED, "moe_aux_loss_coeff", FIELD(optimizer.aux_loss_coeff), "0",
        0, 1e6, "0", NULL, "weight of the balance loss"),
    REAL_(RECIPE_ARGS, RECIPE_HONOURED, "moe_z_loss_coeff", FIELD(optimizer.z_loss_coeff), "0", 0,
        1e6, "0", NULL, "weight of the router's z-loss"),
    REAL("moe_router_bias_update_rate", optimizer.bias_rate, "0.001", 0, 1e6,
        "step of the expert biases; 0: frozen"),

    /* ---- optimizer ---- */
    WORD_(RECIPE_ARGS, RECIPE_HONOURED, "optimizer", FIELD(optimizer.name), "adam",
        "adam|muon|dist_muon|sgd|lion|soap|adaptive_muon", "adam|muon|dist_muon", NULL,
        "adam: AdamW for all; muon: for matrices"),
    REAL("weight_decay", optimizer.weight_decay, "0.01", 0, 1e6, "decoupled weight decay"),
    REAL("start_weight_decay", optimizer.start_weight_decay, NULL, 0, 1e6, "at the first step"),
    REAL("end_weight_decay", optimizer.end_weight_decay, NULL, 0, 1e6, "at the last step"),
    WORD("weight_decay_incr_style", optimizer.weight_decay_incr_style, "constant",
        "constant|linear|cosine", NULL, "from start_ to end_weight_decay"),
    REAL("adam_beta1", optimizer.adam_beta1, "0.9", 0, 1, "AdamW"),
    REAL("adam_beta2", optimizer.adam_beta2, "0.999", 0, 1, "AdamW"),
    REAL("adam_eps", optimizer.adam_eps, "1e-08", 0, 1, "AdamW"),
    REAL("muon_momentum", optimizer.muon_momentum, "0.95", 0, 1, "Muon, as a running mean"),
    BOOL_(RECIPE_ARGS, RECIPE_HONOURED, "muon_nesterov", FIELD(optimizer.muon_nesterov), "false",
        NULL, "muon_use_nesterov", "Muon looks one step ahead"),
    WORD("muon_coefficient_type", optimizer.muon_coefficient_type, "quintic",
        "simple|quintic|deepseekv4|polar_express|cans|aol|cubic5", "simple|quintic|deepseekv4",
        "Newton-Schulz coefficients"),
    INT_(RECIPE_ARGS, RECIPE_HONOURED, "muon_num_ns_steps", FIELD(optimizer.muon_num_ns_steps), "5",
        1, 32, NULL, NULL, "Newton-Schulz steps"),
    WORD("muon_scale_mode", optimizer.muon_scale_mode, "spectral",
        "spectral|shape_scaling|unit_rms_norm|unit_rms", NULL, "of an orthogonal update"),
    REAL("muon_extra_scale_factor", optimizer.muon_extra_scale_factor, "1", 0, 1e6,
        "and what it is multiplied by besides"),
    WORD("muon_tp_mode", optimizer.muon_tp_mode, "duplicated", "blockwise|duplicated|distributed",
        "duplicated", "matrices are orthogonalised whole"),
    WORD("muon_fp32_matmul_prec", optimizer.muon_fp32_matmul_prec, "medium", "low|medium|high|highest",
        "medium|high|highest", "medium: products of BF16 in Newton-Schulz"),
    ONLY_WORD("muon_scalar_optimizer", "adam", "adam", "adam|lion", "for what is no matrix"),
    ONLY_BOOL("decoupled_weight_decay", "true", "AdamW, not Adam"),
    REAL("clip_grad", optimizer.clip_grad, "1", 0, 1e30, "largest gradient norm; 0: any"),

    /* ---- learning rate ---- */
    REAL("lr", schedule.lr, NULL, 0, 1e6, "the highest learning rate; wanted"),
    REAL("min_lr", schedule.min_lr, "0", 0, 1e6, "the lowest, at the end"),
    WORD("lr_decay_style", schedule.style, "linear",
        "constant|linear|cosine|inverse-square-root|WSD", NULL, "its course"),
    WORD("lr_wsd_decay_style", schedule.wsd_style, "exponential",
        "exponential|linear|cosine|minus_sqrt", NULL, "of the last part of WSD"),
    INT("lr_decay_iters", schedule.lr_decay_iters, NULL, 1, "steps to min_lr; train_iters"),
    INT("lr_decay_samples", schedule.lr_decay_samples, NULL, 1, "samples to it; train_samples"),
    INT("lr_wsd_decay_iters", schedule.lr_wsd_decay_iters, NULL, 1, "steps of WSD's last part"),
    INT("lr_wsd_decay_samples", schedule.lr_wsd_decay_samples, NULL, 1, "samples of it"),
    REAL("lr_warmup_fraction", schedule.lr_warmup_fraction, NULL, 0, 1, "of the decay, to lr"),
    INT("lr_warmup_iters", schedule.lr_warmup_iters, "0", 0, "steps to lr"),
    INT("lr_warmup_samples", schedule.lr_warmup_samples, "0", 0, "samples to lr"),
    REAL("lr_warmup_init", schedule.lr_warmup_init, "0", 0, 1e6, "where it begins"),

    /* ---- batches ---- */
    INT("global_batch_size", batch.global, NULL, 1, "samples of a step; micro_batch_size"),
    INT("micro_batch_size", batch.micro, NULL, 1, "samples at a time; wanted"),
    INT("seq_length", batch.seq_length, NULL, 1, "rows of a sample; wanted"),
    INT("train_iters", batch.train_iters, NULL, 1, "steps; this or train_samples is wanted"),
    INT("train_samples", batch.train_samples, NULL, 1, "samples"),
    INT_(RECIPE_ARGS, RECIPE_HONOURED, "seed", FIELD(train.seed), "1234", 0, 4294967295.0, NULL, NULL,
        "of initial weights and of the order of data"),

    /* ---- data ---- */
    {.name = "data_path", .section = RECIPE_ARGS, .type = RECIPE_LIST, .kind = RECIPE_HONOURED,
        .at = FIELD(data.data_path), .help = "a dataset, or weights and datasets in turn"},
    TEXT("split", data.split_text, "969,30,1", "parts for training, validation, test"),
    BOOL("mock_data", data.mock, "false", "tokens from a generator instead of a dataset"),
    BOOL("eod_mask_loss", data.eod_mask_loss, "false", "no loss where a document has ended"),


    /* ---- saving, evaluation, stopping ---- */
    TEXT("save", run.save, NULL, "folder of checkpoints; run_dir"),
    BOOL("async_save", run.async_save, "false",
        "write checkpoints from a copy on the host while training goes on"),
    INT("save_interval", run.interval, "0", 0, "steps between checkpoints; 0: at the end"),
    INT("eval_interval", run.eval_interval, "0", 0, "steps between evaluations; 0: none"),
    INT("eval_iters", run.eval_iters, "100", 0, "batches of an evaluation"),
    INT("exit_interval", run.exit_interval, NULL, 1, "stop at each multiple of so many steps"),
    INT("exit_duration_in_mins", run.exit_duration_in_mins, NULL, 1, "stop after so long"),

    /* ---- precision, layout ---- */
    BOOL("bf16", train.bf16, "false", "compute in BF16; otherwise in F32"),
    BOOL_(RECIPE_ARGS, RECIPE_HONOURED, "fp16", FIELD(train.fp16), "false", "false", NULL, "in FP16"),
    INT("tensor_model_parallel_size", tp, "1", 1, "ranks that share each layer's matrices"),
    INT("pipeline_model_parallel_size", pp, "1", 1, "ranks that share the layers"),
    INT("num_virtual_stages_per_pipeline_rank", vpp, "1", 1, "stages of a rank"),
    INT("expert_model_parallel_size", ep, "1", 1, "ranks that share the experts"),
    INT("expert_tensor_parallel_size", etp, NULL, 1,
        "ranks that share each expert; tensor_model_parallel_size"),
    INT_(RECIPE_ARGS, RECIPE_HONOURED, "context_parallel_size", FIELD(context_parallel_size), "1", 1,
        BIG, "1", NULL, "ranks that share a sequence"),
    TEXT("pipeline_model_parallel_layout", layout, NULL, "which layers each stage has"),
    INT("make_vocab_size_divisible_by", train.make_vocab_size_divisible_by, "128", 1,
        "padding of the vocabulary, in memory only"),

    /* ---- ours ---- */
    GLM_WORD("model", model, NULL, NULL, NULL, "config.json, or its folder, of a random start"),
    GLM_WORD("load", load, NULL, NULL, NULL, "checkpoint to start from"),
    GLM_WORD("run_dir", run.run_dir, NULL, NULL, NULL,
        "folder of the run; save, or the recipe's name with .run"),
    {.name = "data", .section = RECIPE_GLM, .type = RECIPE_LIST, .kind = RECIPE_HONOURED,
        .at = FIELD(data.data), .help = "as ARGS.data_path"},
    GLM_WORD("eval", data.eval, NULL, NULL, NULL, "dataset of evaluations, instead of a split"),
    GLM_WORD("packing", data.packing, "stream", "stream|documents", NULL,
        "a sample: so many rows of a stream of documents, or whole documents"),
    GLM_INT("end_token", data.end_id, NULL, 0, "what ends a document, for eod_mask_loss; the configuration's first eos_token_id"),
    GLM_WORD("device", train.device, "auto", "auto|cpu|cuda", "auto|cpu|cuda", "what computes"),
    GLM_BOOL("cuda_graph", train.cuda_graph, "true", NULL,
        "on a GPU, replay a recorded step where two in a row have the same shapes"),
    GLM_WORD("norm_scope", train.norm_scope, "global", "global", NULL,
        "one gradient norm over all parameters"),
    GLM_BOOL("canonical", train.canonical, "false", "false",
        "sums in an order that neither layout nor micro-batches change"),
    GLM_WORD("topk_impl", train.topk_impl, "exact", "exact|radix", "exact",
        "of the indexer; ties go to the lowest index"),
    GLM_BOOL("indexer_trainable", train.indexer_trainable, "true", NULL, "false: it is frozen"),
    GLM_WORD("stages", train.stage_name, "sparse_joint", "dense|indexer_warmup|sparse_joint|rl_safe",
        NULL, "what is trained, on which attention"),
    {.name = "muon_layout", .section = RECIPE_GLM, .type = RECIPE_LAYOUT, .kind = RECIPE_HONOURED,
        .at = FIELD(optimizer.layout), .help = "which rows of a tensor are a matrix to Muon"},
    GLM_BOOL("zero_padding_row_grad", train.zero_padding_row_grad, "false", NULL,
        "the padding token's embedding gets no gradient"),
    GLM_WORD("scale_rule", train.scale_rule, "te_round_up", "te_round_up|ocp_floor", NULL,
        "of MXFP8 scales"),
    GLM_INT("keep_last", run.keep_last, "2", 0, "checkpoints that are kept; 0: all"),
    GLM_BOOL("verify_load", run.verify_load, "true", NULL, "check digests while loading; false: only those of index.h5 and of compressed tiles"),

    /* ---- without effect on numbers here ---- */
    SKIP("use_mcore_models"), SKIP("transformer_impl"), SKIP("spec"), SKIP("enable_experimental"),
    SKIP("attention_backend"), SKIP("use_flash_attn"), SKIP("dsa_kernel_backend"),
    SKIP("moe_grouped_gemm"), SKIP("moe_permute_fusion"), SKIP("moe_router_fusion"),
    SKIP("moe_token_dispatcher_type"), SKIP("moe_flex_dispatcher_backend"),
    SKIP("moe_enable_deepep"), SKIP("moe_hybridep_num_sms"), SKIP("moe_deepep_num_sms"),
    SKIP("moe_shared_expert_overlap"), SKIP("moe_router_pre_softmax"), SKIP("moe_per_layer_logging"),
    SKIP("moe_permute_fusion_into_hybridep"), SKIP("moe_router_padding_for_fp8"),
    SKIP("moe_router_padding_for_quantization"), SKIP("moe_paged_stash"),
    SKIP("moe_pad_experts_for_cuda_graph_inference"), SKIP("moe_use_legacy_grouped_gemm"),
    SKIP("overlap_moe_expert_parallel_comm"), SKIP("delay_wgrad_compute"),
    SKIP("recompute_granularity"), SKIP("recompute_method"), SKIP("recompute_num_layers"),
    SKIP("recompute_modules"), SKIP("recompute_activations"), SKIP("distribute_saved_activations"),
    SKIP("fine_grained_activation_offloading"), SKIP("offload_modules"), SKIP("cpu_offloading"),
    SKIP("optimizer_cpu_offload"), SKIP("optimizer_offload_fraction"),
    SKIP("overlap_cpu_optimizer_d2h_h2d"), SKIP("use_precision_aware_optimizer"),
    SKIP("use_distributed_optimizer"), SKIP("use_layer_wise_distributed_optimizer"),
    SKIP("overlap_grad_reduce"), SKIP("overlap_param_gather"), SKIP("overlap_p2p_communication"),
    SKIP("sequence_parallel"), SKIP("tp_comm_overlap"), SKIP("gradient_accumulation_fusion"),
    SKIP("no_gradient_accumulation_fusion"), SKIP("accumulate_allreduce_grads_in_fp32"),
    SKIP("ddp_num_buckets"), SKIP("ddp_bucket_size"), SKIP("muon_use_syrk"), SKIP("muon_split_qkv"),
    SKIP("apply_rope_fusion"), SKIP("no_rope_fusion"), SKIP("bias_activation_fusion"),
    SKIP("bias_swiglu_fusion"), SKIP("no_bias_swiglu_fusion"), SKIP("bias_dropout_fusion"),
    SKIP("no_bias_dropout_fusion"), SKIP("masked_softmax_fusion"), SKIP("no_masked_softmax_fusion"),
    SKIP("cross_entropy_loss_fusion"), SKIP("cross_entropy_fusion_impl"),
    SKIP("attention_softmax_in_fp32"), SKIP("mla_down_proj_fusion"), SKIP("persist_layer_norm"),
    SKIP("cuda_graph_impl"), SKIP("cuda_graph_modules"), SKIP("cuda_graph_scope"),
    SKIP("enable_cuda_graph"), SKIP("cuda_graph_warmup_steps"), SKIP("te_rng_tracker"),
    SKIP("use_te_rng_tracker"), SKIP("deterministic_mode"), SKIP("distributed_backend"),
    SKIP("distributed_timeout_minutes"), SKIP("disable_symmetric_registration"),
    SKIP("high_priority_stream_groups"), SKIP("manual_gc"), SKIP("manual_gc_interval"),
    SKIP("empty_unused_memory_level"), SKIP("num_workers"), SKIP("dataloader_type"),
    SKIP("data_cache_path"), SKIP("no_mmap_bin_files"), SKIP("no_create_attention_mask_in_dataloader"),
    SKIP("create_attention_mask_in_dataloader"), SKIP("num_dataset_builder_threads"),
    SKIP("tokenizer_type"), SKIP("tokenizer_model"), SKIP("log_interval"), SKIP("log_throughput"),
    SKIP("log_params_norm"), SKIP("log_progress"), SKIP("log_timers_to_tensorboard"),
    SKIP("log_memory_to_tensorboard"), SKIP("log_validation_ppl_to_tensorboard"),
    SKIP("log_num_zeros_in_grad"), SKIP("timing_log_level"), SKIP("timing_log_option"),
    SKIP("tensorboard_dir"), SKIP("tensorboard_log_interval"), SKIP("tensorboard_queue_size"),
    SKIP("wandb_project"), SKIP("wandb_exp_name"), SKIP("wandb_save_dir"), SKIP("logging_level"),
    SKIP("profile"), SKIP("profile_step_start"), SKIP("profile_step_end"), SKIP("profile_ranks"),
    SKIP("use_pytorch_profiler"), SKIP("record_memory_history"), SKIP("memory_snapshot_path"),
    SKIP("ckpt_format"), SKIP("ckpt_fully_parallel_save"),
    SKIP("ckpt_fully_parallel_load"), SKIP("ckpt_assume_constant_structure"), SKIP("most_recent_k"),
    SKIP("dist_ckpt_strictness"), SKIP("auto_detect_ckpt_format"), SKIP("no_save_optim"),
    SKIP("no_load_optim"), SKIP("no_load_rng"), SKIP("use_cpu_initialization"),
    SKIP("exit_signal_handler"), SKIP("check_for_nan_in_loss_and_grad"),
    SKIP("no_check_for_nan_in_loss_and_grad"), SKIP("rerun_mode"), SKIP("error_injection_rate"),
    SKIP("dsa_mtp_index_kv_share"), SKIP("variable_seq_lengths"), SKIP("batch_p2p_comm"),
    SKIP("microbatch_group_size_per_vp_stage"), SKIP("kv_channels"), SKIP("group_query_attention"),
    SKIP("num_query_groups"), SKIP("num_gpus"), SKIP("world_size"), SKIP("nccl_ub"),
    SKIP("use_nccl_ub"), SKIP("pin_cpu_grads"), SKIP("pin_cpu_params"),

    /* ---- changing numbers, not built ---- */
    NO("fp8"), NO("fp8_format"), NO("fp8_recipe"), NO_FLAG("fp8_param"), NO_FLAG("fp8_param_gather"),
    NO_FLAG("reuse_grad_buf_for_mxfp8_param_ag"), NO("fp4"), NO("fp4_format"), NO("fp4_recipe"),
    NO("fp8_margin"), NO("fp8_amax_history_len"), NO("fp8_amax_compute_algo"),
    NO_FLAG("first_last_layers_bf16"), NO_FLAG("grad_reduce_in_bf16"), NO("main_grads_dtype"),
    NO("main_params_dtype"), NO("exp_avg_dtype"), NO("exp_avg_sq_dtype"), NO("loss_scale"),
    NO("mtp_tv_loss_coeff"), NO_FLAG("mtp_use_tv_loss"), NO("mtp_loss_type"), NO_FLAG("mtp_hsm"),
    NO("mtp_hybrid_override_pattern"), NO_FLAG("dsa_indexer_k_norm_fp32"), NO_FLAG("qk_clip"),
    NO_FLAG("qk_l2_norm"), NO("window_size"), NO("softmax_scale"), NO("no_rope_freq"),
    NO_FLAG("fp32_residual_connection"), NO_FLAG("apply_residual_connection_post_layernorm"),
    NO_FLAG("layernorm_zero_centered_gamma"), NO_FLAG("apply_layernorm_1p"), NO("mscale"),
    NO("mscale_all_dim"), NO_FLAG("use_mup"), NO("embedding_init_method_std"),
    WORD_(RECIPE_ARGS, RECIPE_HONOURED, "moe_router_load_balancing_type", NOWHERE, NULL, NULL,
        "none|aux_loss|seq_aux_loss|global_aux_loss", NULL,
        "which balance loss moe_aux_loss_coeff weighs; without it none"),
    NO_FLAG("moe_router_force_load_balancing"), NO("moe_router_force_biased"),
    NO("moe_expert_capacity_factor"), NO_FLAG("moe_token_dropping"),
    NO("moe_expert_rank_capacity_factor"), NO_FLAG("moe_pad_expert_input_to_capacity"),
    NO("moe_input_jitter_eps"), NO("moe_latent_size"), NO_FLAG("moe_apply_probs_on_input"),
    NO_FLAG("moe_use_upcycling"), NO("rampup_batch_size"), NO("step_batch_size_schedule"),
    NO("decoupled_lr"), NO("decoupled_min_lr"), NO_FLAG("override_opt_param_scheduler"),
    NO_FLAG("use_checkpoint_opt_param_scheduler"), NO("grad_norm_skip_threshold"),
    NO_FLAG("apply_wd_to_qk_layernorm"), NO("no_weight_decay_cond_type"), NO("sgd_momentum"),
    NO("hierarchical_context_parallel_sizes"), NO_FLAG("hybrid_context_parallel"),
    NO_FLAG("sft"), NO("load"), NO("pretrained_checkpoint"), NO_FLAG("finetune"), NO("ckpt_step"),
    NO("train_data_path"), NO("valid_data_path"), NO("test_data_path"), NO("data_args_path"),
    NO_FLAG("reset_position_ids"), NO_FLAG("reset_attention_mask"), NO_FLAG("fim_data"),
    NO_FLAG("full_validation"), NO("eval_global_batch_size"), NO("eval_micro_batch_size"),
    NO("iterations_to_skip"), NO_FLAG("skip_train"), NO("heterogeneous_layers_config_path"),
    NO("hybrid_layer_pattern"), NO("linear_attention_freq"), NO_FLAG("enable_mhc_connections"),
    NO_FLAG("no_masked_softmax"), NO_FLAG("batch_invariant_mode"), NO_FLAG("perform_rl_step"),
    {.name = NULL},
};
/* clang-format on */

const char *recipe_section_name(enum recipe_section s)
{
    return s == RECIPE_ARGS ? "ARGS" : "GLM";
}
