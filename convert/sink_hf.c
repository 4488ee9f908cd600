/* A Hugging Face directory as a sink: safetensors files laid out beforehand, filled by many threads.
 *
 *     DIR.partial/model-00001-of-00003.safetensors   header, then room for its tensors
 *                 journal     done <file> <first row> <count>, rows of the manifest's tile grid
 *
 * Shapes and types are known before the first byte, so headers are written at once, files get their
 * full length, and every tensor has its place. In a new layout a header is padded to 4,096 bytes
 * and tensors of whole blocks come first, so the big ones can be written past the page cache
 * without a copy. With stored headers the original files come back byte for byte. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/ends.h"
#include "convert/hfstored.h"

enum { BOUNCE = 8 << 20, NAME = 640 };

struct slot { /* where one member goes */
    int32_t file;
    uint64_t offset; /* absolute in the file */
};

struct out_file {
    char *name;
    struct st_tensor *tensors; /* names and shapes owned here; NULL with stored headers */
    int64_t count;
    void *header;
    size_t header_size;
    uint64_t size;
    struct dio io;
    bool ready;
};

struct hf_writer {
    const struct manifest *m;
    struct work *work;
    struct ledger ledger;
    struct out_file *files;
    int64_t file_count, tensor_count;
    int64_t *first;     /* [tensor]: its first slot */
    int64_t *first_row; /* [tensor]: its first tile in the ledger */
    struct slot *slots;
    uint64_t bytes;
    pthread_mutex_t lock;
    bool new_files;
    bool stored;
};

static int64_t members_of(const struct ckpt_tensor *t)
{
    return t->grid.dims[0];
}

static uint64_t member_bytes(const struct ckpt_tensor *t)
{
    return (uint64_t)(t->grid.dims[1] * t->grid.dims[2]) * glm_dtype_size(t->dtype);
}

static bool is_scale(const struct ckpt_tensor *t)
{
    return t->block[0] * t->block[1] > 1;
}

/* The Hugging Face name of a member, or of its scale: the weight's name with the scale's suffix. */
static void member_name(const struct ckpt_tensor *t, int64_t member, char out[NAME])
{
    char weight[NAME];

    if (!is_scale(t)) {
        table_member_name(t->entry, member, out, NAME);
        return;
    }
    table_member_name(t->entry, member, weight, NAME);
    table_scale_name(
        weight, t->name + strlen(t->entry->name) - strlen(".weight"), out, NAME);
}

/* ---- a new layout ----------------------------------------------------------------------------- */

struct unit {
    int64_t tensor, member;
};

/* Whole blocks first: what follows them stays aligned. Otherwise in the order of the table. */
static bool is_blocks(const struct hf_writer *w, const struct unit *u)
{
    return member_bytes(&w->m->tensors[u->tensor]) % DIO_ALIGN == 0;
}

static int describe(const struct hf_writer *w, const struct unit *u,
    struct st_tensor *out, struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[u->tensor];
    const int skip = t->stack ? 1 : 0;
    char name[NAME];
    int64_t *shape = malloc(sizeof *shape * 4);

    member_name(t, u->member, name);
    *out = (struct st_tensor){.name = strdup(name),
        .name_length = strlen(name),
        .dtype = t->dtype,
        .rank = t->rank - skip,
        .shape = shape};
    if (out->name == NULL || shape == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    for (int i = 0; i < out->rank; i++)
        shape[i] = t->shape[i + skip];
    return GLM_OK;
}

/* One file out of consecutive units. */
static int lay_file(
    struct hf_writer *w, const struct unit *units, int64_t count, struct glm_error *err)
{
    struct out_file *f = &w->files[w->file_count];
    const struct unit **order = calloc((size_t)count, sizeof *order);
    int64_t n = 0;

    f->tensors = calloc((size_t)count, sizeof *f->tensors);
    if (order == NULL || f->tensors == NULL) {
        free(order);
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    }
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < count; i++)
            if (is_blocks(w, &units[i]) == (pass == 0))
                order[n++] = &units[i];
    w->file_count++;
    for (int64_t i = 0; i < n && err->code == GLM_OK; i++, f->count++)
        describe(w, order[i], &f->tensors[i], err);
    if (err->code == GLM_OK
        && st_build(f->tensors, n, DIO_ALIGN, &f->header, &f->header_size, err)
            == GLM_OK) {
        f->size = f->header_size + (n > 0 ? f->tensors[n - 1].end : 0);
        for (int64_t i = 0; i < n; i++)
            w->slots[w->first[order[i]->tensor] + order[i]->member] = (struct slot){
                (int32_t)(w->file_count - 1), f->header_size + f->tensors[i].begin};
    }
    free(order);
    return (int)err->code;
}

static int name_files(struct hf_writer *w, struct glm_error *err)
{
    for (int64_t i = 0; i < w->file_count; i++) {
        const int n = w->file_count == 1
            ? asprintf(&w->files[i].name, "model.safetensors")
            : asprintf(&w->files[i].name,
                "model-%05" PRId64 "-of-%05" PRId64 ".safetensors", i + 1, w->file_count);
        if (n < 0) {
            w->files[i].name = NULL;
            return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
        }
    }
    return GLM_OK;
}

/* Greedy in table order: a file is closed when the next tensor would pass the limit. */
static int lay_out(struct hf_writer *w, uint64_t limit, struct glm_error *err)
{
    struct unit *units = calloc((size_t)w->tensor_count + 1, sizeof *units);
    int64_t n = 0, begun = 0;
    uint64_t held = 0;

    w->files = calloc((size_t)w->tensor_count + 1, sizeof *w->files);
    if (units == NULL || w->files == NULL)
        glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    for (int64_t i = 0; err->code == GLM_OK && i < w->m->tensor_count; i++)
        for (int64_t e = 0; e < members_of(&w->m->tensors[i]); e++) {
            const uint64_t bytes = member_bytes(&w->m->tensors[i]);
            if (n > begun && held + bytes > limit) {
                if (lay_file(w, units + begun, n - begun, err) != GLM_OK)
                    break;
                begun = n;
                held = 0;
            }
            units[n++] = (struct unit){i, e};
            held += bytes;
        }
    if (err->code == GLM_OK && n > begun)
        lay_file(w, units + begun, n - begun, err);
    free(units);
    return err->code == GLM_OK ? name_files(w, err) : (int)err->code;
}

/* ---- the original layout ---------------------------------------------------------------------- */

static int take_stored_files(
    struct hf_writer *w, struct hf_stored *s, struct glm_error *err)
{
    w->files = calloc((size_t)s->source.file_count + 1, sizeof *w->files);
    if (w->files == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    for (int64_t i = 0; i < s->source.file_count; i++) {
        struct out_file *f = &w->files[w->file_count++];
        struct hf_file *from = &s->source.files[i];
        f->name = from->name;
        f->header = from->header_bytes;
        f->header_size = (size_t)from->header.data_start;
        f->size = from->header.file_size;
        from->name = NULL;
        from->header_bytes = NULL;
    }
    return GLM_OK;
}

static int lay_as_stored(
    struct hf_writer *w, const struct index *ix, struct glm_error *err)
{
    struct hf_stored s = {0};

    w->stored = true;
    if (hf_stored_open(&s, ix, err) != GLM_OK)
        goto out;
    for (int64_t i = 0; i < w->m->tensor_count; i++) {
        const struct ckpt_tensor *t = &w->m->tensors[i];
        int64_t member;
        const struct table_entry *row =
            table_find(ix->table, t->entry->name, strlen(t->entry->name), &member);
        for (int64_t e = 0; e < members_of(t); e++) {
            const struct hf_place *p = hf_stored_place(&s, row, e, is_scale(t));
            if (p->file < 0 || p->dtype != t->dtype) {
                glm_fail(err, GLM_EUSAGE,
                    "'%s' is %s here and was %s in the original files: --same-files is "
                    "not "
                    "possible",
                    t->name, glm_dtype_name(t->dtype),
                    p->file < 0 ? "not there" : glm_dtype_name(p->dtype));
                goto out;
            }
            w->slots[w->first[i] + e] = (struct slot){p->file, p->offset};
        }
    }
    take_stored_files(w, &s, err);
out:
    hf_stored_close(&s);
    return (int)err->code;
}

/* ---- files ------------------------------------------------------------------------------------ */

static int open_file(struct hf_writer *w, int64_t no, struct glm_error *err)
{
    struct out_file *f = &w->files[no];
    char path[4096];

    pthread_mutex_lock(&w->lock);
    if (!f->ready) {
        snprintf(path, sizeof path, "%s/%s", work_path(w->work), f->name);
        if (dio_open_write(&f->io, path, true, err) == GLM_OK) {
            if (f->io.size != f->size && ftruncate(f->io.fd, (off_t)f->size) != 0)
                glm_fail_errno(err, "%s: set its length", path);
            else if (fallocate(f->io.fd, 0, 0, (off_t)f->size) != 0 && errno != EOPNOTSUPP
                && errno != ENOSYS)
                glm_fail_errno(err, "%s: reserve %" PRIu64 " bytes", path, f->size);
            else
                dio_write(&f->io, 0, f->header, f->header_size, NULL, 0, err);
        }
        f->ready = err->code == GLM_OK;
        w->new_files = true;
    }
    pthread_mutex_unlock(&w->lock);
    return (int)err->code;
}

static int sync_runs(
    void *ctx, const struct ledger_run *runs, int64_t count, struct glm_error *err)
{
    struct hf_writer *w = ctx;

    for (int64_t i = 0; i < count; i++)
        if ((i == 0 || runs[i].group != runs[i - 1].group)
            && (open_file(w, runs[i].group, err) != GLM_OK
                || dio_sync(&w->files[runs[i].group].io, err) != GLM_OK))
            return (int)err->code;
    pthread_mutex_lock(&w->lock);
    const bool due = w->new_files;
    w->new_files = false;
    pthread_mutex_unlock(&w->lock);
    return due ? dio_sync_folder(work_path(w->work), err) : GLM_OK;
}

static int replay_line(void *ctx, char *line, struct glm_error *err)
{
    struct hf_writer *w = ctx;
    struct ledger_run run;
    struct stat st;
    char path[4096];

    (void)err;
    if (!ledger_replay(&w->ledger, line, &run))
        return GLM_OK;
    if (run.group < w->file_count) {
        snprintf(
            path, sizeof path, "%s/%s", work_path(w->work), w->files[run.group].name);
        if (stat(path, &st) == 0 && (uint64_t)st.st_size == w->files[run.group].size)
            return GLM_OK;
    }
    ledger_forget(&w->ledger, run.first, run.count); /* the file did not survive */
    return GLM_OK;
}

/* ---- open ------------------------------------------------------------------------------------- */

static int number_slots(struct hf_writer *w, int64_t *rows, struct glm_error *err)
{
    int64_t slots = 0;

    *rows = 0;
    w->first = calloc((size_t)w->m->tensor_count + 1, sizeof *w->first);
    w->first_row = calloc((size_t)w->m->tensor_count + 1, sizeof *w->first_row);
    if (w->first == NULL || w->first_row == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    for (int64_t i = 0; i < w->m->tensor_count; i++) {
        const struct ckpt_tensor *t = &w->m->tensors[i];
        w->first[i] = slots;
        w->first_row[i] = *rows;
        slots += members_of(t);
        *rows += tile_count(&t->grid);
        w->bytes += member_bytes(t) * (uint64_t)members_of(t);
    }
    w->tensor_count = slots;
    w->slots = calloc((size_t)slots + 1, sizeof *w->slots);
    return w->slots == NULL ? glm_fail(err, GLM_ENOMEM, "no memory for the plan")
                            : GLM_OK;
}

int hf_writer_open(struct hf_writer **out, const struct hf_writer_options *o,
    bool *resumed, struct glm_error *err)
{
    struct hf_writer *w = calloc(1, sizeof *w);
    struct work_options work = {0};
    int64_t rows = 0;

    *out = NULL;
    if (w == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the plan");
    if (o->work != NULL)
        work = *o->work;
    w->m = o->m;
    pthread_mutex_init(&w->lock, NULL);
    if (number_slots(w, &rows, err) != GLM_OK)
        goto out;
    if (o->headers != NULL ? lay_as_stored(w, o->headers, err) != GLM_OK
                           : lay_out(w, o->max_shard_size, err) != GLM_OK)
        goto out;
    for (int64_t i = 0; i < w->file_count; i++) {
        w->files[i].io = (struct dio){.fd = -1, .direct = -1};
        work.need_bytes += w->files[i].header_size;
    }
    work.need_bytes += w->bytes;
    if (ledger_init(&w->ledger, rows, err) != GLM_OK
        || dio_need_descriptors(2 * (w->file_count + o->source_files), err) != GLM_OK
        || (o->work != NULL && work_open(&w->work, &work, resumed, err) != GLM_OK))
        goto out;
    if (*resumed && work_replay(w->work, replay_line, w, err) != GLM_OK)
        goto out;
    *out = w;
    w = NULL;
out:
    hf_writer_close(w);
    return (int)err->code;
}

int64_t hf_writer_files(const struct hf_writer *w)
{
    return w->file_count;
}
int64_t hf_writer_tensors(const struct hf_writer *w)
{
    return w->tensor_count;
}
uint64_t hf_writer_bytes(const struct hf_writer *w)
{
    return w->bytes;
}

/* ---- the sink --------------------------------------------------------------------------------- */

static uint64_t sink_key(void *ctx, int64_t tensor, int64_t member)
{
    const struct hf_writer *w = ctx;
    const struct slot *s = &w->slots[w->first[tensor] + member];
    return ((uint64_t)s->file << 48)
        + (s->offset >> 6); /* file order; offsets stay below 2^54 */
}

static bool sink_has(void *ctx, int64_t tensor, const struct rect *at)
{
    struct hf_writer *w = ctx;
    const struct tile_grid *g = &w->m->tensors[tensor].grid;
    const struct rect t = tile_cover(g, at);

    for (int64_t e = t.lo[0]; e < t.hi[0]; e++)
        for (int64_t gr = t.lo[1]; gr < t.hi[1]; gr++)
            if (!ledger_has(&w->ledger,
                    w->first_row[tensor] + tile_index(g, e, gr, t.lo[2]),
                    rect_len(&t, 2)))
                return false;
    return true;
}

static int put_member(struct hf_writer *w, const struct ckpt_tensor *t,
    const struct slot *s, const struct rect *at, const unsigned char *data,
    unsigned char *bounce, struct glm_error *err)
{
    const size_t element = glm_dtype_size(t->dtype),
                 row = (size_t)rect_len(at, 2) * element;
    const struct rect member = {
        {at->lo[0], 0, 0}, {at->lo[0] + 1, t->grid.dims[1], t->grid.dims[2]}};
    const struct dio *f = &w->files[s->file].io;

    if (region_contiguous(&member, at))
        return dio_write(f,
            s->offset + region_at(&member, at->lo[0], at->lo[1], at->lo[2], element),
            data, row * (size_t)rect_len(at, 1), bounce, BOUNCE, err);
    for (int64_t r = at->lo[1]; r < at->hi[1]; r++, data += row)
        if (dio_write(f, s->offset + region_at(&member, at->lo[0], r, at->lo[2], element),
                data, row, bounce, BOUNCE, err)
            != GLM_OK)
            return (int)err->code;
    return GLM_OK;
}

static int sink_put(void *ctx, int64_t tensor, const struct rect *at, const void *data,
    const unsigned char *digests, struct flow_thread *thread, struct glm_error *err)
{
    struct hf_writer *w = ctx;
    const struct ckpt_tensor *t = &w->m->tensors[tensor];
    const struct tile_grid *g = &t->grid;
    const struct rect tiles = tile_cover(g, at);
    const size_t element = glm_dtype_size(t->dtype);
    bool due = false;

    (void)digests;
    if (dio_reserve(&thread->back, BOUNCE, err) != GLM_OK)
        return (int)err->code;
    for (int64_t e = at->lo[0]; e < at->hi[0]; e++) {
        const struct slot *s = &w->slots[w->first[tensor] + e];
        struct rect one = *at;
        one.lo[0] = e;
        one.hi[0] = e + 1;
        if (open_file(w, s->file, err) != GLM_OK
            || put_member(w, t, s, &one,
                   (const unsigned char *)data
                       + region_at(at, e, at->lo[1], at->lo[2], element),
                   thread->back.data, err)
                != GLM_OK)
            return glm_within(err, "tensor '%s'", t->name);
        uint64_t bytes = (uint64_t)rect_count(&one) * element;
        for (int64_t gr = tiles.lo[1]; gr < tiles.hi[1]; gr++, bytes = 0) {
            bool now;
            if (ledger_add(&w->ledger, s->file,
                    w->first_row[tensor] + tile_index(g, e, gr, tiles.lo[2]),
                    rect_len(&tiles, 2), bytes, &now, err)
                != GLM_OK)
                return (int)err->code;
            due = due || now;
        }
    }
    return due ? ledger_sync(&w->ledger, w->work, sync_runs, w, err) : GLM_OK;
}

struct flow_sink hf_writer_sink(struct hf_writer *w)
{
    return (struct flow_sink){
        .m = w->m, .ctx = w, .key = sink_key, .has = sink_has, .put = sink_put};
}

/* ---- commit ----------------------------------------------------------------------------------- */

/* The sub-folders that a side file lies in, made and durable from the outside inwards. */
static int make_folders(const char *root, const char *name, struct glm_error *err)
{
    for (const char *slash = strchr(name, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%.*s", root, (int)(slash - name), name);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return glm_fail_errno(err, "%s: create", path);
        *strrchr(path, '/') = '\0';
        if (dio_sync_folder(path, err) != GLM_OK)
            return (int)err->code;
    }
    return GLM_OK;
}

int hf_writer_side(struct hf_writer *w, const char *name, const void *data, size_t size,
    struct glm_error *err)
{
    struct dio f;
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", work_path(w->work), name);
    if (make_folders(work_path(w->work), name, err) != GLM_OK)
        return (int)err->code;
    if (dio_open_write(&f, path, true, err) != GLM_OK)
        return (int)err->code;
    if (ftruncate(f.fd, 0) != 0)
        glm_fail_errno(err, "%s: empty it", path);
    else if (dio_write(&f, 0, data, size, NULL, 0, err) == GLM_OK)
        dio_sync(&f, err);
    dio_close(&f);
    char *slash = strrchr(path, '/');
    if (err->code == GLM_OK
        && strchr(name, '/') != NULL) { /* the commit syncs the top alone */
        *slash = '\0';
        dio_sync_folder(path, err);
    }
    return (int)err->code;
}

/* model.safetensors.index.json: total_size and weight_map, sorted by name as others write it. */
static int write_index(struct hf_writer *w, struct glm_error *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    const char *comma = "";

    if (f == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the index");
    fprintf(f,
        "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64
        "\n  },\n  \"weight_map\": {",
        w->bytes);
    for (int64_t i = 0; i < w->file_count; i++)
        for (int64_t k = 0; k < w->files[i].count; k++) {
            fprintf(f, "%s\n    \"%s\": \"%s\"", comma, w->files[i].tensors[k].name,
                w->files[i].name);
            comma = ",";
        }
    fprintf(f, "\n  }\n}\n");
    if (fclose(f) != 0)
        glm_fail(err, GLM_ENOMEM, "no memory for the index");
    else
        hf_writer_side(w, "model.safetensors.index.json", text, size, err);
    free(text);
    return (int)err->code;
}

int hf_writer_commit(struct hf_writer *w, struct glm_error *err)
{
    int64_t row;
    const int64_t missing = ledger_missing(&w->ledger, &row);

    if (missing > 0)
        return glm_fail(
            err, GLM_EFORMAT, "%" PRId64 " tiles were never written", missing);
    for (int64_t i = 0; i < w->file_count;
         i++) /* a file without tensors has a header too */
        if (open_file(w, i, err) != GLM_OK
            || (w->files[i].size == w->files[i].header_size
                && dio_sync(&w->files[i].io, err) != 0))
            return (int)err->code;
    if (ledger_sync(&w->ledger, w->work, sync_runs, w, err) != GLM_OK)
        return (int)err->code;
    if (!w->stored && w->file_count > 1 && write_index(w, err) != GLM_OK)
        return (int)err->code;
    if (work_commit(w->work, NULL, err) != GLM_OK)
        return (int)err->code;
    w->work = NULL;
    hf_writer_close(w);
    return GLM_OK;
}

void hf_writer_close(struct hf_writer *w)
{
    struct glm_error ignored = {0};

    if (w == NULL)
        return;
    if (w->work != NULL && w->ledger.bits != NULL)
        ledger_sync(&w->ledger, w->work, sync_runs, w, &ignored);
    for (int64_t i = 0; w->files != NULL && i < w->file_count; i++) {
        struct out_file *f = &w->files[i];
        dio_close(&f->io);
        for (int64_t k = 0; f->tensors != NULL && k < f->count; k++) {
            free((void *)(uintptr_t)f->tensors[k].name);
            free((void *)(uintptr_t)f->tensors[k].shape);
        }
        free(f->tensors);
        free(f->header);
        free(f->name);
    }
    free(w->files);
    free(w->first);
    free(w->first_row);
    free(w->slots);
    ledger_clear(&w->ledger);
    work_close(w->work);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
