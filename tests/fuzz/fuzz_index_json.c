/* Fuzzes the reader of model.safetensors.index.json against two small headers.
 *
 * Covers: convert/hfdir_index.c
 *
 * Input: the text of the index. The files: a.safetensors has x, y, both; b.safetensors has z and,
 * if the text's first byte is a space, both as well. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/hfdir_inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct hf_file make_file(
    const char *name, const char *const *tensors, int64_t count)
{
    struct st_tensor list[4];
    struct glm_error err = {0};
    struct hf_file f = {.name = strdup(name)};
    void *bytes;
    size_t n;
    for (int64_t i = 0; i < count; i++)
        list[i] = (struct st_tensor){.name = tensors[i],
            .name_length = strlen(tensors[i]),
            .dtype = GLM_U8,
            .rank = 0};
    if (st_build(list, count, 8, &bytes, &n, &err) != 0
        || st_parse(&f.header, name, bytes, n, n + (uint64_t)count, &err) != 0)
        abort();
    f.header_bytes = bytes;
    return f;
}

/* By path now and then too: reading a file is slow, and its text is parsed the same. */
static void read_by_path(struct hf_source *s, const uint8_t *data, size_t size)
{
    static char folder[64], path[128];
    struct glm_error err = {0};
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "/tmp/fuzz-index-XXXXXX");
        if (!mkdtemp(folder))
            abort();
    }
    snprintf(path, sizeof path, "%s/i.json", folder);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
    s->dir = folder;
    hfdir_index(s, "i.json", &err);
    unlink(path);
    rmdir(folder);
    folder[0] = '\0';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hf_file files[2][2];
    static unsigned runs;
    if (!files[0][0].name) {
        static const char *const a[] = {"both", "x", "y"}, *const b[] = {"z", "both"};
        for (int i = 0; i < 2; i++) {
            files[i][0] = make_file("a.safetensors", a, 3);
            files[i][1] = make_file("b.safetensors", b, 1 + i);
        }
    }
    struct glm_error err = {0};
    struct hf_source s = {.dir = (char *)(uintptr_t) "fuzz",
        .files = files[size > 0 && data[0] == ' '],
        .file_count = 2};
    char *text =
        malloc(size + 1); /* exactly as long as it is, so that ASan sees a step beyond */
    char *exact = size ? realloc(text, size) : text;
    if (size)
        memcpy(exact, data, size);
    const int code = hfdir_index_text(&s, "index", exact, size, &err);
    if (code != (int)err.code || (code != 0) != (err.text[0] != '\0'))
        abort();
    free(exact);
    if (runs++ % 1024 == 0)
        read_by_path(&s, data, size);
    for (int i = 0; i < s.warning_count; i++)
        free(s.warnings[i]);
    free(s.warnings);
    return 0;
}
