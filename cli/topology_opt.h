/* The topology options that import and reshard share. */
#ifndef CLI_TOPOLOGY_OPT_H
#define CLI_TOPOLOGY_OPT_H

#include "cli/opt.h"
#include "ckpt/ckpt.h"

/* clang-format off */
#define OPT_TOPOLOGY(t)                                                                             \
    OPT_INT("tp", "n", &(t)->tp, 1, 65536, "tensor-parallel ranks of the output (default 1)"),      \
        OPT_INT("pp", "n", &(t)->pp, 1, 65536, "pipeline-parallel ranks (default 1)"),              \
        OPT_INT("vpp", "n", &(t)->vpp, 1, 65536, "virtual stages on each pipeline rank (default 1)"), \
        OPT_INT("ep", "n", &(t)->ep, 1, 65536, "expert-parallel ranks (default 1)"),                \
        OPT_INT("etp", "n", &(t)->etp, 1, 65536, "tensor-parallel ranks inside an expert (default 1)"), \
        OPT_TEXT("layout", "str", (t)->layout, sizeof(t)->layout,                                   \
            "pipeline layout, like 'Et*18|t*20|t*20|t*20mL'")
/* clang-format on */

#endif
