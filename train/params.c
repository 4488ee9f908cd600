#include "train/params.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"

enum { ALIGN = 64 };

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- sizes ------------------------------------------------------------------------------------ */

bool params_trains(const struct params_options *o, const struct table_entry *e)
{
    const bool indexer = e->kind == KIND_INDEXER;
    return o->trained == PARAMS_ALL || (o->trained == PARAMS_INDEXER) == indexer;
}

static int64_t elements(const struct table_entry *e)
{
    int64_t n = 1;

    for (int i = 0; i < e->rank; i++)
        n *= e->shape[i];
    return n;
}

static enum glm_dtype acc_of(const struct params_options *o)
{
    return o->dtype == GLM_F64 ? GLM_F64 : GLM_F32;
}

struct part_bytes {
    size_t model, master, gradient;
};

static struct part_bytes part_of(
    const struct table_entry *e, const struct params_options *o)
{
    const size_t n = (size_t)elements(e), acc = glm_dtype_size(acc_of(o));
    const bool bias = e->optimizer == OPT_ROUTER_BIAS;
    const bool trained = params_trains(o, e);
    struct part_bytes b = {.model = aligned(n * (bias ? 4 : glm_dtype_size(o->dtype)))};

    if (trained && !bias && o->dtype == GLM_BF16)
        b.master = aligned(n * acc);
    if (trained)
        b.gradient = aligned(n * (bias ? sizeof(int64_t) : acc));
    return b;
}

int params_plan(struct params_bytes *out, const struct table *t,
    const struct params_options *o, struct glm_error *err)
{
    *out = (struct params_bytes){0};
    if (o->dtype != GLM_BF16 && o->dtype != GLM_F32 && o->dtype != GLM_F64)
        return glm_fail(err, GLM_EUSAGE,
            "parameters of type %s, expected BF16, F32 or F64", glm_dtype_name(o->dtype));
    for (int64_t i = 0; i < t->count; i++) {
        const struct part_bytes b = part_of(&t->entries[i], o);
        out->model += b.model;
        out->master += b.master;
        out->gradient += b.gradient;
    }
    out->total = out->model + out->master + out->gradient;
    return 0;
}

/* ---- memory ----------------------------------------------------------------------------------- */

/* The arena: | model copies | masters | gradients |, each in table order. */
static void place(struct params *p, const struct params_bytes *b)
{
    char *model = p->arena, *master = model + b->model, *gradient = master + b->master;

    p->grads_at = b->model + b->master;
    p->grads_bytes = b->gradient;
    for (int64_t i = 0; i < p->count; i++) {
        const struct table_entry *e = &p->table->entries[i];
        const struct part_bytes part = part_of(e, &p->options);
        const bool bias = e->optimizer == OPT_ROUTER_BIAS;
        struct param *one = &p->p[i];
        *one = (struct param){.entry = e,
            .count = elements(e),
            .w = model,
            .trained = params_trains(&p->options, e),
            .dtype = bias ? GLM_F32 : p->options.dtype};
        if (one->trained)
            one->master = part.master > 0 ? master : model;
        if (one->trained && bias)
            one->routed = (int64_t *)(void *)gradient;
        else if (one->trained)
            one->grad = gradient;
        model += part.model;
        master += part.master;
        gradient += part.gradient;
    }
}

int params_new(struct params **out, const struct table *t, const struct params_options *o,
    struct glm_error *err)
{
    struct params_bytes b;
    struct params *p = NULL;

    *out = NULL;
    if (params_plan(&b, t, o, err) != 0)
        return err->code;
    if ((p = calloc(1, sizeof *p)) == NULL
        || (p->p = calloc((size_t)t->count + 1, sizeof *p->p)) == NULL) {
        params_free(p);
        return glm_fail(err, GLM_ENOMEM, "no memory for a list of %lld parameters",
            (long long)t->count);
    }
    p->table = t;
    p->options = *o;
    p->home = o->home;
    if (p->home.k == NULL)
        p->home.k = kernels_find("cpu");
    p->acc = acc_of(o);
    p->count = t->count;
    if ((p->arena = p->home.k->alloc(b.total + ALIGN, err)) == NULL) {
        glm_within(err, "the parameters (weights %zu bytes, masters %zu, gradients %zu)",
            b.model, b.master, b.gradient);
        params_free(p);
        return (int)err->code;
    }
    place(p, &b);
    if (params_zero_grads(p, err) != 0) {
        params_free(p);
        return (int)err->code;
    }
    *out = p;
    return 0;
}

void params_free(struct params *p)
{
    if (p == NULL)
        return;
    if (p->arena != NULL)
        p->home.k->release(p->arena);
    free(p->p);
    free(p);
}

int params_zero_grads(struct params *p, struct glm_error *err)
{
    return home_zero(&p->home, (char *)p->arena + p->grads_at, p->grads_bytes, err);
}

int params_round(struct params *p, int64_t i, struct glm_error *err)
{
    const struct param *one = &p->p[i];
    const struct convert c = {
        .y = one->w, .x = one->master, .n = one->count, .from = p->acc, .to = one->dtype};

    if (one->master == NULL || one->master == one->w)
        return 0;
    return p->home.k->convert(&c, p->home.stream, err);
}

/* ---- values ----------------------------------------------------------------------------------- */

/* Where values come in: the master if there is one, and its type. */
static void *source_of_truth(
    const struct params *p, const struct param *one, enum glm_dtype *type)
{
    const bool own = one->master != NULL && one->master != one->w;

    *type = own ? p->acc : one->dtype;
    return own ? one->master : one->w;
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

static int init_one(struct params *p, int64_t i, uint32_t seed, struct glm_error *err)
{
    enum { CHUNK = 1 << 16 };
    const struct param *one = &p->p[i];
    const struct table_entry *e = one->entry;
    const bool random = e->rank >= 2;
    const bool bias = e->optimizer == OPT_ROUTER_BIAS || ends_in(e->name, ".bias");
    const struct random_stream s = random_open(seed, "init", e->name);
    enum glm_dtype type;
    char *to = source_of_truth(p, one, &type);
    float *const chunk = malloc(CHUNK * sizeof *chunk);
    double *const cast = malloc(CHUNK * sizeof *cast); /* room for any type */

    if (chunk == NULL || cast == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory for first weights");
        goto out;
    }
    for (int k = 0; k < CHUNK; k++)
        chunk[k] = bias ? 0 : 1;
    for (int64_t at = 0; at < one->count; at += CHUNK) {
        const int64_t n = one->count - at < CHUNK ? one->count - at : CHUNK;
        if (random)
            random_normal_f32(&s, (uint64_t)at, (uint64_t)n, 0,
                p->table->config.initializer_range, chunk);
        tensors_cast(cast, type, chunk, GLM_F32, n);
        if (home_put(&p->home, to + (size_t)at * glm_dtype_size(type), cast,
                (size_t)n * glm_dtype_size(type), err)
            != 0)
            goto out;
    }
    params_round(p, i, err);
out:
    free(chunk);
    free(cast);
    return (int)err->code;
}

int params_init(struct params *p, uint32_t seed, struct glm_error *err)
{
    for (int64_t i = 0; i < p->count; i++)
        if (init_one(p, i, seed, err) != 0)
            return (int)err->code;
    return 0;
}

int params_load(struct params *p, struct reader *r, struct glm_error *err)
{
    for (int64_t i = 0; i < p->count; i++) {
        const struct param *one = &p->p[i];
        const struct table_entry *e = one->entry;
        enum glm_dtype type;
        void *to = source_of_truth(p, one, &type);
        /* A frozen BF16 weight is taken as it is stored, all else as exactly as it is there. */
        const bool master = type != GLM_BF16 && tensors_there(r, SECTION_MASTER, e->name);
        struct train_tensors t = {0};
        tensors_add_entry(&t, master ? SECTION_MASTER : SECTION_WEIGHT, e, type, to,
            &p->home, false, err);
        if (err->code == GLM_OK)
            tensors_read(&t.list[0], r, true, err);
        tensors_clear(&t);
        if (err->code != GLM_OK)
            return err->code;
        if (params_round(p, i, err) != 0)
            return err->code;
    }
    return 0;
}

int params_state(const struct params *p, struct train_tensors *t, struct glm_error *err)
{
    for (int64_t i = 0; i < p->count; i++) {
        const struct param *one = &p->p[i];
        const bool own = one->master != NULL && one->master != one->w;
        if (tensors_add_entry(
                t, SECTION_WEIGHT, one->entry, one->dtype, one->w, &p->home, own, err)
            != 0)
            return err->code;
    }
    for (int64_t i = 0; i < p->count; i++) {
        const struct param *one = &p->p[i];
        if (one->master != NULL && one->master != one->w
            && tensors_add_entry(t, SECTION_MASTER, one->entry, p->acc, one->master,
                   &p->home, false, err)
                != 0)
            return err->code;
    }
    return 0;
}
