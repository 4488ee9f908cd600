/* trainstate CKPT OUT [--zstd] [--derived] [--codes] [--shard-size BYTES] [tpN,ppN,epN…]: a
 * training state around the weights of a checkpoint. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/trainstate.h"

int main(int argc, char **argv)
{
    struct trainstate_options o = {.threads = 2};
    struct topology topology = {0};
    struct glm_error err = {0};

    if (argc < 3) {
        fprintf(stderr,
            "usage: trainstate CKPT OUT [--zstd] [--derived] [--codes] "
            "[--shard-size BYTES] [TOPOLOGY]\n");
        return 2;
    }
    o.ckpt = argv[1];
    o.out = argv[2];
    for (int i = 3; i < argc && err.code == GLM_OK; i++) {
        if (strcmp(argv[i], "--zstd") == 0) {
            o.zstd = true;
        } else if (strcmp(argv[i], "--derived") == 0) {
            o.derived = true;
        } else if (strcmp(argv[i], "--codes") == 0) {
            o.codes = true;
        } else if (strcmp(argv[i], "--shard-size") == 0 && i + 1 < argc) {
            o.shard_size = strtoull(argv[++i], NULL, 0);
        } else {
            topology_parse(&topology, argv[i], &err);
            o.topology = &topology;
        }
    }
    if (err.code == GLM_OK)
        trainstate_write(&o, &err);
    if (err.code != GLM_OK)
        fprintf(stderr, "trainstate: %s\n", err.text);
    return glm_exit_status(&err);
}
