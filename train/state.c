#include "train/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/bands.h"

/* ---- the list --------------------------------------------------------------------------------- */

static int add_train(struct state *s, const char *name, enum glm_dtype dtype,
    int64_t count, void *data, struct glm_error *err)
{
    const struct train_tensor t = {.section = SECTION_TRAIN,
        .name = name,
        .dtype = dtype,
        .rank = count > 0 ? 1 : 0,
        .shape = {count},
        .data = data};
    return tensors_add(&s->tensors, &t, err);
}

/* Sections in order; rows of the table in its order, the rest by name. */
static int in_order(const void *a, const void *b)
{
    const struct train_tensor *x = a, *y = b;

    if (x->section != y->section)
        return x->section < y->section ? -1 : 1;
    if (x->entry != NULL && y->entry != NULL)
        return x->entry < y->entry ? -1 : x->entry > y->entry;
    return strcmp(x->name, y->name);
}

int state_init(struct state *s, struct glm_error *err)
{
    s->features_size = strlen(s->features);
    s->build_size = strlen(s->build);
    schedule_pack(&s->plan, s->schedule);
    if (params_state(s->params, &s->tensors, err) != 0
        || optimizer_state(s->optimizer, &s->tensors, err) != 0
        || add_train(s, "step", GLM_I64, 0, &s->step, err) != 0
        || add_train(s, "samples", GLM_I64, 0, &s->samples, err) != 0
        || add_train(s, "tokens", GLM_I64, 0, &s->tokens, err) != 0
        || add_train(s, "data_position", GLM_I64, 0, &s->position, err) != 0
        || add_train(s, "data_fingerprint", GLM_U8, DIGEST_SIZE, s->data, err) != 0
        || add_train(s, "seed", GLM_U64, 0, &s->seed, err) != 0
        || add_train(s, "schedule", GLM_F64, SCHEDULE_NUMBERS, s->schedule, err) != 0
        || add_train(s, "features", GLM_U8, (int64_t)s->features_size, s->features, err)
            != 0
        || add_train(s, "build", GLM_U8, (int64_t)s->build_size, s->build, err) != 0)
        return (int)err->code;
    qsort(s->tensors.list, (size_t)s->tensors.count, sizeof *s->tensors.list, in_order);
    return GLM_OK;
}

void state_clear(struct state *s)
{
    tensors_clear(&s->tensors);
    free(s->features);
    free(s->build);
    *s = (struct state){0};
}

/* ---- tiles ------------------------------------------------------------------------------------ */

struct tile_grid state_grid(const struct train_tensor *t)
{
    struct tile_grid g;

    if (t->entry != NULL)
        return t->entry->grid;
    tile_grid_init(&g, t->shape, t->rank, t->stack, false);
    return g;
}

int64_t state_tiles(const struct train_tensor *t)
{
    const struct tile_grid g = state_grid(t);
    return tile_count(&g);
}

struct rect state_band(const struct tile_grid *g, int64_t band)
{
    const int64_t e = band / g->count[1], row = band % g->count[1] * g->tile[1];
    const int64_t end = row + g->tile[1] < g->dims[1] ? row + g->tile[1] : g->dims[1];

    return (struct rect){.lo = {e, row, 0}, .hi = {e + 1, end, g->dims[2]}};
}

size_t state_band_room(const struct train_tensor *t, const struct tile_grid *g)
{
    return (size_t)(g->tile[1] * g->dims[2]) * glm_dtype_size(t->dtype) + 1;
}

const unsigned char *state_band_data(const struct train_tensor *t,
    const struct tile_grid *g, const struct rect *band, void *buf, struct glm_error *err)
{
    const int64_t first = (band->lo[0] * g->dims[1] + band->lo[1]) * g->dims[2];
    const size_t size = glm_dtype_size(t->dtype);
    return home_get(t->home, (const unsigned char *)t->data + (size_t)first * size,
        (size_t)rect_count(band) * size, buf, err);
}

int64_t state_bands(const struct tile_grid *g)
{
    return tile_count(g) > 0 ? g->count[0] * g->count[1] : 0;
}

struct hashing {
    int64_t *first; /* [tensors]: the first tile of each */
    unsigned char *digests;
};

static int hash_band(void *ctx, void *own, const struct band *b, struct glm_error *err)
{
    const struct hashing *const h = ctx;

    (void)own;
    unsigned char *const out = h->digests
        + (size_t)(h->first[b->tensor] + b->band * b->grid.count[2]) * DIGEST_SIZE;
    if (!reader_hash_tiles(&b->grid, &b->at, glm_dtype_size(b->t->dtype), b->data, out))
        glm_fail(err, GLM_ENOMEM, "%s: no memory to hash its tiles", b->t->name);
    return (int)err->code;
}

static int hash_list(const struct train_tensors *all, int threads, unsigned char *digests,
    struct glm_error *err)
{
    struct hashing h = {.digests = digests};
    const struct bands run = {
        .all = all, .threads = threads, .ctx = &h, .work = hash_band};

    h.first = calloc((size_t)all->count + 1, sizeof *h.first);
    if (h.first == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory to hash the state");
    for (int64_t i = 0; i < all->count; i++)
        h.first[i + 1] = h.first[i] + state_tiles(&all->list[i]);
    bands_run(&run, err);
    free(h.first);
    return (int)err->code;
}

int state_hash(
    const struct train_tensor *t, unsigned char *digests, struct glm_error *err)
{
    const struct train_tensors alone = {
        .list = (struct train_tensor *)(uintptr_t)t, .count = 1};

    return hash_list(&alone, 1, digests, err);
}

static int threads_of(const struct state *s)
{
    return s->params != NULL ? s->params->options.threads : 1;
}

int state_hash_all(const struct state *s, unsigned char *digests, struct glm_error *err)
{
    return hash_list(&s->tensors, threads_of(s), digests, err);
}

/* ---- numbers ---------------------------------------------------------------------------------- */

/* Bits of an exponent that is all ones: no number, or infinite. */
static uint64_t exponent_of(enum glm_dtype t)
{
    return t == GLM_BF16 ? 0x7F80 : t == GLM_F32 ? 0x7F800000 : 0x7FF0000000000000;
}

static uint64_t bits_at(enum glm_dtype type, const void *data, int64_t i)
{
    switch (type) {
    case GLM_BF16:
        return ((const uint16_t *)data)[i];
    case GLM_F32:
        return ((const uint32_t *)data)[i];
    default:
        return ((const uint64_t *)data)[i];
    }
}

static bool is_real(enum glm_dtype t)
{
    return t == GLM_BF16 || t == GLM_F32 || t == GLM_F64;
}

static bool has_numbers(const struct train_tensor *t)
{
    return t->entry != NULL && !t->derived && is_real(t->dtype);
}

static int check_band(void *ctx, void *own, const struct band *b, struct glm_error *err)
{
    const struct train_tensor *const t = b->t;
    const uint64_t ones = exponent_of(t->dtype);
    const int64_t n = rect_count(&b->at);
    const int64_t before =
        (b->at.lo[0] * b->grid.dims[1] + b->at.lo[1]) * b->grid.dims[2];

    (void)ctx;
    (void)own;
    for (int64_t k = 0; k < n; k++)
        if ((bits_at(t->dtype, b->data, k) & ones) == ones)
            return glm_fail(err, GLM_EMISMATCH,
                "%s/%s, element %lld, is not a finite number", section_name(t->section),
                t->name, (long long)(before + k));
    return GLM_OK;
}

int state_check(const struct state *s, struct glm_error *err)
{
    const struct bands run = {.all = &s->tensors,
        .threads = threads_of(s),
        .wanted = has_numbers,
        .work = check_band};

    return bands_run(&run, err);
}

/* ---- loading ---------------------------------------------------------------------------------- */

static const char *line_at(const char *text, size_t size, size_t *at, size_t *length)
{
    const char *p = text + *at;

    *length = 0;
    while (*at + *length < size && p[*length] != '\n')
        (*length)++;
    *at += *length + (*at + *length < size);
    return p;
}

/* Of two texts of lines "name value" in one order, the first pair that differs. */
static bool lines_differ(const char *a, size_t a_size, const char *b, size_t b_size,
    char a_line[200], char b_line[200])
{
    size_t i = 0, j = 0, m, n;

    while (i < a_size || j < b_size) {
        const char *x = line_at(a, a_size, &i, &m), *y = line_at(b, b_size, &j, &n);
        if (m == n && memcmp(x, y, n) == 0)
            continue;
        snprintf(a_line, 200, "%.*s", (int)(m < 190 ? m : 190), x);
        snprintf(b_line, 200, "%.*s", (int)(n < 190 ? n : 190), y);
        return true;
    }
    return false;
}

/* A text of section train, malloc'd. */
static int read_text(
    struct reader *r, const char *name, char **text, size_t *size, struct glm_error *err)
{
    const struct manifest *m = reader_manifest(r);
    const int64_t i = manifest_find(m, SECTION_TRAIN, name);

    if (i < 0 || m->tensors[i].rank != 1 || m->tensors[i].dtype != GLM_U8)
        return glm_fail(err, GLM_EFORMAT,
            "%s: holds no train/%s; it is no checkpoint of a training run",
            reader_index(r)->path, name);
    struct train_tensor t = {.section = SECTION_TRAIN,
        .name = name,
        .dtype = GLM_U8,
        .rank = 1,
        .shape = {m->tensors[i].shape[0]}};
    *size = (size_t)t.shape[0];
    if ((*text = malloc(*size + 1)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "train/%s: no memory", name);
    t.data = *text;
    if (tensors_read(&t, r, false, err) != 0) {
        free(*text);
        *text = NULL;
    }
    return (int)err->code;
}

static int check_text(struct reader *r, const char *name, const char *mine,
    size_t mine_size, const struct glm_events *events, struct glm_error *err)
{
    char theirs_line[200], my_line[200], sentence[700];
    char *theirs = NULL;
    size_t size = 0;

    if (read_text(r, name, &theirs, &size, err) != GLM_OK)
        return (int)err->code;
    if (lines_differ(theirs, size, mine, mine_size, theirs_line, my_line)) {
        if (events == NULL) {
            glm_fail(err, GLM_EUSAGE, "%s: was trained with '%s', this run has '%s'",
                reader_index(r)->path, theirs_line, my_line);
        } else {
            snprintf(sentence, sizeof sentence,
                "the checkpoint was made with '%s', this is '%s': bits may differ",
                theirs_line, my_line);
            glm_events_note(events, sentence);
        }
    }
    free(theirs);
    return (int)err->code;
}

static int check_identity(const struct state *s, struct reader *r, struct glm_error *err)
{
    unsigned char data[DIGEST_SIZE];
    double schedule[SCHEDULE_NUMBERS];
    uint64_t seed = 0;
    const struct train_tensor small[] = {
        {.section = SECTION_TRAIN, .name = "seed", .dtype = GLM_U64, .data = &seed},
        {.section = SECTION_TRAIN,
            .name = "data_fingerprint",
            .dtype = GLM_U8,
            .rank = 1,
            .shape = {DIGEST_SIZE},
            .data = data},
        {.section = SECTION_TRAIN,
            .name = "schedule",
            .dtype = GLM_F64,
            .rank = 1,
            .shape = {SCHEDULE_NUMBERS},
            .data = schedule}};
    const char *const path = reader_index(r)->path;
    char theirs[DIGEST_HEX], mine[DIGEST_HEX];

    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        if (tensors_read(&small[i], r, false, err) != 0)
            return (int)err->code;
    if (seed != s->seed)
        return glm_fail(err, GLM_EUSAGE,
            "%s: was trained with seed %" PRIu64 ", this run has %" PRIu64, path, seed,
            s->seed);
    if (memcmp(data, s->data, DIGEST_SIZE) != 0) {
        digest_hex(data, theirs);
        digest_hex(s->data, mine);
        return glm_fail(err, GLM_EUSAGE,
            "%s: was trained on the dataset with fingerprint %.16s, "
            "this run's is %.16s: its files, weights, order or options differ",
            path, theirs, mine);
    }
    if (schedule_same(&s->plan, schedule, err) != 0)
        glm_within(err, "%s", path);
    return (int)err->code;
}

static bool is_text(const struct train_tensor *t)
{
    return strcmp(t->name, "features") == 0 || strcmp(t->name, "build") == 0;
}

int state_load(struct state *s, struct reader *r, const struct glm_events *events,
    struct glm_error *err)
{
    static const struct glm_events nobody = {0};
    const struct manifest *m = reader_manifest(r);

    if (memcmp(m->table->config.sha256, s->params->table->config.sha256, DIGEST_SIZE)
        != 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: is a checkpoint of another model: its config.json is not the run's",
            reader_index(r)->path);
    if (check_text(r, "features", s->features, s->features_size, NULL, err) != GLM_OK
        || check_text(r, "build", s->build, s->build_size,
               events != NULL ? events : &nobody, err)
            != GLM_OK
        || check_identity(s, r, err) != GLM_OK)
        return (int)err->code;
    if (params_load(s->params, r, err) != 0 || optimizer_load(s->optimizer, r, err) != 0)
        return glm_within(err, "%s", reader_index(r)->path);
    for (int64_t i = 0; i < s->tensors.count; i++) {
        const struct train_tensor *t = &s->tensors.list[i];
        const bool counter = t->data == &s->step || t->data == &s->samples
            || t->data == &s->tokens || t->data == &s->position;
        if (t->section == SECTION_TRAIN && !is_text(t) && counter
            && tensors_read(t, r, false, err) != 0)
            return (int)err->code;
    }
    return GLM_OK;
}
