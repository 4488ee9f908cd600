/* What both formats share: telling them apart, reading ids, checking all of them. */
#include "train/tokens_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKENS_RAW = 1 << 16, TOKENS_PATH = 4096 };

const char *tokens_format_name(enum tokens_format format)
{
    return format == TOKENS_GLM ? "glm" : "megatron";
}

/* ---- opening -------------------------------------------------------------------------------- */

static bool tokens_ends(const char *path, const char *end)
{
    const size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

static bool tokens_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int tokens_open_pair(
    struct tokens *t, const char *prefix, int length, struct glm_error *err)
{
    char idx[TOKENS_PATH], bin[TOKENS_PATH];
    snprintf(idx, sizeof idx, "%.*s.idx", length, prefix);
    snprintf(bin, sizeof bin, "%.*s.bin", length, prefix);
    return tokens_megatron_open(t, idx, bin, err);
}

static int tokens_open_any(struct tokens *t, const char *path, struct glm_error *err)
{
    const size_t n = strlen(path);
    char idx[TOKENS_PATH];
    if (n + sizeof ".idx" > sizeof idx)
        return glm_fail(err, GLM_EUSAGE, "a path of %zu bytes: at most %d can be", n,
            TOKENS_PATH - 5);
    if (tokens_ends(path, ".idx") || tokens_ends(path, ".bin"))
        return tokens_open_pair(t, path, (int)n - 4, err);
    if (tokens_is_file(path))
        return tokens_glm_open(t, path, err);
    snprintf(idx, sizeof idx, "%s.idx", path);
    if (tokens_is_file(idx))
        return tokens_open_pair(t, path, (int)n, err);
    if (access(path, F_OK) == 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: not a token dataset: expected a file that glm-data built, or a prefix "
            "of "
            "Megatron's .idx and .bin",
            path);
    return glm_fail(err, GLM_EFORMAT, "%s: there is neither this file nor %s", path, idx);
}

int tokens_open(struct tokens *t, const char *path, struct glm_error *err)
{
    *t = (struct tokens){.file = {.fd = -1, .direct = -1}, .largest = -1};
    if (tokens_open_any(t, path, err) != GLM_OK) {
        tokens_close(t);
        return err->code;
    }
    t->count = t->start[t->documents];
    t->shortest = t->documents > 0 ? INT64_MAX : 0;
    for (int64_t d = 0; d < t->documents; d++) {
        const int64_t n = tokens_length(t, d);
        if (n < 0) {
            glm_fail(err, GLM_EFORMAT, "%s: changed while it was read", path);
            tokens_close(t);
            return err->code;
        }
        t->empty += n == 0;
        t->shortest = n < t->shortest ? n : t->shortest;
        t->longest = n > t->longest ? n : t->longest;
    }
    return GLM_OK;
}

void tokens_close(struct tokens *t)
{
    dio_close(&t->file);
    free(t->start);
    *t = (struct tokens){.file = {.fd = -1, .direct = -1}};
}

/* ---- reading -------------------------------------------------------------------------------- */

static int64_t tokens_element(enum glm_dtype dtype, const unsigned char *at)
{
    union {
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        int32_t i32;
        int64_t i64;
    } v;
    switch (dtype) {
    case GLM_U8:
        return *at;
    case GLM_I8:
        memcpy(&v.i8, at, 1);
        return v.i8;
    case GLM_U16:
        memcpy(&v.u16, at, 2);
        return v.u16;
    case GLM_I16:
        memcpy(&v.i16, at, 2);
        return v.i16;
    case GLM_I32:
        memcpy(&v.i32, at, 4);
        return v.i32;
    default:
        memcpy(&v.i64, at, 8);
        return v.i64;
    }
}

static int tokens_bad_id(const struct tokens *t, int64_t document, int64_t position,
    int64_t id, int64_t vocab, struct glm_error *err)
{
    return glm_fail(err, GLM_EFORMAT,
        "%s: document %lld, position %lld: token id %lld is outside the vocabulary (0 to "
        "%lld)",
        t->file.path, (long long)document, (long long)position, (long long)id,
        (long long)vocab - 1);
}

int tokens_read(const struct tokens *t, int64_t document, int64_t first, int64_t n,
    int64_t vocab, int32_t *out, uint8_t *mask, struct glm_error *err)
{
    unsigned char raw[TOKENS_RAW];
    const size_t size = glm_dtype_size(t->dtype);
    const int64_t room = (int64_t)(sizeof raw / size);
    const uint64_t from = (uint64_t)(t->start[document] + first);
    const int64_t limit = vocab > 0 ? vocab : (int64_t)INT32_MAX + 1;
    for (int64_t done = 0; done < n;) {
        const int64_t k = n - done < room ? n - done : room;
        if (dio_pread(&t->file, t->base + (from + (uint64_t)done) * size,
                (size_t)k * size, raw, err)
            != GLM_OK)
            return err->code;
        for (int64_t i = 0; i < k; i++) {
            const int64_t id = tokens_element(t->dtype, raw + (size_t)i * size);
            if (id < 0 || id >= limit)
                return tokens_bad_id(t, document, first + done + i, id, limit, err);
            out[done + i] = (int32_t)id;
        }
        done += k;
    }
    if (mask == NULL || n == 0)
        return GLM_OK;
    if (t->mask_base == 0)
        memset(mask, 1, (size_t)n);
    else if (dio_pread(&t->file, t->mask_base + from, (size_t)n, mask, err) == GLM_OK)
        for (int64_t i = 0; i < n; i++)
            if (mask[i] > 1)
                return glm_fail(err, GLM_EFORMAT,
                    "%s: document %lld, position %lld: loss mask %d, expected 0 or 1",
                    t->file.path, (long long)document, (long long)(first + i), mask[i]);
    return err->code;
}

/* ---- checking ------------------------------------------------------------------------------- */

static int tokens_check_ids(const struct tokens *t, int64_t vocab, int64_t *largest,
    const struct glm_events *events, struct glm_error *err)
{
    enum { PIECE = 8192 };
    int32_t ids[PIECE];
    uint8_t mask[PIECE];
    for (int64_t d = 0; d < t->documents; d++)
        for (int64_t at = 0; at < tokens_length(t, d); at += PIECE) {
            const int64_t left = tokens_length(t, d) - at,
                          n = left < PIECE ? left : PIECE;
            if (glm_events_stop(events) != 0) {
                glm_fail(err, GLM_ESTOPPED, "stopped while checking %s", t->file.path);
                err->sys_errno = glm_events_stop(events);
                return err->code;
            }
            if (tokens_read(t, d, at, n, vocab, ids, mask, err) != GLM_OK) {
                if (err->code == GLM_EFORMAT)
                    err->code = GLM_EMISMATCH;
                return err->code;
            }
            for (int64_t i = 0; i < n; i++)
                *largest = ids[i] > *largest ? ids[i] : *largest;
            glm_events_progress(events, "check",
                (uint64_t)(t->start[d] + at + n) * glm_dtype_size(t->dtype),
                (uint64_t)t->count * glm_dtype_size(t->dtype));
        }
    return GLM_OK;
}

int tokens_check(const struct tokens *t, int64_t vocab, int64_t *largest,
    const struct glm_events *events, struct glm_error *err)
{
    *largest = -1;
    if (t->format == TOKENS_GLM && tokens_glm_check(t, events, err) != GLM_OK)
        return err->code;
    if (tokens_check_ids(t, vocab, largest, events, err) != GLM_OK)
        return err->code;
    if (t->largest >= 0 && *largest != t->largest)
        return glm_fail(err, GLM_EMISMATCH,
            "%s: the largest id is %lld, its user block says %lld", t->file.path,
            (long long)*largest, (long long)t->largest);
    return GLM_OK;
}
