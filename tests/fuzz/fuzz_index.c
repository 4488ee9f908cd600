/* Fuzzes the opening of index.h5: user block, tables, side files.
 *
 * Covers: ckpt/index.c ckpt/index_block.c ckpt/userblock.c
 *
 * Input: one byte of flags, then the file. Flag 1: the digests of the user block are made right
 * first, so that what lies behind them is reached. Flag 2: a journal lies beside the index. Flag 4:
 * there is no index; with flag 8 there is a shard. Flag 8 alone: there is no folder. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/index.h"
#include "ckpt/index_block.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64];
static int file = -1;

static const char *fuzz_path(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void fuzz_remove(void)
{
    unlink(fuzz_path("index.h5"));
    rmdir(folder);
}

static void fuzz_beside(const char *name)
{
    const int fd = open(fuzz_path(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        abort();
    close(fd);
}

static void fuzz_folder(void)
{
    snprintf(folder, sizeof folder, "%s/fuzz-index-XXXXXX",
        access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        abort();
    file = open(fuzz_path("index.h5"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        abort();
    atexit(fuzz_remove);
}

/* The lines up to the digests are taken as they are; what they say of lengths is kept if it can be
 * read, so the checks of extents are reached too. */
static void fuzz_reseal(uint8_t *whole, size_t size)
{
    struct index_block b = {.size = size};
    char text[INDEX_BLOCK + 1];
    const char *s = text;
    unsigned long long offset, bytes;
    int n = 0;
    if (size < INDEX_BLOCK)
        return;
    memcpy(text, whole, INDEX_BLOCK);
    text[INDEX_BLOCK] = '\0';
    for (int i = 0; i < INDEX_PARTS
         && (s = strstr(s,
                 i == 0       ? "manifest "
                     : i == 1 ? "tiles "
                              : "chunks "));
         i++) {
        n = 0;
        if (sscanf(s, "%*s %llu %llu%n", &offset, &bytes, &n) != 2)
            break;
        b.part[i].offset = offset;
        b.part[i].bytes = bytes;
        if (offset <= size && bytes <= size - offset)
            digest_of(whole + offset, bytes, b.part[i].sha256);
        s += n;
    }
    digest_of(whole + INDEX_BLOCK, size - INDEX_BLOCK, b.sha256);
    index_block_print(&b, whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct glm_error err = {0};
    struct index *ix = NULL;
    if (size < 1)
        return 0;
    if (file < 0)
        fuzz_folder();
    uint8_t *const whole = malloc(size);
    memcpy(whole, data + 1, size - 1);
    if (data[0] & 1)
        fuzz_reseal(whole, size - 1);
    if (pwrite(file, whole, size - 1, 0) != (ssize_t)(size - 1)
        || ftruncate(file, (off_t)(size - 1)) != 0)
        abort();
    free(whole);
    if (data[0] & 2)
        fuzz_beside("journal");
    if ((data[0] & 12) == 12)
        fuzz_beside("shard-p000-t000-0000.h5");
    char away[128];
    snprintf(away, sizeof away, "%s", fuzz_path("away"));
    if (data[0] & 4)
        rename(fuzz_path("index.h5"), away);
    index_open(&ix, (data[0] & 12) == 8 ? fuzz_path("none") : folder, &err);
    if (data[0] & 4)
        rename(away, fuzz_path("index.h5"));
    if (data[0] & 2)
        unlink(fuzz_path("journal"));
    if ((data[0] & 12) == 12)
        unlink(fuzz_path("shard-p000-t000-0000.h5"));
    if ((err.code == GLM_OK) != (ix != NULL)
        || (err.code != GLM_OK && err.text[0] == '\0'))
        abort();
    for (int64_t i = 0; ix && i < ix->manifest->file_count; i++) {
        void *bytes = NULL;
        struct glm_error read = {0};
        const struct ckpt_file *const f = &ix->manifest->files[i];
        if (index_find_file(ix, f->path, f->header) != f)
            abort();
        index_file(ix, f, &bytes, &read);
        free(bytes);
    }
    index_close(ix);
    return 0;
}
