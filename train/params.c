#include "train/params.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/bf16.h"
#include "kernels/base/crew.h"
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

enum { INIT_CHUNK = 1 << 18 };

struct init {
    struct params *p;
    uint32_t seed;
    int64_t *first; /* [count + 1]: the job of a parameter's first chunk */
    pthread_mutex_t copying;
};

struct init_room { /* a thread's own */
    float chunk[INIT_CHUNK];
    double cast[INIT_CHUNK]; /* room for any type */
};

static void *init_room(void *ctx, struct glm_error *err)
{
    (void)ctx;
    (void)err;
    return malloc(sizeof(struct init_room));
}

static int init_chunk(void *ctx, void *state, int64_t job, struct glm_error *err)
{
    struct init *const in = ctx;
    struct init_room *const room = state;
    struct params *const p = in->p;
    int64_t i = 0;

    while (in->first[i + 1] <= job)
        i++;
    const struct param *const one = &p->p[i];
    const struct table_entry *const e = one->entry;
    const bool bias = e->optimizer == OPT_ROUTER_BIAS || ends_in(e->name, ".bias");
    const int64_t at = (job - in->first[i]) * INIT_CHUNK;
    const int64_t n = one->count - at < INIT_CHUNK ? one->count - at : INIT_CHUNK;
    const struct random_stream s = random_open(in->seed, "init", e->name);
    enum glm_dtype type;
    char *const to = source_of_truth(p, one, &type);

    if (e->rank >= 2)
        random_normal_f32(&s, (uint64_t)at, (uint64_t)n, 0,
            p->table->config.initializer_range, room->chunk);
    for (int64_t k = 0; e->rank < 2 && k < n; k++)
        room->chunk[k] = bias ? 0 : 1;
    tensors_cast(room->cast, type, room->chunk, GLM_F32, n);
    pthread_mutex_lock(&in->copying);
    home_put(&p->home, to + (size_t)at * glm_dtype_size(type), room->cast,
        (size_t)n * glm_dtype_size(type), err);
    pthread_mutex_unlock(&in->copying);
    return (int)err->code;
}

static int round_all(struct params *p, struct glm_error *err)
{
    for (int64_t i = 0; i < p->count; i++)
        if (params_round(p, i, err) != 0)
            break;
    return (int)err->code;
}

int params_init(struct params *p, uint32_t seed, struct glm_error *err)
{
    struct init in = {.p = p, .seed = seed};

    in.first = calloc((size_t)p->count + 1, sizeof *in.first);
    if (in.first == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for first weights");
    for (int64_t i = 0; i < p->count; i++)
        in.first[i + 1] = in.first[i] + (p->p[i].count + INIT_CHUNK - 1) / INIT_CHUNK;
    const struct crew c = {.threads = p->options.threads,
        .count = in.first[p->count],
        .ctx = &in,
        .start = init_room,
        .stop = free,
        .work = init_chunk};
    pthread_mutex_init(&in.copying, NULL);
    crew_run(&c, err);
    pthread_mutex_destroy(&in.copying);
    free(in.first);
    return err->code == GLM_OK ? round_all(p, err) : (int)err->code;
}

int params_load(struct params *p, struct reader *r, struct glm_error *err)
{
    struct train_tensors all = {0};

    for (int64_t i = 0; i < p->count; i++) {
        const struct param *const one = &p->p[i];
        const struct table_entry *const e = one->entry;
        enum glm_dtype type;
        void *const to = source_of_truth(p, one, &type);
        /* A frozen BF16 weight is taken as it is stored, all else as exactly as it is there. */
        const bool master = type != GLM_BF16 && tensors_there(r, SECTION_MASTER, e->name);
        if (tensors_add_entry(&all, master ? SECTION_MASTER : SECTION_WEIGHT, e, type, to,
                &p->home, false, err)
            != 0)
            break;
    }
    if (err->code == GLM_OK
        && tensors_read_all(&all, r, true, p->options.threads, err) == 0)
        round_all(p, err);
    tensors_clear(&all);
    return (int)err->code;
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
