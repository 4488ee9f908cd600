/* Reads safetensors headers as hostile input and writes them strictly.
 *
 * What comes out of st_parse is complete and consistent: every name once, every size the product of
 * its shape, the data chain without hole or overlap and exactly as long as the file. Memory beside
 * the header text: a record per tensor, its name and shape in an arena; the JSON library sees one
 * entry at a time (jsonin.h), so 100 MB with a million tensors stays far below 512 MB.
 *
 * Duplicate names are refused here because parsers differ in which one they keep. */
#include "convert/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/jsonin.h"
#include "kernels/base/checked.h"

enum {
    ENTRY_CAP = 65536,
    METADATA_CAP = 8 << 20,
    SNIFF = 64,
    BLOCK_MIN = 4096,
    BLOCK_MAX = 1 << 20
};

/* ---- arena ----------------------------------------------------------------------------------- */

struct block {
    struct block *next;
    size_t used, size;
    unsigned char data[];
};

static void *take(struct st_header *h, size_t size, size_t align)
{
    struct block *b = h->arena;
    size_t at = b ? (b->used + align - 1) / align * align : 0;
    if (!b || at > b->size || size > b->size - at) {
        size_t room = !b ? BLOCK_MIN : b->size < BLOCK_MAX ? b->size * 2 : BLOCK_MAX;
        if (room < size)
            room = size;
        struct block *fresh = malloc(sizeof *fresh + room);
        if (!fresh)
            return NULL;
        *fresh = (struct block){.next = b, .size = room};
        h->arena = b = fresh;
        at = 0;
    }
    b->used = at + size;
    return b->data + at;
}

void st_clear(struct st_header *h)
{
    if (!h)
        return;
    for (struct block *b = h->arena, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(h->tensors);
    *h = (struct st_header){0};
}

/* ---- one entry ------------------------------------------------------------------------------- */

struct parse {
    struct st_header *h;
    struct jsonin in;
    int64_t room; /* of h->tensors */
    char name[JSONIN_MAX_STRING + 1];
    char shown[JSONIN_SHOWN]; /* the name as sentences give it */
    struct glm_error *err;
};

static int GLM_PRINTF(3, 4) fail(struct parse *p, size_t at, const char *fmt, ...)
{
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return glm_fail(p->err, GLM_EFORMAT, "%s: byte %zu: tensor '%s': %s", p->in.path, at,
        p->shown, what);
}

static int no_memory(struct parse *p)
{
    return glm_fail(p->err, GLM_ENOMEM,
        "%s: no memory for the header of %" PRId64 " tensors", p->in.path, p->h->count);
}

static int take_whole(
    struct parse *p, size_t at, const json_t *v, const char *what, int64_t *out)
{
    if (!json_is_integer(v))
        return fail(p, at, "%s holds something that is not an integer", what);
    *out = json_integer_value(v);
    return *out < 0 ? fail(p, at, "%s holds the negative number %" PRId64, what, *out)
                    : 0;
}

static int take_shape(
    struct parse *p, size_t at, const json_t *shape, struct st_tensor *t)
{
    if (!json_is_array(shape))
        return fail(p, at, "no shape, or one that is not an array");
    const size_t rank = json_array_size(shape);
    if (rank > ST_MAX_RANK)
        return fail(p, at, "%zu dimensions, at most %d are read", rank, ST_MAX_RANK);
    int64_t *dims = take(p->h, rank * sizeof *dims, sizeof *dims);
    if (!dims)
        return no_memory(p);
    for (size_t i = 0; i < rank; i++)
        if (take_whole(p, at, json_array_get(shape, i), "the shape", &dims[i]) != 0)
            return p->err->code;
    t->shape = dims;
    t->rank = (int)rank;
    return 0;
}

static int take_offsets(
    struct parse *p, size_t at, const json_t *offsets, struct st_tensor *t)
{
    int64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return fail(p, at, "no data_offsets, or not two numbers");
    if (take_whole(p, at, json_array_get(offsets, 0), "data_offsets", &begin) != 0
        || take_whole(p, at, json_array_get(offsets, 1), "data_offsets", &end) != 0)
        return p->err->code;
    if (end < begin)
        return fail(p, at, "data_offsets end at %" PRId64 ", before their begin %" PRId64,
            end, begin);
    t->begin = (uint64_t)begin;
    t->end = (uint64_t)end;
    return 0;
}

/* Bytes = product of the shape x bits / 8, and nothing of it may wrap. */
static int check_size(struct parse *p, size_t at, const struct st_tensor *t)
{
    const char *dtype = glm_dtype_name(t->dtype);
    int64_t count;
    uint64_t bits;
    if (!checked_count(t->shape, t->rank, &count)
        || !checked_mul_u64((uint64_t)count, (uint64_t)glm_dtype_bits(t->dtype), &bits))
        return fail(p, at, "the size of its shape in %s overflows 64 bits", dtype);
    if (bits % 8 != 0)
        return fail(p, at,
            "%" PRId64 " elements of %s are %" PRIu64 " bits, not whole bytes", count,
            dtype, bits);
    if (t->end - t->begin != bits / 8)
        return fail(p, at,
            "its shape needs %" PRIu64 " bytes of %s, data_offsets give %" PRIu64,
            bits / 8, dtype, t->end - t->begin);
    return 0;
}

static int take_fields(struct parse *p, size_t at, json_t *entry, struct st_tensor *t)
{
    const char *key;
    json_t *unused;
    const json_t *dtype = json_object_get(entry, "dtype");
    if (!json_is_string(dtype))
        return fail(p, at, "no dtype, or one that is not a string");
    if (!glm_dtype_find(json_string_value(dtype), json_string_length(dtype), &t->dtype)) {
        char shown[JSONIN_SHOWN];
        return fail(p, at, "unknown dtype '%s', it cannot be read without guessing",
            jsonin_shown(json_string_value(dtype), json_string_length(dtype), shown));
    }
    if (take_shape(p, at, json_object_get(entry, "shape"), t) != 0
        || take_offsets(p, at, json_object_get(entry, "data_offsets"), t) != 0
        || check_size(p, at, t) != 0)
        return p->err->code;
    /* A field that is unknown (strides, say) could change what the bytes mean. */
    json_object_foreach(entry, key, unused) if (strcmp(key, "dtype") != 0
        && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
    {
        char shown[JSONIN_SHOWN];
        return fail(p, at, "unknown field '%s'", jsonin_shown(key, strlen(key), shown));
    }
    return 0;
}

/* The entry's place in the file stands in four bytes in front of the name: needed only for the
 * sentence about duplicates, after the sort has lost the order. */
static char *keep_name(struct st_header *h, const char *name, size_t length, size_t at)
{
    const uint32_t place = (uint32_t)at; /* a header is at most 100,000,000 bytes */
    char *kept = take(h, sizeof place + length + 1, 1);
    if (!kept)
        return NULL;
    memcpy(kept, &place, sizeof place);
    memcpy(kept + sizeof place, name, length + 1);
    return kept + sizeof place;
}

static uint32_t place_of(const struct st_tensor *t)
{
    uint32_t place;
    memcpy(&place, t->name - sizeof place, sizeof place);
    return place;
}

static int add_tensor(
    struct parse *p, size_t at, size_t name_length, const struct jsonin_slice *v)
{
    struct st_header *h = p->h;
    if (h->count == p->room) {
        const int64_t room = p->room ? p->room * 2 : 64;
        struct st_tensor *grown = realloc(h->tensors, (size_t)room * sizeof *grown);
        if (!grown)
            return no_memory(p);
        h->tensors = grown;
        p->room = room;
    }
    if (v->text[0] != '{')
        return fail(p, v->at, "its entry is not an object");
    json_t *entry = jsonin_load(&p->in, v, p->shown, p->err);
    if (!entry)
        return p->err->code;
    struct st_tensor t = {
        .name = keep_name(h, p->name, name_length, at), .name_length = name_length};
    if (!t.name)
        no_memory(p);
    else if (take_fields(p, v->at, entry, &t) == 0)
        h->tensors[h->count++] = t;
    json_decref(entry);
    return p->err->code;
}

static int not_strings(struct parse *p, const struct jsonin_slice *v)
{
    return glm_fail(p->err, GLM_EFORMAT,
        "%s: byte %zu: __metadata__ is not a map of strings to strings", p->in.path,
        v->at);
}

/* Each value of the object is a string, as far as a walk can see: a tree of something else could
 * take a hundred times the bytes of its text. */
static int check_strings(struct parse *p, const struct jsonin_slice *v)
{
    struct jsonin in = {
        .path = p->in.path, .text = v->text, .size = v->size, .base = v->at};
    struct jsonin_slice key, value;
    bool end = false;
    if (v->text[0] != '{')
        return not_strings(p, v);
    jsonin_open(&in, p->err);
    while (p->err->code == GLM_OK && jsonin_key(&in, &key, &end, p->err) == 0 && !end)
        if (jsonin_value(&in, v->size, "__metadata__", &value, p->err) == 0
            && value.text[0] != '"')
            return not_strings(p, v);
    return p->err->code;
}

static int take_metadata(struct parse *p, const struct jsonin_slice *v)
{
    if (p->h->metadata)
        return glm_fail(p->err, GLM_EFORMAT, "%s: byte %zu: __metadata__ is given twice",
            p->in.path, v->at);
    if (check_strings(p, v) != 0)
        return p->err->code;
    json_t *map = jsonin_load(&p->in, v, "__metadata__", p->err);
    if (!map)
        return p->err->code;
    const char *key;
    json_t *value;
    bool strings = json_is_object(map);
    json_object_foreach(map, key, value) strings = strings && json_is_string(value);
    json_decref(map);
    if (!strings)
        return not_strings(p, v);
    p->h->metadata = take(p->h, v->size + 1, 1);
    if (!p->h->metadata)
        return no_memory(p);
    memcpy(p->h->metadata, v->text, v->size);
    p->h->metadata[v->size] = '\0';
    return 0;
}

static int parse_entries(struct parse *p)
{
    struct jsonin_slice key, value;
    size_t length;
    bool end;
    if (jsonin_open(&p->in, p->err) != 0)
        return p->err->code;
    for (;;) {
        if (jsonin_key(&p->in, &key, &end, p->err) != 0)
            return p->err->code;
        if (end)
            return jsonin_close(&p->in, p->err);
        if (jsonin_string(&p->in, &key, p->name, &length, p->err) != 0)
            return p->err->code;
        jsonin_shown(p->name, length, p->shown);
        const bool metadata = strcmp(p->name, "__metadata__") == 0;
        if (jsonin_value(
                &p->in, metadata ? METADATA_CAP : ENTRY_CAP, p->shown, &value, p->err)
            || (metadata ? take_metadata(p, &value)
                         : add_tensor(p, key.at, length, &value)))
            return p->err->code;
    }
}

/* ---- all entries ----------------------------------------------------------------------------- */

static int compare_names(const char *a, size_t a_length, const char *b, size_t b_length)
{
    const int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int by_name(const void *a, const void *b)
{
    const struct st_tensor *s = a, *t = b;
    return compare_names(s->name, s->name_length, t->name, t->name_length);
}

static int by_place(const void *a, const void *b)
{
    const struct st_tensor *s = *(const struct st_tensor *const *)a;
    const struct st_tensor *t = *(const struct st_tensor *const *)b;
    if (s->begin != t->begin)
        return s->begin < t->begin ? -1 : 1;
    return (s->end > t->end) - (s->end < t->end);
}

static int check_names(struct parse *p)
{
    struct st_header *h = p->h;
    if (h->count > 1)
        qsort(h->tensors, (size_t)h->count, sizeof *h->tensors, by_name);
    for (int64_t i = 1; i < h->count; i++) {
        const struct st_tensor *t = &h->tensors[i];
        if (by_name(t - 1, t) != 0)
            continue;
        jsonin_shown(t->name, t->name_length, p->shown);
        uint32_t a = place_of(t - 1), b = place_of(t);
        return fail(p, a > b ? a : b, "the name is given twice, first at byte %" PRIu32,
            a > b ? b : a);
    }
    return 0;
}

/* Sorted by begin, each tensor starts where the one before ends; the last ends with the file. */
static int check_chain(struct parse *p)
{
    struct st_header *h = p->h;
    const uint64_t data = h->file_size - h->data_start;
    const struct st_tensor **order = malloc(((size_t)h->count + 1) * sizeof *order);
    if (!order)
        return no_memory(p);
    for (int64_t i = 0; i < h->count; i++)
        order[i] = &h->tensors[i];
    if (h->count > 1)
        qsort(order, (size_t)h->count, sizeof *order, by_place);
    uint64_t at = 0;
    for (int64_t i = 0; i < h->count && !p->err->code; at = order[i++]->end) {
        const struct st_tensor *t = order[i];
        jsonin_shown(t->name, t->name_length, p->shown);
        char before[JSONIN_SHOWN] = "the start";
        if (i > 0)
            jsonin_shown(order[i - 1]->name, order[i - 1]->name_length, before);
        if (t->begin > at)
            fail(p, place_of(t),
                "its data begin at %" PRIu64 " but %s ends at %" PRIu64
                ": a hole of %" PRIu64 " bytes",
                t->begin, before, at, t->begin - at);
        else if (t->begin < at)
            fail(p, place_of(t),
                "its data begin at %" PRIu64 " but %s ends at %" PRIu64
                ": they overlap by %" PRIu64 " bytes",
                t->begin, before, at, at - t->begin);
    }
    free(order);
    if (p->err->code)
        return p->err->code;
    if (h->file_size == ST_SIZE_UNKNOWN) {
        h->file_size = h->data_start + at;
        return 0;
    }
    if (at > data)
        return glm_fail(p->err, GLM_EFORMAT,
            "%s: the file is cut: its header describes %" PRIu64 " bytes, %" PRIu64
            " are there; fetch it again",
            p->in.path, h->data_start + at, h->file_size);
    if (at < data)
        return glm_fail(p->err, GLM_EFORMAT,
            "%s: byte %" PRIu64 ": %" PRIu64
            " bytes follow the last tensor that no tensor owns",
            p->in.path, h->data_start + at, data - at);
    return 0;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* What a file that does not start like safetensors is, by its first bytes; NULL if not known. */
static const char *what_else(const char *head, size_t size)
{
    static const struct {
        const char *magic;
        size_t size;
        const char *what;
    } known[] = {
        {"version https://git-lfs", 23,
            "a Git LFS pointer, not the file itself: run git lfs pull"},
        {"\x1f\x8b", 2, "gzip data: unpack it first"},
        {"PK\x03\x04", 4, "a zip archive, perhaps a PyTorch .bin or .pt file"},
        {"\x89HDF", 4, "an HDF5 file"},
        {"GGUF", 4, "a GGUF file"},
        {"(\xb5\x2f\xfd", 4, "zstd data: unpack it first"},
        {"{\"", 2, "bare JSON without the 8 length bytes"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (size >= known[i].size && memcmp(head, known[i].magic, known[i].size) == 0)
            return known[i].what;
    size_t at = 0;
    while (at < size && strchr(" \r\n\t", head[at]) && head[at] != '\0')
        at++;
    if (at + 1 < size && head[at] == '<' && strchr("!?hH", head[at + 1])
        && head[at + 1] != '\0')
        return "an HTML or XML page, perhaps an error page saved in its place: fetch it "
               "again";
    return NULL;
}

/* The header's length from the first bytes, checked against the limits and the file. */
static int take_length(const char *path, const char *head, size_t have,
    uint64_t file_size, uint64_t *n, struct glm_error *err)
{
    if (file_size == 0)
        return glm_fail(err, GLM_EFORMAT, "%s: an empty file, not safetensors", path);
    const char *what = what_else(head, have);
    if (file_size < 8 || have < 8)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %s: %" PRIu64 " bytes, the header length alone is 8", path,
            what ? what : "too small", file_size);
    *n = 0;
    for (int i = 7; i >= 0; i--)
        *n = *n << 8 | (unsigned char)head[i];
    if (*n >= 2 && *n <= ST_MAX_HEADER && *n <= file_size - 8) {
        /* Two bytes of gzip can be a length; then what follows is no brace either. */
        const bool brace = have > 8 && strchr("{ \n\t\r", head[8]) && head[8] != '\0';
        if (what && !brace)
            return glm_fail(err, GLM_EFORMAT, "%s: not safetensors but %s", path, what);
        return 0;
    }
    if (what)
        return glm_fail(err, GLM_EFORMAT, "%s: not safetensors but %s", path, what);
    if (*n < 2)
        return glm_fail(err, GLM_EFORMAT,
            "%s: byte 0: a header of %" PRIu64 " bytes is too small for {}", path, *n);
    if (*n > ST_MAX_HEADER)
        return glm_fail(err, GLM_EFORMAT,
            "%s: byte 0: a header of %" PRIu64
            " bytes is over the limit of %d; this is hardly a safetensors file",
            path, *n, ST_MAX_HEADER);
    return glm_fail(err, GLM_EFORMAT,
        "%s: the file is cut: the header alone needs %" PRIu64 " bytes, %" PRIu64
        " are there; fetch it again",
        path, *n + 8, file_size);
}

int st_parse(struct st_header *out, const char *path, const void *bytes, size_t size,
    uint64_t file_size, struct glm_error *err)
{
    uint64_t n;
    size_t bad;
    *out = (struct st_header){0};
    if (take_length(path, bytes, size < SNIFF ? size : SNIFF, file_size, &n, err) != 0)
        return err->code;
    if (size - 8 < n)
        return glm_fail(err, GLM_EFORMAT,
            "%s: the header needs %" PRIu64 " bytes, %zu were read", path, n + 8, size);
    const char *text = (const char *)bytes + 8;
    if (!jsonin_utf8(text, (size_t)n, &bad))
        return glm_fail(
            err, GLM_EFORMAT, "%s: byte %zu: the header is not UTF-8", path, bad + 8);
    struct parse *p = malloc(sizeof *p);
    if (!p)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    struct st_header h = {.data_start = n + 8, .file_size = file_size};
    p->h = &h;
    p->in = (struct jsonin){.path = path, .text = text, .size = (size_t)n, .base = 8};
    p->room = 0;
    p->err = err;
    if (parse_entries(p) == 0 && check_names(p) == 0 && check_chain(p) == 0)
        *out = h;
    else
        st_clear(&h);
    free(p);
    return err->code;
}

static int read_all(
    int fd, const char *path, void *into, size_t size, struct glm_error *err)
{
    size_t at = 0;
    while (at < size) {
        const ssize_t got = pread(fd, (char *)into + at, size - at, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return glm_fail_errno(err, "%s: byte %zu: read", path, at);
        if (got == 0)
            return glm_fail(err, GLM_EFORMAT,
                "%s: the file was cut while it was read: %zu of %zu "
                "header bytes",
                path, at, size);
        at += (size_t)got;
    }
    return 0;
}

int st_read(
    struct st_header *out, const char *path, void **header_bytes, struct glm_error *err)
{
    char head[SNIFF], *bytes = NULL;
    struct stat st;
    uint64_t n;
    *out = (struct st_header){0};
    if (header_bytes)
        *header_bytes = NULL;
    /* Not blocking: a FIFO must be an error, not a wait. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        glm_fail_errno(err, "%s: open", path);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        glm_fail(err, GLM_EFORMAT, "%s: not a regular file", path);
        goto out;
    }
    const uint64_t size = (uint64_t)st.st_size;
    const size_t have = size < sizeof head ? (size_t)size : sizeof head;
    if (read_all(fd, path, head, have, err) != 0
        || take_length(path, head, have, size, &n, err) != 0)
        goto out;
    bytes = malloc((size_t)n + 8);
    if (!bytes) {
        glm_fail(
            err, GLM_ENOMEM, "%s: no memory for a header of %" PRIu64 " bytes", path, n);
        goto out;
    }
    if (read_all(fd, path, bytes, (size_t)n + 8, err) != 0
        || st_parse(out, path, bytes, (size_t)n + 8, size, err) != 0)
        goto out;
    if (header_bytes) {
        *header_bytes = bytes;
        bytes = NULL;
    }
out:
    free(bytes);
    if (fd >= 0)
        close(fd);
    return err->code;
}

const struct st_tensor *st_find(
    const struct st_header *h, const char *name, size_t length)
{
    int64_t low = 0, high = h->count;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        const struct st_tensor *t = &h->tensors[mid];
        const int order = compare_names(t->name, t->name_length, name, length);
        if (order == 0)
            return t;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}
