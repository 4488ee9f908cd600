/* bench_codec FILE CHUNK_BYTES: our codecs, in one thread, on a file of raw BF16.
 *
 * Reads the file into memory and answers each line on stdin with one JSON object: CPU seconds of
 * one pass over all of it for each operation, and the packed size. The caller decides how often
 * and what runs in between, so a peer can alternate with us. The first pass after the start also
 * pays for fresh pages: the caller drops it. Every pass checks that unpacking gives the data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/packed.h"
#include "convert/codec.h"

enum { COLS = 4096 };

struct bench {
    uint16_t *x; /* the data, cut to whole rows */
    unsigned char *packed, *back, *q, *scale;
    size_t size, chunk, chunks, bound, stored;
    size_t *stored_size;
    uint32_t *mask;
    struct packer *packer;
};

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Noreturn void stop(const char *what)
{
    fprintf(stderr, "bench_codec: %s\n", what);
    exit(4);
}

static void *get(size_t size)
{
    void *p = malloc(size);

    if (p == NULL)
        stop("no memory");
    return p;
}

static void open_data(struct bench *b, const char *path)
{
    FILE *f = fopen(path, "rb");
    long size;

    if (f == NULL || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 2 * COLS)
        stop("cannot read the data");
    b->size = (size_t)size / (2 * COLS) * (2 * COLS);
    b->x = get(b->size);
    rewind(f);
    if (fread(b->x, 1, b->size, f) != b->size)
        stop("cannot read the data");
    fclose(f);
}

static size_t chunk_size(const struct bench *b, size_t i)
{
    const size_t left = b->size - i * b->chunk;

    return left < b->chunk ? left : b->chunk;
}

static void pack(struct bench *b)
{
    struct glm_error err = {0};

    b->stored = 0;
    for (size_t i = 0; i < b->chunks; i++) {
        if (packer_pack(b->packer, (const char *)b->x + i * b->chunk, chunk_size(b, i), 2,
                b->packed + i * b->bound, &b->stored_size[i], &b->mask[i], &err)
            != 0)
            stop(err.text);
        b->stored += b->stored_size[i];
    }
}

static void unpack(struct bench *b)
{
    struct glm_error err = {0};

    for (size_t i = 0; i < b->chunks; i++)
        if (packer_unpack(b->packer, b->packed + i * b->bound, b->stored_size[i],
                b->mask[i], b->back + i * b->chunk, chunk_size(b, i), 2, &err)
            != 0)
            stop(err.text);
}

static double time_of(struct bench *b, int operation)
{
    static const int64_t block[2] = {128, 128};
    const int64_t rows = (int64_t)(b->size / (2 * COLS));
    const double begin = cpu_s();

    switch (operation) {
    case 0:
        pack(b);
        break;
    case 1:
        unpack(b);
        break;
    case 2:
        codec_mxfp8_encode(b->x, GLM_BF16, rows, COLS, RULE_TE_ROUND_UP, b->q, b->scale);
        break;
    case 3:
        codec_mxfp8_decode(b->q, b->scale, rows, COLS, b->back, GLM_BF16);
        break;
    case 4:
        codec_fp8_encode(b->x, GLM_BF16, rows, COLS, block, RULE_AMAX, b->q,
            (float *)(void *)b->scale);
        break;
    default:
        codec_fp8_decode(
            b->q, (float *)(void *)b->scale, rows, COLS, block, b->back, GLM_BF16);
        break;
    }
    return cpu_s() - begin;
}

static void pass(struct bench *b)
{
    static const char *const names[] = {
        "pack", "unpack", "mxfp8_encode", "mxfp8_decode", "fp8_encode", "fp8_decode"};

    printf("{");
    for (int i = 0; i < 6; i++) {
        printf("\"%s\": %.6f, ", names[i], time_of(b, i));
        if (i == 1 && memcmp(b->x, b->back, b->size) != 0)
            stop("unpacking gave other data");
    }
    printf("\"size\": %zu, \"stored\": %zu}\n", b->size, b->stored);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    char line[64];

    if (argc != 3 || (b.chunk = strtoul(argv[2], NULL, 10)) == 0 || b.chunk % 2 != 0)
        stop("usage: bench_codec FILE CHUNK_BYTES");
    open_data(&b, argv[1]);
    b.chunks = (b.size + b.chunk - 1) / b.chunk;
    b.bound = packer_bound(b.chunk);
    b.packed = get(b.chunks * b.bound);
    b.back = get(b.size);
    b.q = get(b.size / 2);
    b.scale = get(b.size / 64);
    b.stored_size = get(b.chunks * sizeof *b.stored_size);
    b.mask = get(b.chunks * sizeof *b.mask);
    b.packer = packer_new();
    if (b.packer == NULL)
        stop("no memory");
    while (fgets(line, sizeof line, stdin) != NULL)
        pass(&b);
    packer_free(b.packer);
    free(b.x);
    free(b.packed);
    free(b.back);
    free(b.q);
    free(b.scale);
    free(b.stored_size);
    free(b.mask);
    return 0;
}
