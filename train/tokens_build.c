#include "train/tokens_build.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "train/tokens_write.h"

enum { BUILD_PIECE = 1 << 16 };

struct build {
    const struct tokens_build_options *o;
    struct tokens_writer *writer;
    struct tokens_build_report *report;
    const char *path; /* of the source that is being read */
    int64_t line;     /* JSON lines; 0: none */
    int64_t position; /* tokens of the document that is being written */
    int64_t limit;    /* ids lie below it */
    uint64_t done, total;
};

/* ---- documents ------------------------------------------------------------------------------ */

static int build_bad_id(
    const struct build *b, int64_t position, int64_t id, struct glm_error *err)
{
    char where[64] = "";
    if (b->line > 0)
        snprintf(where, sizeof where, "line %" PRId64 ", ", b->line);
    const bool vocab = b->o->vocab > 0 && b->limit == b->o->vocab;
    return glm_fail(err, GLM_EFORMAT,
        "%s: %sdocument %" PRId64 ", position %" PRId64 ": token id %" PRId64
        " %s%s%s (0 to %" PRId64 ")",
        b->path, where, b->report->documents, position, id,
        vocab ? "is outside the vocabulary" : "does not fit ",
        vocab ? "" : glm_dtype_name(b->o->dtype),
        vocab ? "" : ", the type it is stored in", b->limit - 1);
}

static int build_add(struct build *b, const int32_t *ids, const uint8_t *mask, int64_t n,
    struct glm_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= b->limit)
            return build_bad_id(b, b->position + i, ids[i], err);
        b->report->masked += mask != NULL && mask[i] == 0;
    }
    b->position += n;
    b->report->tokens += n;
    return tokens_writer_add(b->writer, ids, mask, n, err);
}

static int build_end(struct build *b, struct glm_error *err)
{
    b->report->empty += b->position == 0;
    if (b->o->append_eos >= 0) {
        const int32_t eos = (int32_t)b->o->append_eos;
        if (build_add(b, &eos, NULL, 1, err) != GLM_OK)
            return err->code;
    }
    b->position = 0;
    b->report->documents++;
    return tokens_writer_end(b->writer, err);
}

/* The next piece of the source; 0 at its end. */
static int build_read(struct build *b, int fd, unsigned char *out, size_t room,
    size_t *got, struct glm_error *err)
{
    *got = 0;
    const int stop = glm_events_stop(b->o->events);
    if (stop != 0) {
        glm_fail(err, GLM_ESTOPPED, "stopped; nothing was written");
        err->sys_errno = stop;
        return err->code;
    }
    while (*got < room) {
        const ssize_t n = read(fd, out + *got, room - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return glm_fail_errno(err, "%s: read", b->path);
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    b->done += *got;
    glm_events_progress(b->o->events, "build", b->done, b->total);
    return GLM_OK;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static int build_bytes_add(
    struct build *b, const unsigned char *data, size_t size, struct glm_error *err)
{
    int32_t ids[1024];
    for (size_t at = 0; at < size;) {
        const size_t n = size - at < 1024 ? size - at : 1024;
        for (size_t i = 0; i < n; i++)
            ids[i] = data[at + i];
        if (build_add(b, ids, NULL, (int64_t)n, err) != GLM_OK)
            return err->code;
        at += n;
    }
    return GLM_OK;
}

static int build_bytes_end(struct build *b, struct glm_error *err)
{
    return b->o->separator != NULL && b->position == 0 ? GLM_OK : build_end(b, err);
}

/* The beginning of a line that may still turn out to be the separator is held back. */
struct line_match {
    size_t held;
    bool open; /* the line so far is a beginning of the separator */
};

static int build_byte(
    struct build *b, struct line_match *m, unsigned char c, struct glm_error *err)
{
    const char *const s = b->o->separator;
    const size_t length = strlen(s);
    if (m->open && c == '\n' && m->held == length) {
        m->held = 0;
        return build_bytes_end(b, err);
    }
    if (m->open && m->held < length && (unsigned char)s[m->held] == c) {
        m->held++;
        return GLM_OK;
    }
    if (m->open && build_bytes_add(b, (const unsigned char *)s, m->held, err) != GLM_OK)
        return err->code;
    *m = (struct line_match){0, c == '\n'};
    return build_bytes_add(b, &c, 1, err);
}

static int build_bytes(struct build *b, int fd, struct glm_error *err)
{
    unsigned char piece[BUILD_PIECE];
    struct line_match m = {0, true};
    size_t got;
    do {
        if (build_read(b, fd, piece, sizeof piece, &got, err) != GLM_OK)
            return err->code;
        if (b->o->separator == NULL && build_bytes_add(b, piece, got, err) != GLM_OK)
            return err->code;
        for (size_t i = 0; b->o->separator != NULL && i < got; i++)
            if (build_byte(b, &m, piece[i], err) != GLM_OK)
                return err->code;
    } while (got > 0);
    /* A last line without a line feed may be the separator too. */
    if (b->o->separator != NULL && m.open && m.held < strlen(b->o->separator)
        && build_bytes_add(b, (const unsigned char *)b->o->separator, m.held, err)
            != GLM_OK)
        return err->code;
    return build_bytes_end(b, err);
}

/* ---- raw ids -------------------------------------------------------------------------------- */

static int64_t build_element(enum glm_dtype dtype, const unsigned char *at)
{
    uint16_t u16;
    int32_t i32;
    int64_t i64;
    switch (dtype) {
    case GLM_U16:
        memcpy(&u16, at, sizeof u16);
        return u16;
    case GLM_I32:
        memcpy(&i32, at, sizeof i32);
        return i32;
    default:
        memcpy(&i64, at, sizeof i64);
        return i64;
    }
}

static int build_raw(struct build *b, int fd, struct glm_error *err)
{
    unsigned char piece[BUILD_PIECE];
    const size_t size = glm_dtype_size(b->o->raw_dtype);
    uint64_t bytes = 0;
    size_t got;
    bool begun = false;
    do {
        if (build_read(b, fd, piece, sizeof piece, &got, err) != GLM_OK)
            return err->code;
        bytes += got;
        if (got % size != 0)
            return glm_fail(err, GLM_EFORMAT,
                "%s: %" PRIu64 " bytes are no whole number of %s tokens", b->path, bytes,
                glm_dtype_name(b->o->raw_dtype));
        for (size_t i = 0; i < got; i += size) {
            const int64_t id = build_element(b->o->raw_dtype, piece + i);
            if (id < 0 || id >= b->limit)
                return build_bad_id(b, b->position, id, err);
            const int32_t id32 = (int32_t)id;
            begun = true;
            if (build_add(b, &id32, NULL, 1, err) != GLM_OK)
                return err->code;
            if (id == b->o->document_end) {
                begun = false;
                if (build_end(b, err) != GLM_OK)
                    return err->code;
            }
        }
    } while (got > 0);
    return begun || b->o->document_end < 0 ? build_end(b, err) : GLM_OK;
}

/* ---- JSON lines ----------------------------------------------------------------------------- */

static int build_list(
    struct build *b, const json_t *ids, const json_t *mask, struct glm_error *err)
{
    int32_t id[1024];
    uint8_t on[1024];
    const size_t count = json_array_size(ids);
    if (mask != NULL && json_array_size(mask) != count)
        return glm_fail(err, GLM_EFORMAT,
            "%s: line %" PRId64 ": %zu mask elements for %zu ids", b->path, b->line,
            json_array_size(mask), count);
    for (size_t at = 0; at < count;) {
        size_t n = 0;
        for (; n < 1024 && at + n < count; n++) {
            const json_t *const e = json_array_get(ids, at + n);
            if (!json_is_integer(e))
                return glm_fail(err, GLM_EFORMAT,
                    "%s: line %" PRId64 ", position %zu: not a whole number", b->path,
                    b->line, at + n);
            const json_int_t v = json_integer_value(e);
            if (v < 0 || v >= b->limit)
                return build_bad_id(b, (int64_t)(at + n), v, err);
            id[n] = (int32_t)v;
            const json_t *const m = json_array_get(mask, at + n);
            if (mask != NULL && !json_is_boolean(m)
                && !(json_is_integer(m)
                    && (json_integer_value(m) == 0 || json_integer_value(m) == 1)))
                return glm_fail(err, GLM_EFORMAT,
                    "%s: line %" PRId64 ", position %zu: mask: expected 0 or 1", b->path,
                    b->line, at + n);
            on[n] = json_is_true(m) || json_integer_value(m) == 1;
        }
        if (build_add(b, id, mask != NULL ? on : NULL, (int64_t)n, err) != GLM_OK)
            return err->code;
        at += n;
    }
    return build_end(b, err);
}

static int build_line(
    struct build *b, const char *text, size_t size, struct glm_error *err)
{
    json_error_t why;
    b->line++;
    if (strspn(text, " \t\r\n") >= size)
        return GLM_OK; /* a blank line is no document; an empty one is [] */
    json_t *const root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    const json_t *ids = root, *mask = NULL;
    if (root == NULL) {
        glm_fail(err, GLM_EFORMAT, "%s: line %" PRId64 ", byte %d: %s", b->path, b->line,
            why.position, why.text);
        goto out;
    }
    if (json_is_object(root)) {
        ids = json_object_get(root, "ids");
        mask = json_object_get(root, "mask");
    }
    if (!json_is_array(ids) || (mask != NULL && !json_is_array(mask)))
        glm_fail(err, GLM_EFORMAT,
            "%s: line %" PRId64
            ": expected a list of ids, or an object with \"ids\" and possibly "
            "\"mask\"",
            b->path, b->line);
    else
        build_list(b, ids, mask, err);
out:
    json_decref(root);
    return err->code;
}

static int build_too_long(const struct build *b, struct glm_error *err)
{
    return glm_fail(err, GLM_EFORMAT,
        "%s: line %" PRId64 " is longer than %d bytes: cut the document", b->path,
        b->line + 1, TOKENS_LINE);
}

/* Lines out of one buffer; what is left of a line moves to its beginning. */
static int build_lines(struct build *b, int fd, char *buffer, struct glm_error *err)
{
    size_t used = 0, got;
    do {
        if (build_read(b, fd, (unsigned char *)buffer + used,
                TOKENS_LINE - used < BUILD_PIECE ? TOKENS_LINE - used : BUILD_PIECE, &got,
                err)
            != GLM_OK)
            return err->code;
        size_t from = 0;
        char *end = memchr(buffer + used, '\n', got);
        used += got;
        for (; end != NULL; end = memchr(buffer + from, '\n', used - from)) {
            *end = '\0';
            if (build_line(b, buffer + from, (size_t)(end - buffer) - from, err)
                != GLM_OK)
                return err->code;
            from = (size_t)(end - buffer) + 1;
        }
        memmove(buffer, buffer + from, used - from);
        used -= from;
        if (used == TOKENS_LINE)
            return build_too_long(b, err);
    } while (got > 0);
    buffer[used] = '\0';
    return used > 0 ? build_line(b, buffer, used, err) : GLM_OK;
}

static int build_jsonl(struct build *b, int fd, struct glm_error *err)
{
    char *const buffer = malloc(TOKENS_LINE + 1);
    if (buffer == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory to read it", b->path);
    build_lines(b, fd, buffer, err);
    free(buffer);
    return err->code;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int build_source(struct build *b, const char *path, struct glm_error *err)
{
    b->path = path;
    b->line = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT
            ? glm_fail(err, GLM_EFORMAT, "%s: there is no such file", path)
            : glm_fail_errno(err, "%s: open", path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    switch (b->o->from) {
    case TOKENS_BYTES:
        build_bytes(b, fd, err);
        break;
    case TOKENS_JSONL:
        build_jsonl(b, fd, err);
        break;
    case TOKENS_RAW:
        build_raw(b, fd, err);
        break;
    }
    close(fd);
    return err->code;
}

static int build_check(const struct build *b, struct glm_error *err)
{
    const struct tokens_build_options *const o = b->o;
    if (o->separator != NULL
        && (strlen(o->separator) > TOKENS_SEPARATOR
            || strchr(o->separator, '\n') != NULL))
        return glm_fail(err, GLM_EUSAGE,
            "the separator is the text of one line, at most %d bytes", TOKENS_SEPARATOR);
    if (o->append_eos >= b->limit)
        return glm_fail(err, GLM_EUSAGE,
            "the end token %" PRId64 " is not below %" PRId64, o->append_eos, b->limit);
    if (o->document_end >= b->limit)
        return glm_fail(err, GLM_EUSAGE,
            "the document end %" PRId64 " is not below %" PRId64, o->document_end,
            b->limit);
    return GLM_OK;
}

int tokens_build(const char *out, char *const *sources, int count,
    const struct tokens_build_options *o, struct tokens_build_report *report,
    struct glm_error *err)
{
    struct build b = {.o = o, .report = report};
    struct stat st;
    *report = (struct tokens_build_report){0};
    b.limit = o->dtype == GLM_U16 ? UINT16_MAX + 1 : (int64_t)INT32_MAX + 1;
    if (o->vocab > 0 && o->vocab < b.limit)
        b.limit = o->vocab;
    if (build_check(&b, err) != GLM_OK
        || tokens_writer_open(&b.writer, out, o->dtype, o->replace, err) != GLM_OK)
        return err->code;
    for (int i = 0; i < count; i++)
        if (stat(sources[i], &st) == 0 && S_ISREG(st.st_mode))
            b.total += (uint64_t)st.st_size;
    for (int i = 0; i < count && err->code == GLM_OK; i++)
        build_source(&b, sources[i], err);
    if (err->code == GLM_OK)
        tokens_writer_finish(b.writer, err);
    tokens_writer_close(b.writer);
    return err->code;
}
