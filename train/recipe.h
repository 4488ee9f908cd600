/* A recipe: what a training run shall do, read from YAML (man glm-recipe.5).
 *
 *     ARGS:                       Megatron Core's argument names and defaults
 *       num_layers: 21
 *       moe_layer_freq: "([0]*2+[1]*19)"
 *     GLM:                        our own keys
 *       run_dir: run
 *
 * Every key is a row of one table (recipe_keys.c): honoured; without effect on numbers here, and so
 * only listed; changing numbers but not built, an error that names the key unless the caller ignores
 * it. A key may be built for some of its values only. An unknown key is an error with the nearest
 * known one. Values that contradict each other are errors that name both.
 *
 * Every value that applies, given or by default, can be listed (values) and is in `text`, a recipe
 * of its own that parses to the same text; its SHA-256 stands in checkpoints. */
#ifndef TRAIN_RECIPE_H
#define TRAIN_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/ckpt.h"

enum recipe_section { RECIPE_ARGS, RECIPE_GLM };
enum recipe_type {
    RECIPE_INT,
    RECIPE_REAL,
    RECIPE_BOOL,
    RECIPE_TEXT,   /* a YAML list of scalars is taken as "[a,b]" */
    RECIPE_LIST,   /* a YAML list of scalars, or words between spaces */
    RECIPE_LAYOUT, /* GLM.muon_layout */
    RECIPE_ANY     /* not looked at */
};
enum recipe_class {
    RECIPE_HONOURED,
    RECIPE_MODEL, /* honoured; with a configuration at hand it must agree, and has no default */
    RECIPE_NEUTRAL, /* without effect on numbers here: listed, ignored */
    RECIPE_UNBUILT  /* changes numbers, and this build cannot do it */
};
enum recipe_origin {
    RECIPE_ABSENT,
    RECIPE_DEFAULT,
    RECIPE_DERIVED,
    RECIPE_GIVEN,
    RECIPE_SET
};

struct recipe_key {
    const char *name;
    enum recipe_section section;
    enum recipe_type type;
    enum recipe_class kind;
    const char *def;     /* as text; NULL: none */
    const char *choices; /* "a|b": other words are wrong; NULL: any */
    const char *built;   /* "a|b": other values are RECIPE_UNBUILT; NULL: all are built */
    double min, max;     /* of numbers */
    size_t at;           /* where in struct recipe its value goes; SIZE_MAX: nowhere */
    const char *alias;   /* an older or other name, or NULL */
    const char *help;
};

/* Ends with a row without a name. */
extern const struct recipe_key recipe_keys[];
const char *recipe_section_name(enum recipe_section s); /* "ARGS", "GLM" */

struct recipe_value {
    const struct recipe_key *key;
    char *text; /* as YAML; NULL: absent */
    enum recipe_origin origin;
    int line;     /* in the recipe; 0 for the rest */
    bool unbuilt; /* this build cannot do it */
    bool ignored; /* and the caller said to go on */
};

/* Optional whole numbers that nobody gave are RECIPE_NONE, optional numbers NaN, texts NULL. */
enum { RECIPE_NONE = -1 };

struct recipe_list {
    char **item;
    int count;
};

struct recipe_arch { /* as Megatron Core calls it */
    int64_t num_layers, hidden_size, ffn_hidden_size, moe_ffn_hidden_size;
    int64_t moe_shared_expert_intermediate_size, num_attention_heads, num_experts;
    int64_t moe_router_topk, moe_router_num_groups, moe_router_group_topk;
    double moe_router_topk_scaling_factor;
    int64_t q_lora_rank, kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim, v_head_dim;
    int64_t dsa_indexer_n_heads, dsa_indexer_head_dim, dsa_indexer_topk;
    int64_t dsa_indexer_topk_freq, dsa_indexer_skip_topk_offset;
    int64_t vocab_size, max_position_embeddings;
    double rotary_base, layernorm_epsilon, init_method_std;
    const char *moe_layer_freq;
};

enum recipe_stage {
    RECIPE_DENSE,          /* dense attention, no indexer */
    RECIPE_INDEXER_WARMUP, /* dense attention, indexer only, dense KL */
    RECIPE_SPARSE_JOINT,
    RECIPE_RL_SAFE /* sparse attention, indexer frozen */
};
enum recipe_indexer_loss { RECIPE_LOSS_OFF, RECIPE_LOSS_SPARSE, RECIPE_LOSS_DENSE };

struct recipe_train { /* what the model computes */
    bool bf16, fp16;
    enum recipe_stage stage;
    enum recipe_indexer_loss indexer_loss;
    bool indexer_trainable;
    int64_t mtp_depth; /* 0: MTP layers are not trained */
    double mtp_coeff, indexer_coeff;
    bool zero_padding_row_grad, canonical, cuda_graph;
    bool mtp_repeated, mtp_detach_heads, sparse_indexer_loss; /* as given */
    const char *stage_name, *topk_impl, *device, *norm_scope, *scale_rule;
    int64_t seed, make_vocab_size_divisible_by;
};

enum { RECIPE_PARTS = 4, RECIPE_LAYOUTS = 32 };
enum recipe_policy { RECIPE_EACH, RECIPE_GATHERED, RECIPE_ADAMW };

struct recipe_layout { /* an entry of GLM.muon_layout */
    char *tensor;      /* pattern of logical names, fnmatch(3) */
    int parts;
    int64_t rows[RECIPE_PARTS];
    enum recipe_policy policy[RECIPE_PARTS];
};

struct recipe_optimizer {
    const char *name; /* "muon" or "adam" */
    double weight_decay, start_weight_decay, end_weight_decay;
    const char *weight_decay_incr_style;
    double adam_beta1, adam_beta2, adam_eps, clip_grad;
    double muon_momentum, muon_extra_scale_factor;
    bool muon_nesterov;
    const char *muon_coefficient_type, *muon_scale_mode, *muon_tp_mode,
        *muon_fp32_matmul_prec;
    int64_t muon_num_ns_steps;
    double bias_rate, aux_loss_coeff, z_loss_coeff;
    struct recipe_layout *layout;
    int layouts;
};

struct recipe_schedule { /* in samples, whatever the recipe counts in */
    double lr, min_lr, lr_warmup_init;
    const char *style, *wsd_style;
    int64_t warmup_samples, decay_samples, wsd_samples;
    /* As given. */
    int64_t lr_decay_iters, lr_decay_samples, lr_wsd_decay_iters, lr_wsd_decay_samples;
    int64_t lr_warmup_iters, lr_warmup_samples;
    double lr_warmup_fraction;
};

struct recipe_batch {
    int64_t global, micro, seq_length;
    int64_t steps, samples;             /* of the whole run: samples = steps * global */
    int64_t micro_batches;              /* in a step, over all ranks: global / micro */
    int64_t train_iters, train_samples; /* as given */
};

struct recipe_source {
    const char *path;
    const char *weight; /* as the recipe writes it; NULL in all: by their size */
};

struct recipe_data {
    struct recipe_source *source;
    int sources;
    double split[3];  /* train, validation, test: parts of their sum */
    const char *eval; /* a dataset of its own for validation, or NULL */
    bool eod_mask_loss, mock;
    bool documents;      /* GLM.packing: whole documents, else a stream that is cut */
    const char *packing; /* as given */
    int64_t end_id; /* GLM.end_token: what eod_mask_loss looks for; RECIPE_NONE: none */
    const char *split_text; /* as given */
    struct recipe_list data_path, data;
};

struct recipe_policy_save {
    const char *run_dir, *save; /* save: the folder of checkpoints; default run_dir */
    int64_t interval;           /* steps; 0: at the end only */
    int64_t keep_last;          /* 0: all */
    bool verify_load;
    bool async_save; /* checkpoints are written while training goes on */
    int64_t exit_interval, exit_duration_in_mins; /* RECIPE_NONE: none */
    int64_t eval_interval, eval_iters;            /* interval 0: never */
};

struct recipe {
    char *path;
    struct recipe_arch arch;
    /* GLM: a configuration to start at random from; a checkpoint */
    const char *model, *load;
    struct model_config config;
    char *config_text; /* config.json as it is stored; zero-terminated */
    size_t config_size;
    struct recipe_train train;
    struct recipe_optimizer optimizer;
    struct recipe_schedule schedule;
    struct recipe_batch batch;
    struct recipe_data data;
    struct recipe_policy_save run;
    struct topology topology; /* etp 0 in the recipe: Megatron's, tp */
    int64_t context_parallel_size;
    int64_t tp, pp, vpp, ep, etp; /* as given */
    const char *layout;

    struct recipe_value *values; /* one for each row of recipe_keys, in its order */
    int64_t value_count;
    struct recipe_list skipped; /* sections that were passed over, "ENV_VARS" */
    char *text;                 /* canonical; zero-terminated */
    size_t text_size;
    unsigned char sha256[32]; /* of text */
    void *pool;               /* private: the strings above */
};

struct recipe_options {
    const char *const *set; /* "KEY=VALUE", "GLM.KEY=VALUE" */
    int sets;
    const char *const *ignore; /* keys, or sections, that may stay unbuilt */
    int ignores;
    bool allow_unbuilt; /* list them and go on: for planning */
};

/* Reads a recipe, its configuration and what follows from them. Relative paths are as written: from
 * where the command runs. *out is freed with recipe_free, NULL on failure. GLM_EFORMAT "path:line:
 * key …"; GLM_EUSAGE for what `set` and `ignore` say; GLM_EIO. */
int recipe_read(struct recipe **out, const char *path, const struct recipe_options *o,
    struct glm_error *err);
int recipe_parse(struct recipe **out, const char *path, const char *text, size_t size,
    const struct recipe_options *o, struct glm_error *err);
void recipe_free(struct recipe *r);

/* "lr", "ARGS.lr", "GLM.keep_last", or an older name; NULL: no such key. */
const struct recipe_value *recipe_find(const struct recipe *r, const char *key);
/* GLM_EFORMAT that names every unbuilt value that nobody ignored; 0 if there is none. */
int recipe_check_built(const struct recipe *r, struct glm_error *err);

/* "([0]*2+[1]*19)", "[0,1,1]" or "2" (every second layer, from the first on) for n layers. */
int recipe_layer_freq(const char *text, int64_t n, bool *is_moe, struct glm_error *err);

#endif
