/* fullindex DIR CONFIG [tpN,ppN,epN…] [zstd|shards]: a checkpoint of any size without its data. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/fullindex.h"

int main(int argc, char **argv)
{
    struct fullindex_options o = {0};
    struct glm_error err = {0};
    if (argc < 3)
        return 2;
    o.config = argv[2];
    for (int i = 3; i < argc; i++)
        if (strcmp(argv[i], "zstd") == 0)
            o.volumes.encoding = ENC_ZSTD;
        else if (strcmp(argv[i], "shards") == 0)
            o.shards = true;
        else
            topology_parse(&o.topo, argv[i], &err);
    if (mkdir(argv[1], 0777) != 0 && errno != EEXIST)
        glm_fail_errno(&err, "%s", argv[1]);
    if (err.code == GLM_OK)
        fullindex_write(argv[1], &o, &err);
    if (err.code != GLM_OK)
        fprintf(stderr, "fullindex: %s\n", err.text);
    return glm_exit_status(&err);
}
