#include "tests/gpu/opboard.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/opdata.h"

enum { GUARD = 256, GUARD_BYTE = 0xA5, RUBBISH = 0xFF, RUBBISH_INT = 0x5A };

static size_t bytes_of(const struct board *b, int i)
{
    return (size_t)b->f.field[i].n * glm_dtype_size(b->f.field[i].type);
}

static bool dropped(const struct board *b, int i)
{
    return b->c->data[i] == NULL && b->c->alias[i] == 0;
}

/* Is the field's memory an output, its own or by an alias? */
static bool written(const struct board *b, int i)
{
    bool any = b->f.field[i].dir != IN;

    for (int j = 0; j < b->f.count; j++)
        any |= b->c->alias[j] == i + 1 && b->f.field[j].dir != IN;
    return any;
}

/* The struct with types F64 where types are named, and the data in them. */
static void widen(struct board *b)
{
    const enum glm_dtype wide = GLM_F64;
    const struct fields narrow = b->f;

    for (int i = 0; i < narrow.types; i++)
        memcpy(b->p + narrow.type_at[i], &wide, sizeof wide);
    op_fields(b->c->op, b->p, &b->f);
    for (int i = 0; i < b->f.count; i++) {
        if (b->f.field[i].type == narrow.field[i].type || b->host[i] == NULL)
            continue;
        b->host[i] = op_doubles(narrow.field[i].type, b->host[i], narrow.field[i].n);
        b->ours[i] = true;
    }
}

static int take(struct board *b, int i, struct glm_error *err)
{
    const size_t bytes = bytes_of(b, i) + 2 * b->guard;
    void *const fill = malloc(bytes > 0 ? bytes : 1);

    b->memory[i] = b->k->alloc(bytes, err);
    if (fill == NULL || b->memory[i] == NULL) {
        free(fill);
        return glm_fail(err, GLM_ENOMEM, "no memory for %s", b->f.field[i].name);
    }
    memset(fill, GUARD_BYTE, bytes);
    memcpy((char *)fill + b->guard, b->host[i], bytes_of(b, i));
    b->k->to_device(b->memory[i], fill, bytes, b->stream, err);
    free(fill);
    return (int)err->code;
}

static char *place(const struct board *b, int i)
{
    const int in = b->c->alias[i] - 1;

    if (dropped(b, i))
        return NULL;
    if (in < 0)
        return b->memory[i] + b->guard;
    return b->memory[in] + b->guard
        + (size_t)b->c->alias_at[i] * glm_dtype_size(b->f.field[i].type);
}

int board_open(struct board *b, const struct opcase *c, const struct kernels *k,
    glm_stream stream, bool f64, bool guards, struct glm_error *err)
{
    *b = (struct board){.k = k, .stream = stream, .c = c, .f = c->f};
    b->guard = guards ? GUARD : 0;
    memcpy(b->p, c->p, sizeof b->p);
    memcpy(b->host, c->data, sizeof b->host);
    if (f64)
        widen(b);
    for (int i = 0; i < b->f.count; i++) {
        if (b->host[i] != NULL && c->alias[i] == 0 && take(b, i, err) != 0)
            return (int)err->code;
    }
    for (int i = 0; i < b->f.count; i++) {
        char *const at = place(b, i);
        memcpy(b->p + b->f.field[i].at, &at, sizeof at);
    }
    return 0;
}

void board_close(struct board *b)
{
    for (int i = 0; i < b->f.count; i++) {
        if (b->memory[i] != NULL)
            b->k->release(b->memory[i]);
        if (b->ours[i])
            free(b->host[i]);
    }
    *b = (struct board){.k = NULL};
}

static int reset(struct board *b, int i, struct glm_error *err)
{
    const size_t bytes = bytes_of(b, i);
    void *rubbish;
    int code;

    if (b->memory[i] == NULL || bytes == 0 || !written(b, i))
        return (int)err->code;
    if (b->f.field[i].dir != OUT)
        return b->k->to_device(place(b, i), b->host[i], bytes, b->stream, err);
    if ((rubbish = malloc(bytes)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for %s", b->f.field[i].name);
    memset(rubbish, b->f.field[i].type == GLM_I32 ? RUBBISH_INT : RUBBISH, bytes);
    code = b->k->to_device(place(b, i), rubbish, bytes, b->stream, err);
    free(rubbish);
    return code;
}

int board_run(struct board *b, struct glm_error *err)
{
    for (int i = 0; i < b->f.count; i++) {
        if (reset(b, i, err) != 0)
            return (int)err->code;
    }
    if (op_run(b->c->op, b->k, b->p, b->stream, err) != 0)
        return (int)err->code;
    return b->k->stream_wait(b->stream, err);
}

int board_fetch(struct board *b, void *out[FIELDS], struct glm_error *err)
{
    for (int i = 0; i < b->f.count; i++) {
        out[i] = NULL;
        if (b->f.field[i].dir == IN || dropped(b, i))
            continue;
        out[i] = op_zeros(b->f.field[i].type, b->f.field[i].n);
        b->k->to_host(out[i], place(b, i), bytes_of(b, i), b->stream, err);
    }
    return (int)err->code;
}

static bool all(const char *x, int byte, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)x[i] != byte)
            return false;
    return true;
}

int board_inspect(struct board *b, struct glm_error *err)
{
    for (int i = 0; i < b->f.count && err->code == GLM_OK; i++) {
        const size_t bytes = bytes_of(b, i), whole = bytes + 2 * b->guard;
        char *const x = b->memory[i] == NULL ? NULL : malloc(whole + 1);
        if (x == NULL)
            continue;
        if (b->k->to_host(x, b->memory[i], whole, b->stream, err) == 0) {
            if (!all(x, GUARD_BYTE, b->guard))
                glm_fail(err, GLM_EMISMATCH, "wrote in front of %s", b->f.field[i].name);
            else if (!all(x + b->guard + bytes, GUARD_BYTE, b->guard))
                glm_fail(err, GLM_EMISMATCH, "wrote behind %s", b->f.field[i].name);
            else if (!written(b, i) && memcmp(x + b->guard, b->host[i], bytes) != 0)
                glm_fail(err, GLM_EMISMATCH, "wrote to the input %s", b->f.field[i].name);
        }
        free(x);
    }
    return (int)err->code;
}
