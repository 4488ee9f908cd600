/* The options that several of import, export, convert and reshard have. */
#ifndef CLI_CONVERT_OPT_H
#define CLI_CONVERT_OPT_H

#include <string.h>

#include "cli/opt.h"
#include "convert/convert.h"

/* clang-format off */
#define OPT_TOPOLOGY(t)                                                                             \
    OPT_INT("tp", "n", &(t)->tp, 1, 65536, "tensor-parallel ranks of the output (default 1)"),      \
        OPT_INT("pp", "n", &(t)->pp, 1, 65536, "pipeline-parallel ranks (default 1)"),              \
        OPT_INT("vpp", "n", &(t)->vpp, 1, 65536, "virtual stages on each pipeline rank (default 1)"), \
        OPT_INT("ep", "n", &(t)->ep, 1, 65536, "expert-parallel ranks (default 1)"),                \
        OPT_INT("etp", "n", &(t)->etp, 1, 65536, "tensor-parallel ranks inside an expert (default 1)"), \
        OPT_TEXT("layout", "str", (t)->layout, sizeof(t)->layout,                                   \
            "pipeline layout, like 'Et*18|t*20|t*20|t*20mL'")

/* The type of the weights; the default is to keep it. */
#define OPT_DTYPE_OR_SAME(o, verb)                                                                  \
    OPT_CHOICE("dtype", "same|bf16|f32|mxfp8|fp8", &(o)->dtype,                                     \
        verb " the weights in this type (default same)")
#define OPT_SCALE_RULE(o)                                                                           \
    OPT_CHOICE("scale-rule", "te_round_up|ocp_floor|amax|pow2", &(o)->scale_rule,                   \
        "how scales are chosen (default te_round_up for mxfp8, amax for fp8)")

#define OPT_COMPRESS_OR_SAME(word)                                                                  \
    OPT_CHOICE("compress", "same|none|zstd", word, "compress each tile (default same)")
#define OPT_SHARD_SIZE(o)                                                                           \
    OPT_SIZE("shard-size", "bytes", &(o)->shard_size, "size of a shard file (default 4GiB)")

/* An output that is there, unfinished work that is there. */
#define OPT_OUTPUT(o)                                                                               \
    OPT_FLAG("replace", &(o)->replace, "put the output in the place of an existing one"),           \
        OPT_FLAG("restart", &(o)->restart, "discard the unfinished output of other options"),       \
        OPT_FLAG("take-lease", &(o)->take_lease, "take over unfinished work of another host")
#define OPT_NO_VERIFY(o)                                                                            \
    OPT_FLAG("no-verify", &(o)->no_verify, "do not check digests while reading")
/* clang-format on */

static inline enum convert_compress compress_or_same(const char *word)
{
    return strcmp(word, "zstd") == 0 ? COMPRESS_ZSTD
        : strcmp(word, "none") == 0  ? COMPRESS_NONE
                                     : COMPRESS_SAME;
}

#endif
