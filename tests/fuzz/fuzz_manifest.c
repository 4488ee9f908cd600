/* Fuzzes the manifest's parser, with the table of fixtures/configs/mini.json; run from the root.
 *
 * Covers: ckpt/manifest_parse.c ckpt/manifest_lines.c ckpt/manifest_tensors.c ckpt/manifest_cover.c
 *
 * Input: the text. What is accepted must print back to the same bytes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct table *fuzz_table(void)
{
    static struct table *t;
    char text[8192];
    struct glm_error err = {0};
    struct model_config config;
    if (t)
        return t;
    FILE *f = fopen("fixtures/configs/mini.json", "rb");
    if (!f)
        abort();
    const size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    if (config_parse(&config, "mini.json", text, n, &err) != 0
        || table_build(&t, &config, false, &err) != 0)
        abort();
    return t;
}

static int count_files(void *ctx, const struct ckpt_file *f)
{
    *(size_t *)ctx += strlen(f->path);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct glm_error err = {0};
    struct manifest *m = NULL;
    struct manifest_peek peek;
    size_t paths = 0;
    char *text = malloc(size + 1),
         *again = NULL; /* exact but for one: a read too far is seen */
    if (size)
        memcpy(text, data, size);
    manifest_each_file(text, size, count_files, &paths);
    if (manifest_peek(&peek, "index.h5", text, size, &err) == 0)
        manifest_parse(&m, fuzz_table(), "index.h5", text, size, &err);
    if ((err.code == GLM_OK) != (m != NULL) || (err.code != GLM_OK && err.text[0] == '\0')
        || (err.code != GLM_OK && err.code != GLM_EFORMAT))
        abort();
    if (m) {
        size_t n = 0;
        if (manifest_print(m, &again, &n, &err) != 0 || n != size
            || memcmp(again, text, n) != 0)
            abort();
    }
    free(again);
    manifest_free(m);
    free(text);
    return 0;
}
