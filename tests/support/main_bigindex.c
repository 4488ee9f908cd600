/* bigindex CONFIG OUT TOPOLOGY: a checkpoint of any size without its data.
 *
 * The shards are real skeletons over holes, the index is complete, and only the tile digests are
 * made up (they are those of no data). What lists, plans or checks the structure of a 1.5 TB
 * checkpoint can so be measured on a small disk; reading its data fails, as it must. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/ckpt.h"
#include "tests/support/rng.h"

static int fail(const struct glm_error *err)
{
    fprintf(stderr, "bigindex: %s\n", err->text);
    return 1;
}

static int add_rows(struct manifest *m, const struct table *t, struct glm_error *err)
{
    for (int64_t i = 0; i < t->count; i++) {
        const struct table_entry *e = &t->entries[i];
        if (manifest_add_tensor(
                m, e->name, SECTION_WEIGHT, e->dtype, e->shape, e->rank, e->stack, e)
            == NULL)
            return glm_fail(err, GLM_ENOMEM, "no memory");
    }
    return manifest_index(m, err);
}

static int make_shards(struct manifest *m, const char *out, struct glm_error *err)
{
    for (int64_t i = 0; i < m->shard_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", out, m->shards[i].file);
        if (shard_create_plain(m, i, path, err) != GLM_OK
            || shard_skeleton(m, NULL, i, path, m->shards[i].skeleton, err) != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    struct model_config config = {0};
    struct table *table;
    struct topology topology;
    struct placement *placement;
    void *text;
    size_t size;
    char path[4096];

    if (argc != 4) {
        fprintf(stderr, "usage: bigindex CONFIG OUT TOPOLOGY\n");
        return 2;
    }
    if (dio_slurp(argv[1], 1 << 20, &text, &size, &err) != GLM_OK
        || config_parse(&config, argv[1], text, size, &err) != GLM_OK
        || table_build(&table, &config, false, &err) != GLM_OK
        || topology_parse(&topology, argv[3], &err) != GLM_OK
        || placement_init(&placement, table, &topology, &err) != GLM_OK)
        return fail(&err);
    struct manifest *m = manifest_new(table);
    if (m == NULL || add_rows(m, table, &err) != GLM_OK
        || volumes_plan(m, placement, &(struct volumes_options){0}, &err) != GLM_OK)
        return fail(&err);
    manifest_add_file(m, "config.json", false, text, size);
    manifest_add_prov(m, "command", "bigindex");
    unsigned char *tiles = malloc((size_t)m->tile_count * DIGEST_SIZE);
    if (tiles == NULL || mkdir(argv[2], 0777) != 0) {
        perror(argv[2]);
        return 1;
    }
    for (int64_t i = 0; i < m->tile_count * DIGEST_SIZE / 8; i++) {
        const uint64_t x = rng_mix((uint64_t)i);
        memcpy(tiles + i * 8, &x, 8);
    }
    snprintf(path, sizeof path, "%s/index.h5", argv[2]);
    if (make_shards(m, argv[2], &err) != GLM_OK || manifest_seal(m, tiles, &err) != GLM_OK
        || index_write(m, tiles, NULL, path, &err) != GLM_OK)
        return fail(&err);
    manifest_free(m);
    table_free(table);
    free(tiles);
    free(text);
    return 0;
}
