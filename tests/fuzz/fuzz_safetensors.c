/* Fuzzes the reader of safetensors headers.
 *
 * Covers: convert/safetensors.c convert/safetensors_build.c convert/jsonin.c
 *
 * Input: one byte of mode, then
 *   odd   a file as it is, read by path (through a memory file)
 *   even  two bytes, the length of the data behind the header, then the header's JSON, whose length
 *         is put in front; so that mutations reach the entries
 * What is accepted must keep the promises of the header file, and survive being written again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "convert/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "promise broken: %s\n", what);
        abort();
    }
}

static void check(const struct st_header *h)
{
    struct st_tensor *copy = calloc((size_t)h->count + 1, sizeof *copy);
    struct glm_error err = {0};
    struct st_header again;
    void *bytes;
    size_t length;
    uint64_t total = 0;
    for (int64_t i = 0; i < h->count; i++) {
        const struct st_tensor *t = &h->tensors[i];
        require(
            t->name[t->name_length] == '\0' && strlen(t->name) == t->name_length, "name");
        require(i == 0 || strcmp(t[-1].name, t->name) < 0, "sorted, each once");
        require(t->begin <= t->end && t->end <= h->file_size - h->data_start,
            "inside the file");
        require(st_find(h, t->name, t->name_length) == t, "found");
        total += t->end - t->begin;
        copy[i] = *t;
    }
    require(total == h->file_size - h->data_start, "the data is covered");
    require(st_build(copy, h->count, 8, &bytes, &length, &err) == 0, "can be written");
    require(
        st_parse(&again, "again", bytes, length, length + total, &err) == 0, "and read");
    require(again.count == h->count, "with as many tensors");
    st_clear(&again);
    free(bytes);
    free(copy);
}

static int parse_file(
    struct st_header *h, const uint8_t *data, size_t size, struct glm_error *err)
{
    static int fd = -1;
    static char path[64];
    void *bytes = NULL;
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    const int code = st_read(h, path, &bytes, err);
    require((bytes != NULL) == (code == 0), "header bytes on success only");
    free(bytes);
    return code;
}

static int parse_text(
    struct st_header *h, const uint8_t *data, size_t size, struct glm_error *err)
{
    const size_t n = size - 2;
    uint8_t *bytes = malloc(n + 8);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, data + 2, n);
    const uint64_t behind = (uint64_t)(data[0] | data[1] << 8);
    const int code = st_parse(h, "fuzz", bytes, n + 8, n + 8 + behind, err);
    free(bytes);
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct glm_error err = {0};
    struct st_header h;
    if (size < 1 || (data[0] % 2 == 0 && size < 3))
        return 0;
    const int code = data[0] % 2 ? parse_file(&h, data + 1, size - 1, &err)
                                 : parse_text(&h, data + 1, size - 1, &err);
    require(code == (int)err.code && (code != 0) == (err.text[0] != '\0'), "a sentence");
    if (code == 0)
        check(&h);
    else
        require(!h.tensors && !h.arena, "nothing is left after a failure");
    st_clear(&h);
    return 0;
}
