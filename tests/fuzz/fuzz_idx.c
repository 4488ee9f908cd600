/* Fuzzes the reader of Megatron's .idx, and reads every document of what it accepts.
 *
 * Covers: train/tokens_megatron.c
 *
 * Input: four bytes, the length of the .bin (a hole of zeros), then the .idx. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64], idx_path[80], bin_path[80];
static int idx = -1, bin = -1;

static void fuzz_remove(void)
{
    unlink(idx_path);
    unlink(bin_path);
    rmdir(folder);
}

static void fuzz_folder(void)
{
    snprintf(folder, sizeof folder, "%s/fuzz-idx-XXXXXX",
        access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        abort();
    snprintf(idx_path, sizeof idx_path, "%s/x.idx", folder);
    snprintf(bin_path, sizeof bin_path, "%s/x.bin", folder);
    idx = open(idx_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    bin = open(bin_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (idx < 0 || bin < 0)
        abort();
    atexit(fuzz_remove);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct glm_error err = {0};
    struct tokens t;
    uint32_t length;
    int64_t largest;
    if (size < sizeof length)
        return 0;
    if (idx < 0)
        fuzz_folder();
    memcpy(&length, data, sizeof length);
    if (ftruncate(bin, length % (1 << 20)) != 0 || ftruncate(idx, 0) != 0
        || pwrite(idx, data + 4, size - 4, 0) != (ssize_t)(size - 4))
        abort();
    const int code = tokens_open(&t, idx_path, &err);
    if (code != (int)err.code || (code != 0) != (err.text[0] != '\0'))
        abort();
    if (code != 0)
        return 0;
    int64_t sum = 0;
    for (int64_t d = 0; d < t.documents; d++)
        sum += tokens_length(&t, d);
    if (sum != t.count || tokens_check(&t, 1, &largest, NULL, &err) != GLM_OK)
        abort(); /* zeros are tokens of any vocabulary */
    tokens_close(&t);
    return 0;
}
