#include "tests/gpu/opcase.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#include "tests/gpu/opboard.h"
#include "tests/support/opdata.h"
#include "tests/support/rng.h"

/* ---- making a case ---------------------------------------------------------------------------- */

static uint64_t seed_of(const char *a, const char *b)
{
    return rng_text(rng_text(RNG_TEXT, a), b);
}

static bool floats(enum glm_dtype type)
{
    return type == GLM_BF16 || type == GLM_F32 || type == GLM_F64;
}

/* Normals, one in 32 zero or eight times as large. */
static void *random_data(const struct field *f, const char *name)
{
    void *x;
    const uint64_t seed = seed_of(name, f->name);

    if (!floats(f->type))
        return op_zeros(f->type, f->n);
    x = op_normals(f->type, f->n, seed);
    for (int64_t i = 0; i < f->n; i++) {
        const uint64_t kind = rng_mix(seed + (uint64_t)i * 7919) % 64;
        if (kind < 2)
            op_set(f->type, x, i, kind == 0 ? 0 : 8 * op_at(f->type, x, i));
    }
    return x;
}

struct opcase *case_new(
    struct suite *s, enum op_id op, const void *p, const char *name, ...)
{
    struct opcase *c;
    va_list args;

    if (s->only != NULL && strcmp(s->only, op_name(op)) != 0)
        return NULL;
    if ((c = calloc(1, sizeof *c)) == NULL)
        abort();
    c->op = op;
    memcpy(c->p, p, op_size(op));
    op_fields(op, p, &c->f);
    va_start(args, name);
    const size_t n = c->f.types == 0
        ? 0
        : (size_t)snprintf(c->name, sizeof c->name, "%s ",
            glm_dtype_name(*(const enum glm_dtype *)(c->p + c->f.type_at[0])));
    vsnprintf(c->name + n, sizeof c->name - n, name, args);
    va_end(args);
    if (s->words != NULL && strstr(c->name, s->words) == NULL) {
        free(c);
        return NULL;
    }
    if (s->list) {
        printf("%s %s\n", op_name(op), c->name);
        free(c);
        return NULL;
    }
    for (int i = 0; i < c->f.count; i++)
        c->data[i] = random_data(&c->f.field[i], c->name);
    return c;
}

static int find(const struct opcase *c, const char *field)
{
    for (int i = 0; i < c->f.count; i++)
        if (strcmp(c->f.field[i].name, field) == 0)
            return i;
    fprintf(stderr, "%s has no %s\n", op_name(c->op), field);
    abort();
}

void *case_data(struct opcase *c, const char *field)
{
    return c->data[find(c, field)];
}

void case_scale(struct opcase *c, const char *field, double by)
{
    const int at = find(c, field);

    for (int64_t i = 0; i < c->f.field[at].n; i++)
        op_set(c->f.field[at].type, c->data[at], i,
            by * op_at(c->f.field[at].type, c->data[at], i));
}

void case_fill(struct opcase *c, const char *field, double value)
{
    const int at = find(c, field);

    for (int64_t i = 0; i < c->f.field[at].n; i++)
        op_set(c->f.field[at].type, c->data[at], i, value);
}

void case_whole(struct opcase *c, const char *field, int most)
{
    const int at = find(c, field);
    uint64_t state = rng_mix(seed_of(c->name, field));

    for (int64_t i = 0; i < c->f.field[at].n; i++)
        op_set(c->f.field[at].type, c->data[at], i,
            (double)rng_below(&state, (uint64_t)(2 * most + 1)) - most);
}

void case_copy(struct opcase *c, const char *field, const void *from)
{
    const struct field *f = &c->f.field[find(c, field)];

    if (f->n > 0)
        memcpy(case_data(c, field), from, (size_t)f->n * glm_dtype_size(f->type));
}

void case_drop(struct opcase *c, const char *field)
{
    const int at = find(c, field);

    free(c->data[at]);
    c->data[at] = NULL;
}

void case_alias(struct opcase *c, const char *field, const char *in, int64_t at)
{
    const int i = find(c, field);

    case_drop(c, field);
    c->alias[i] = find(c, in) + 1;
    c->alias_at[i] = at;
}

void *case_args(struct opcase *c)
{
    static _Alignas(16) char p[STRUCT_BYTES];

    memcpy(p, c->p, sizeof p);
    for (int i = 0; i < c->f.count; i++) {
        const int in = c->alias[i] - 1;
        const char *at = c->data[in < 0 ? i : in];
        if (in >= 0)
            at += (size_t)c->alias_at[i] * glm_dtype_size(c->f.field[i].type);
        memcpy(p + c->f.field[i].at, &at, sizeof at);
    }
    return p;
}

static void free_case(struct opcase *c)
{
    for (int i = 0; i < c->f.count; i++) {
        free(c->data[i]);
        free(c->got[i]);
    }
    free(c);
}

/* ---- comparing -------------------------------------------------------------------------------- */

/* Differences of an array from the truth, relative to the truth's largest and to its size. */
struct off {
    double most, mean; /* max |x - ref| / max |ref|; rms likewise */
    int64_t at;
};

static struct off off_by(enum glm_dtype type, const void *x, enum glm_dtype ref_type,
    const void *ref, int64_t n)
{
    struct off o = {.at = -1};
    double largest = 0, squares = 0, errors = 0;

    for (int64_t i = 0; i < n; i++) {
        const double r = op_at(ref_type, ref, i), v = op_at(type, x, i);
        double e = fabs(v - r);
        if (v == r || (isnan(v) && isnan(r)))
            e = 0;
        else if (!isfinite(e))
            e = INFINITY;
        if (isfinite(r)) {
            largest = fmax(largest, fabs(r));
            squares += r * r;
        }
        if (e > o.most) {
            o.most = e;
            o.at = i;
        }
        errors += e * e;
    }
    if (o.most > 0) { /* of nothing but zeros, to 1: what terms that cancel leave */
        o.most /= largest > 0 ? largest : 1;
        o.mean = sqrt(errors / (squares > 0 ? squares : (double)n));
    }
    return o;
}

/* What is always allowed. BF16: a rounding that falls to the other side, 2^-8 of a value. F32 in a
 * BF16 operation: half of that. F32: sums of some thousands of terms in another order, and other
 * elementary functions. Cases of backward passes, where factors are rounded to BF16 for the tensor
 * cores, say more themselves. */
static double floor_of(const struct opcase *c, const struct field *f)
{
    const bool wide =
        c->f.types > 0 && *(const enum glm_dtype *)(c->p + c->f.type_at[0]) == GLM_F32;

    if (c->floor > 0 && !(wide && f->type == GLM_BF16))
        return c->floor;
    if (f->type == GLM_BF16) /* or more, if it is a copy of what may be off by more */
        return c->floor > 0x1p-8 ? c->floor : 0x1p-8;
    for (int i = 0; i < c->f.types; i++)
        if (*(const enum glm_dtype *)(c->p + c->f.type_at[i]) == GLM_BF16)
            return 0x1p-9;
    return 0x1p-17;
}

static bool constant(enum glm_dtype type, const void *x, int64_t n)
{
    const size_t size = glm_dtype_size(type);

    for (int64_t i = 1; i < n; i++)
        if (memcmp(x, (const char *)x + (size_t)i * size, size) != 0)
            return false;
    return true;
}

struct verdict {
    char why[300];
    double error, cpu_error, limit; /* of the worst output, by error / limit */
};

#define WRONG(v, ...) ((void)snprintf((v)->why, sizeof(v)->why, __VA_ARGS__))

static void compare_exact(
    const struct field *f, const void *got, const void *cpu, struct verdict *v)
{
    const size_t size = glm_dtype_size(f->type);

    for (int64_t i = 0; i < f->n && v->why[0] == '\0'; i++) {
        const char *a = (const char *)got + (size_t)i * size;
        const char *b = (const char *)cpu + (size_t)i * size;
        if (memcmp(a, b, size) == 0)
            continue;
        if (f->type == GLM_I32)
            WRONG(v, "%s[%lld] is %d, the CPU has %d", f->name, (long long)i,
                *(const int32_t *)(const void *)a, *(const int32_t *)(const void *)b);
        else if (!isnan(op_at(f->type, got, i)) || !isnan(op_at(f->type, cpu, i)))
            WRONG(v, "%s[%lld] is %.9g, the CPU has %.9g, bits expected", f->name,
                (long long)i, op_at(f->type, got, i), op_at(f->type, cpu, i));
    }
}

static void compare_near(const struct opcase *c, const struct field *f, const void *got,
    const void *cpu, enum glm_dtype ref_type, const void *ref, struct verdict *v)
{
    const struct off a = off_by(f->type, got, ref_type, ref, f->n);
    const struct off b = off_by(f->type, cpu, ref_type, ref, f->n);
    const double least = floor_of(c, f);
    const double limit = 3 * b.most + least, mean = 3 * b.mean + least;

    if (v->limit == 0 || a.most / limit > v->error / v->limit) {
        v->error = a.most;
        v->cpu_error = b.most;
        v->limit = limit;
    }
    if (v->why[0] != '\0')
        return;
    if (!(a.most <= limit))
        WRONG(v,
            "%s[%lld] is %.9g, expected %.9g: off by %.3g of the largest, the CPU "
            "by %.3g, %.3g allowed",
            f->name, (long long)a.at, op_at(f->type, got, a.at),
            op_at(ref_type, ref, a.at), a.most, b.most, limit);
    else if (!(a.mean <= mean))
        WRONG(v,
            "%s is off by %.3g (root of mean squares), the CPU by %.3g, %.3g allowed",
            f->name, a.mean, b.mean, mean);
    else if (f->n > 1 && constant(f->type, got, f->n) && !constant(ref_type, ref, f->n))
        WRONG(v, "%s is the same everywhere", f->name);
}

static void compare(struct suite *s, const struct opcase *c, void *const *cpu,
    void *const *ref, const struct fields *ref_f, struct verdict *v)
{
    for (int i = 0; i < c->f.count; i++) {
        const struct field *f = &c->f.field[i];
        if (c->got[i] == NULL)
            continue;
        /* One number cannot vary; it has the CPU's bits, then. */
        s->varied[c->op][i] |=
            !constant(f->type, c->got[i], f->n) || (f->n == 1 && c->expect == EXACT);
        if (c->check != NULL)
            continue;
        if (c->expect == EXACT || f->type == GLM_I32)
            compare_exact(f, c->got[i], cpu[i], v);
        else if (c->expect == SAME)
            compare_near(c, f, c->got[i], cpu[i], f->type, cpu[i], v);
        else
            compare_near(c, f, c->got[i], cpu[i], ref_f->field[i].type, ref[i], v);
    }
    if (c->check != NULL && v->why[0] == '\0')
        c->check(c, v->why);
}

/* ---- running ---------------------------------------------------------------------------------- */

/* Runs on the CPU in the case's type or in F64. */
static int on_cpu(struct suite *s, const struct opcase *c, bool f64, void *out[FIELDS],
    struct fields *f, struct glm_error *err)
{
    struct board b;

    if (board_open(&b, c, s->cpu, s->cpu_stream, f64, false, err) == 0
        && board_run(&b, err) == 0)
        board_fetch(&b, out, err);
    *f = b.f;
    board_close(&b);
    return glm_within(err, "CPU, %s", f64 ? "F64" : "same type");
}

static bool same_bits(const struct opcase *c, void *const *a, char why[300])
{
    for (int i = 0; i < c->f.count; i++) {
        const struct field *f = &c->f.field[i];
        if (c->got[i] == NULL)
            continue;
        const int64_t n = op_differ(f->type, a[i], c->got[i], f->n);
        if (n > 0) {
            snprintf(
                why, 200, "%lld elements of %s have other bits", (long long)n, f->name);
            return false;
        }
    }
    return true;
}

static void free_all(void *x[FIELDS])
{
    for (int i = 0; i < FIELDS; i++) {
        free(x[i]);
        x[i] = NULL;
    }
}

static void repeat(struct suite *s, const struct opcase *c, struct board *b,
    struct verdict *v, struct glm_error *err)
{
    void *again[FIELDS] = {NULL};
    char why[300];
    int status;

    if (s->noise && (status = s->noise_start()) != 0) {
        glm_fail(
            err, GLM_EDEVICE, "the kernel beside it does not start: status %d", status);
        return;
    }
    for (int i = 1; i < s->repeats && err->code == GLM_OK && v->why[0] == '\0'; i++) {
        if (board_run(b, err) == 0 && board_fetch(b, again, err) == 0
            && !same_bits(c, again, why))
            WRONG(v, "run %d of %d: %.200s", i + 1, s->repeats, why);
        free_all(again);
    }
    if (s->noise && (status = s->noise_stop()) != 0)
        glm_fail(err, GLM_EDEVICE,
            "the kernel beside it did not run all along: status %d", status);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A GPU gives the processes that use it turns of milliseconds: each wait for the device would take as
 * long as all of them, so that one has it at a time. */
static void on_other(
    struct suite *s, struct opcase *c, struct verdict *v, struct glm_error *err)
{
    struct board b;
    const double asked = seconds();

    if (s->lock >= 0)
        flock(s->lock, LOCK_EX);
    const double began = seconds();
    if (board_open(&b, c, s->other, s->stream, false, !s->small, err) == 0
        && board_run(&b, err) == 0 && board_fetch(&b, c->got, err) == 0
        && board_inspect(&b, err) == 0)
        repeat(s, c, &b, v, err);
    board_close(&b);
    if (s->lock >= 0)
        flock(s->lock, LOCK_UN);
    s->waited += began - asked;
    s->on_other += seconds() - began;
}

static void report(struct suite *s, const struct opcase *c, const struct verdict *v)
{
    const bool good = v->why[0] == '\0';

    good ? s->passed++ : s->failed++;
    printf("%s %s %s%s%s\n", good ? "ok" : "FAIL", op_name(c->op), c->name,
        good ? "" : ": ", v->why);
    fflush(stdout);
    if (s->json != NULL)
        fprintf(s->json,
            "%s{\"op\": \"%s\", \"case\": \"%s\", \"ok\": %s, \"error\": %.3g, "
            "\"cpu_error\": %.3g, \"limit\": %.3g}",
            s->passed + s->failed > 1 ? ",\n  " : "  ", op_name(c->op), c->name,
            good ? "true" : "false", v->error, v->cpu_error, v->limit);
}

void case_run(struct suite *s, struct opcase *c)
{
    struct glm_error err = {0};
    struct verdict v = {.why = ""};
    void *cpu[FIELDS] = {NULL}, *ref[FIELDS] = {NULL};
    struct fields same, wide = {.count = 0};
    const double began = seconds();

    if (c == NULL)
        return;
    s->ran[c->op] = true;
    if (!op_there(c->op, s->other)) {
        s->skipped++;
        printf("SKIP %s %s: not in this backend\n", op_name(c->op), c->name);
        free_case(c);
        return;
    }
    on_cpu(s, c, false, cpu, &same, &err);
    if (err.code == GLM_OK && c->expect == NEAR && c->f.types > 0)
        on_cpu(s, c, true, ref, &wide, &err);
    s->on_cpu += seconds() - began;
    if (err.code == GLM_OK)
        on_other(s, c, &v, &err);
    if (err.code == GLM_OK && v.why[0] == '\0')
        compare(s, c, cpu, ref, &wide, &v);
    if (err.code != GLM_OK)
        WRONG(&v, "%.280s", err.text);
    report(s, c, &v);
    free_all(cpu);
    free_all(ref);
    free_case(c);
}

void suite_close(struct suite *s)
{
    for (int op = 0; op < OP_COUNT; op++) {
        _Alignas(16) const char none[STRUCT_BYTES] = {0};
        struct fields f;
        if (!s->ran[op] || !op_there((enum op_id)op, s->other) || s->failed > 0)
            continue;
        op_fields((enum op_id)op, none, &f);
        for (int i = 0; i < f.count; i++) {
            if (f.field[i].dir == IN || s->varied[op][i])
                continue;
            s->failed++;
            printf("FAIL %s: %s was the same everywhere in every case\n",
                op_name((enum op_id)op), f.field[i].name);
        }
    }
}
