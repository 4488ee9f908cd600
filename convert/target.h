/* What a checkpoint of another type, or a copy, shall hold: the sink's manifest and config.json. */
#ifndef CONVERT_TARGET_H
#define CONVERT_TARGET_H

#include "ckpt/ckpt.h"
#include "convert/codec.h"

struct target_form { /* --dtype, --scale-rule */
    bool same;
    enum glm_dtype dtype; /* BF16, F32; F8_E4M3: quantised, scales below */
    bool mx;              /* 1x32 blocks with E8M0; else 128x128 with F32 */
    enum codec_rule rule;
};

/* dtype: same|bf16|f32|mxfp8|fp8 (NULL: same); rule: NULL for the form's default. */
int target_form_parse(
    struct target_form *out, const char *dtype, const char *rule, struct glm_error *err);

/* A new manifest over `table` with the source's tensors in that form. weights_only leaves out the
 * training sections. No placement, files or provenance yet. */
int target_manifest(struct manifest **out, const struct manifest *source,
    const struct table *table, const struct target_form *form, bool weights_only,
    struct glm_error *err);

/* config.json for that form: only quantization_config and dtype (torch_dtype where that is the key)
 * differ, every other byte stays. *text is malloc'd. */
int target_config(char **text, size_t *size, const char *path, const char *old,
    size_t old_size, const struct table *table, const struct target_form *form,
    struct glm_error *err);

#endif
