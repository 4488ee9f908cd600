/* Builds a strict safetensors header: brace first, spaces behind, tensors chained in the given
 * order. What is built is parsed again before it is given out, so that no rule of the format can be
 * broken by a caller: duplicate names, rank, whole bytes, the limit of the header. */
#include "convert/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/checked.h"

struct text {
    char *bytes;
    size_t size, room;
    bool failed;
};

static void append(struct text *t, const char *bytes, size_t size)
{
    if (size > t->room - t->size && !t->failed) {
        const size_t room = (t->size + size) * 2 + 256;
        char *grown = realloc(t->bytes, room);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->bytes = grown;
        t->room = room;
    }
    if (t->failed)
        return;
    memcpy(t->bytes + t->size, bytes, size);
    t->size += size;
}

static void GLM_PRINTF(2, 3) append_format(struct text *t, const char *fmt, ...)
{
    char piece[128];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(piece, sizeof piece, fmt, args);
    va_end(args);
    append(t, piece, (size_t)n);
}

/* The shortest spelling, so that what could be read is not too long to be read again. */
static void append_string(struct text *t, const char *s, size_t size)
{
    static const char plain[] = "\"\\\b\f\n\r\t", escaped[] = "\"\\bfnrt";
    append(t, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)s[i];
        const char *const at = memchr(plain, c, sizeof plain - 1);
        if (at != NULL)
            append_format(t, "\\%c", escaped[at - plain]);
        else if (c < 0x20)
            append_format(t, "\\u%04x", c);
        else
            append(t, &s[i], 1);
    }
    append(t, "\"", 1);
}

static void append_tensor(struct text *t, const struct st_tensor *s)
{
    append(t, ",", 1);
    append_string(t, s->name, s->name_length);
    append_format(t, ":{\"dtype\":\"%s\",\"shape\":[", glm_dtype_name(s->dtype));
    for (int i = 0; i < s->rank; i++)
        append_format(t, "%s%" PRId64, i ? "," : "", s->shape[i]);
    append_format(t, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", s->begin, s->end);
}

/* Fills in begin and end: each tensor right behind the one before. */
static int chain(
    struct st_tensor *tensors, int64_t count, uint64_t *total, struct glm_error *err)
{
    *total = 0;
    for (int64_t i = 0; i < count; i++) {
        struct st_tensor *t = &tensors[i];
        int64_t elements;
        uint64_t bits;
        t->begin = *total;
        if (!checked_count(t->shape, t->rank, &elements)
            || !checked_mul_u64(
                (uint64_t)elements, (uint64_t)glm_dtype_bits(t->dtype), &bits)
            || !checked_add_u64(*total, bits / 8, total))
            return glm_fail(err, GLM_EFORMAT,
                "safetensors header: tensor '%s': its size overflows 64 bits", t->name);
        t->end = *total;
    }
    return 0;
}

int st_build(struct st_tensor *tensors, int64_t count, size_t align, void **bytes,
    size_t *size, struct glm_error *err)
{
    static const char head[] = "{\"__metadata__\":{\"format\":\"pt\"}";
    const char length[8] = {0};
    struct text t = {0};
    struct st_header check = {0};
    uint64_t total;
    *bytes = NULL;
    *size = 0;
    if (chain(tensors, count, &total, err) != 0)
        return err->code;
    append(&t, length, sizeof length);
    append(&t, head, sizeof head - 1);
    for (int64_t i = 0; i < count; i++)
        append_tensor(&t, &tensors[i]);
    append(&t, "}", 1);
    while (!t.failed && align > 1 && t.size % align != 0)
        append(&t, " ", 1);
    if (t.failed) {
        glm_fail(err, GLM_ENOMEM, "safetensors header: no memory for %" PRId64 " tensors",
            count);
        goto out;
    }
    for (size_t i = 0; i < 8; i++)
        t.bytes[i] = (char)((uint64_t)(t.size - 8) >> (8 * i) & 0xff);
    if (st_parse(&check, "safetensors header to be written", t.bytes, t.size,
            t.size + total, err)
        != 0)
        goto out;
    *bytes = t.bytes;
    *size = t.size;
    t.bytes = NULL;
out:
    st_clear(&check);
    free(t.bytes);
    return err->code;
}
