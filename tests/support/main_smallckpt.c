/* smallckpt DIR [tpN,ppN,epN…] [zstd] [mxfp8|fp8] [training] [changed] [nomtp] [split]: writes a small checkpoint. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/smallckpt.h"

int main(int argc, char **argv)
{
    struct smallckpt_options o = {0};
    struct glm_error err = {0};
    if (argc < 2)
        return 2;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "zstd") == 0)
            o.volumes.encoding = ENC_ZSTD;
        else if (strcmp(argv[i], "mxfp8") == 0)
            o.form = SMALL_MXFP8;
        else if (strcmp(argv[i], "fp8") == 0)
            o.form = SMALL_FP8;
        else if (strcmp(argv[i], "training") == 0)
            o.training = true;
        else if (strcmp(argv[i], "changed") == 0)
            o.changed = true;
        else if (strcmp(argv[i], "nomtp") == 0)
            o.no_mtp = true;
        else if (strcmp(argv[i], "split") == 0)
            o.volumes.shard_size = 100000;
        else
            topology_parse(&o.topo, argv[i], &err);
    }
    if (mkdir(argv[1], 0777) != 0 && errno != EEXIST)
        glm_fail_errno(&err, "%s", argv[1]);
    if (err.code == GLM_OK)
        smallckpt_write(argv[1], &o, &err);
    if (err.code != GLM_OK)
        fprintf(stderr, "smallckpt: %s\n", err.text);
    return glm_exit_status(&err);
}
