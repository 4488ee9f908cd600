/* Fuzzes the opening and checking of our token dataset.
 *
 * Covers: train/tokens_block.c train/tokens_h5.c ckpt/userblock.c
 *
 * Input: one byte of flags, then the file. Flag 1: the digests and the size are made right first, so
 * that what lies behind them is reached. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/tokens.h"
#include "train/tokens_block.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];
static int file = -1;

static void fuzz_remove(void)
{
    unlink(path);
}

static void fuzz_file(void)
{
    snprintf(path, sizeof path, "%s/fuzz-tokens-XXXXXX",
        access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    file = mkstemp(path);
    if (file < 0)
        abort();
    atexit(fuzz_remove);
}

/* Takes the numbers as they are and seals them; parts that lie inside get their true digests. */
static void fuzz_reseal(uint8_t *whole, size_t size)
{
    struct tokens_block b = {.size = size, .dtype = GLM_U16};
    char text[TOKENS_BLOCK + 1];
    if (size < TOKENS_BLOCK)
        return;
    memcpy(text, whole, TOKENS_BLOCK);
    text[TOKENS_BLOCK] = '\0';
    if (strstr(text, "I32") != NULL)
        b.dtype = GLM_I32;
    const char *s = strstr(text, "largest ");
    unsigned long long offset, count;
    if (s != NULL && sscanf(s, "largest %llu", &count) == 1)
        b.largest = count;
    for (int i = 0; i < TOKENS_PARTS && s != NULL; i++) {
        char word[16];
        snprintf(word, sizeof word, "\n%s ", tokens_part_name[i]);
        s = strstr(s, word);
        if (s == NULL || sscanf(s + strlen(word), "%llu %llu", &offset, &count) != 2)
            break;
        b.part[i].offset = offset;
        b.part[i].count = count;
        const uint64_t bytes = tokens_part_bytes(&b, (enum tokens_part)i);
        if (offset <= size && bytes <= size - offset)
            digest_of(whole + offset, bytes, b.part[i].sha256);
    }
    tokens_block_print(&b, whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct glm_error err = {0};
    struct tokens t;
    int64_t largest;
    if (size < 1)
        return 0;
    if (file < 0)
        fuzz_file();
    uint8_t *const whole = malloc(size);
    memcpy(whole, data + 1, size - 1);
    if (data[0] & 1)
        fuzz_reseal(whole, size - 1);
    if (ftruncate(file, 0) != 0
        || pwrite(file, whole, size - 1, 0) != (ssize_t)(size - 1))
        abort();
    free(whole);
    const int code = tokens_open(&t, path, &err);
    if (code != (int)err.code || (code != 0) != (err.text[0] != '\0'))
        abort();
    if (code != 0)
        return 0;
    int64_t sum = 0;
    for (int64_t d = 0; d < t.documents; d++)
        sum += tokens_length(&t, d);
    if (sum != t.count)
        abort();
    if (tokens_check(&t, 0, &largest, NULL, &err) != GLM_OK && err.code != GLM_EMISMATCH)
        abort();
    tokens_close(&t);
    return 0;
}
