/* The engine: jobs are a partition, run in order, and end in one sentence or continue. */
#include "convert/flow.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <criterion/criterion.h>

#include "ckpt/shard.h"
#include "convert/ends.h"
#include "convert/recode.h"
#include "convert/target.h"
#include "tests/support/memflow.h"
#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"

/* ---- cutting ---- */

static void check_cut(const struct tile_grid *g, size_t element, bool wide, bool narrow)
{
    const int64_t n = flow_cut(g, element, wide, narrow, NULL);
    struct rect *r = calloc((size_t)n + 1, sizeof *r);
    unsigned char *hit = calloc((size_t)tile_count(g) + 1, 1);
    cr_assert_eq(flow_cut(g, element, wide, narrow, r), n);
    cr_assert_eq(n == 0, tile_count(g) == 0);
    for (int64_t i = 0; i < n; i++) {
        cr_assert(tile_aligned(g, &r[i]) && !rect_empty(&r[i]));
        cr_assert(!wide || rect_len(&r[i], 2) == g->dims[2], "as wide as the tensor");
        cr_assert(!narrow || rect_len(&r[i], 0) == 1, "one member");
        const struct rect t = tile_cover(g, &r[i]);
        /* Bounded: one band of tiles, or within the target. */
        cr_assert(
            rect_count(&r[i]) * (int64_t)element <= FLOW_TARGET || rect_len(&t, 1) == 1,
            "job of %lld bytes", (long long)rect_count(&r[i]) * (long long)element);
        const int64_t tile = g->tile[1] * g->tile[2] * (int64_t)element;
        cr_assert(wide || rect_count(&r[i]) * (int64_t)element <= FLOW_WIDEST + tile);
        for (int64_t e = t.lo[0]; e < t.hi[0]; e++)
            for (int64_t gr = t.lo[1]; gr < t.hi[1]; gr++)
                for (int64_t gc = t.lo[2]; gc < t.hi[2]; gc++)
                    hit[tile_index(g, e, gr, gc)]++;
    }
    for (int64_t i = 0; i < tile_count(g); i++)
        cr_assert_eq(hit[i], 1, "tile %lld is in %d jobs", (long long)i, hit[i]);
    free(r);
    free(hit);
}

Test(flow, the_jobs_of_a_tensor_are_a_partition_of_its_tiles)
{
    static const int64_t edges[] = {0, 1, 2, 127, 128, 129, 255, 256, 257, 1000, 1023,
        1024, 1025, 16383, 16384, 16385, 40000};
    uint64_t state = 1;
    for (int round = 0; round < 600; round++) {
        const bool stack = rng_below(&state, 2), cols = rng_below(&state, 2);
        int64_t shape[3] = {1 + (int64_t)rng_below(&state, 9), 0, 0};
        int64_t *two = stack ? shape + 1 : shape;
        for (int i = 0; i < 2; i++)
            two[i] = edges[rng_below(&state, sizeof edges / sizeof *edges)];
        struct tile_grid g;
        tile_grid_init(&g, shape, stack ? 3 : 2, stack, cols);
        static const size_t elements[] = {1, 2, 4, 8};
        const size_t element = elements[rng_below(&state, 4)];
        for (int k = 0; k < 4; k++)
            check_cut(&g, element, k & 1, k & 2);
    }
    for (int rank = 0; rank < 2; rank++)
        for (int64_t n = 0; n < 300000; n = n * 3 + 1) {
            struct tile_grid g;
            tile_grid_init(&g, &n, rank, false, false);
            check_cut(&g, 4, false, false);
            check_cut(&g, 4, true, true);
        }
}

/* ---- running ---- */

struct ends {
    struct table *table;
    struct manifest *m;
    struct memflow from, to;
    struct flow_item *items;
};

static void ends_new(struct ends *e)
{
    struct glm_error err = {0};
    e->table = models_table("t1", false);
    e->m = manifest_new(e->table);
    for (int64_t i = 0; i < e->table->count; i++) {
        const struct table_entry *t = &e->table->entries[i];
        manifest_add_tensor(
            e->m, t->name, SECTION_WEIGHT, t->dtype, t->shape, t->rank, t->stack, t);
    }
    manifest_index(e->m, &err);
    memflow_init(&e->from, e->m);
    memflow_init(&e->to, e->m);
    for (int64_t i = 0; i < e->m->tensor_count; i++) {
        const struct rect all = rect_whole(e->m->tensors[i].grid.dims);
        smallckpt_elements(&e->m->tensors[i], 0, rect_count(&all), e->from.data[i]);
    }
    recode_plan(e->m, e->m, RULE_AMAX, &e->items, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
}

static void ends_free(struct ends *e)
{
    memflow_clear(&e->from);
    memflow_clear(&e->to);
    free(e->items);
    manifest_free(e->m);
    table_free(e->table);
}

static int run(struct ends *e, int threads, const struct glm_events *events,
    struct flow_stats *stats, struct glm_error *err)
{
    const struct flow_source source = memflow_source(&e->from);
    const struct flow_sink sink = memflow_sink(&e->to, false);
    return flow_run(&source, &sink, e->items, threads, "copy", events, stats, err);
}

static void all_equal(const struct ends *e, int times)
{
    for (int64_t i = 0; i < e->m->tensor_count; i++) {
        const struct ckpt_tensor *t = &e->m->tensors[i];
        const struct rect all = rect_whole(t->grid.dims);
        cr_assert_eq(memcmp(e->from.data[i], e->to.data[i],
                         (size_t)rect_count(&all) * glm_dtype_size(t->dtype)),
            0, "%s", t->name);
        for (int64_t k = 0; k < tile_count(&t->grid); k++)
            cr_assert_eq(e->to.done[i][k], times, "%s: tile put %d times", t->name,
                e->to.done[i][k]);
    }
}

Test(flow, every_tile_is_put_once_by_any_number_of_threads)
{
    static const int threads[] = {0, 1, 2, 7};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        struct ends e;
        struct glm_error err = {0};
        struct flow_stats stats;
        ends_new(&e);
        cr_assert_eq(run(&e, threads[i], NULL, &stats, &err), GLM_OK, "%s", err.text);
        all_equal(&e, 1);
        cr_assert_eq(stats.read_bytes, stats.written_bytes);
        cr_assert_gt(stats.written_bytes, 12000000u);
        ends_free(&e);
    }
}

struct order {
    uint64_t key;
    int64_t tensor, seen;
    struct rect at;
};

static int check_order(
    void *ctx, int64_t tensor, const struct rect *at, struct glm_error *err)
{
    struct order *o = ctx;
    const bool same = o->seen > 0 && tensor == o->tensor;
    int axis = 0;
    (void)err;
    while (axis < 2 && same && at->lo[axis] == o->at.lo[axis])
        axis++;
    cr_assert(
        o->seen == 0 || tensor < o->tensor || (same && at->lo[axis] > o->at.lo[axis]),
        "the sink's key (falling tensor numbers), then rectangles");
    *o = (struct order){.tensor = tensor, .at = *at, .seen = o->seen + 1};
    return GLM_OK;
}

Test(flow, jobs_run_in_the_order_of_the_sinks_key)
{
    struct ends e;
    struct order o = {0};
    struct glm_error err = {0};
    struct flow_stats stats;
    ends_new(&e);
    e.to.before = check_order;
    e.to.ctx = &o;
    cr_assert_eq(run(&e, 1, NULL, &stats, &err), GLM_OK);
    cr_assert_geq(o.seen, e.m->tensor_count);
    ends_free(&e);
}

/* ---- failing ---- */

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

struct failing {
    /* tensors; jobs run from the last tensor down, so `slow` is first */
    int64_t slow, fast;
    enum glm_code slow_code;
};

static int fail_both(
    void *ctx, int64_t tensor, const struct rect *at, struct glm_error *err)
{
    const struct failing *f = ctx;
    (void)at;
    if (tensor == f->slow) {
        pause_ms(100);
        return glm_fail(err, f->slow_code, "the earlier job");
    }
    return tensor == f->fast ? glm_fail(err, GLM_EFORMAT, "the later job") : GLM_OK;
}

static void failed_with(enum glm_code slow_code, enum glm_code code, const char *text)
{
    struct ends e;
    struct glm_error err = {0};
    struct flow_stats stats;
    ends_new(&e);
    struct failing f = {e.m->tensor_count - 1, e.m->tensor_count - 2, slow_code};
    e.to.before = fail_both;
    e.to.ctx = &f;
    cr_assert_eq((enum glm_code)run(&e, 4, NULL, &stats, &err), code);
    cr_assert_str_eq(err.text, text);
    ends_free(&e);
}

Test(flow, of_several_failures_the_earliest_jobs_is_told)
{
    failed_with(GLM_EIO, GLM_EIO, "the earlier job");
}

Test(flow, a_job_that_only_stopped_for_anothers_failure_tells_nothing)
{
    failed_with(GLM_ESTOPPED, GLM_EFORMAT, "the later job");
}

Test(flow, a_read_that_fails_ends_the_run)
{
    struct ends e;
    struct glm_error err = {0};
    struct flow_stats stats;
    ends_new(&e);
    struct failing f = {-1, 5, GLM_OK};
    e.from.before = fail_both;
    e.from.ctx = &f;
    cr_assert_eq(run(&e, 3, NULL, &stats, &err), GLM_EFORMAT);
    cr_assert_str_eq(err.text, "the later job");
    ends_free(&e);
}

/* ---- stopping ---- */

struct stopper {
    volatile sig_atomic_t signal;
    int64_t after;
};

static int stop_after(
    void *ctx, int64_t tensor, const struct rect *at, struct glm_error *err)
{
    struct stopper *s = ctx;
    (void)tensor;
    (void)at;
    (void)err;
    if (--s->after == 0)
        s->signal = SIGTERM;
    return GLM_OK;
}

Test(flow, a_signal_stops_between_jobs_and_the_next_run_does_the_rest)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        struct ends e;
        struct glm_error err = {0};
        struct flow_stats first, second;
        struct stopper s = {0, 20};
        const struct glm_events events = {.stop = &s.signal};
        ends_new(&e);
        e.to.before = stop_after;
        e.to.ctx = &s;
        cr_assert_eq(run(&e, threads, &events, &first, &err), GLM_ESTOPPED);
        cr_assert_eq(err.sys_errno, SIGTERM);
        cr_assert_eq(glm_exit_status(&err), 128 + SIGTERM);
        cr_assert(
            e.to.puts >= 20 && e.to.puts <= 20 + threads, "%ld puts", (long)e.to.puts);
        err = (struct glm_error){0};
        s.signal = 0;
        cr_assert_eq(run(&e, threads, &events, &second, &err), GLM_OK, "%s", err.text);
        all_equal(&e, 1);
        cr_assert_eq(second.skipped_bytes, first.written_bytes);
        cr_assert_gt(second.written_bytes, 0u);
        ends_free(&e);
    }
}

/* ---- frames ---- */

struct rawframes {
    struct flow_source inner;
    struct packer *packer;
    int64_t frames;
};

static int no_read(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *t, struct glm_error *err)
{
    (void)ctx;
    (void)tensor;
    (void)at;
    (void)buf;
    (void)data;
    (void)digests;
    (void)known;
    (void)t;
    return glm_fail(err, GLM_EFORMAT, "a frame was decoded");
}

static bool raw_dims(void *ctx, int64_t tensor, const struct rect *tile, int64_t dims[3])
{
    const struct rawframes *r = ctx;
    return r->inner.chunk_dims(r->inner.ctx, tensor, tile, dims);
}

/* The same chunk, stored raw: bytes that the writer would never choose by itself. */
static int raw_frame(void *ctx, int64_t tensor, const struct rect *tile, void *buf,
    size_t room, size_t *size, uint32_t *mask, struct glm_error *err)
{
    struct rawframes *r = ctx;
    const size_t element = glm_dtype_size(r->inner.m->tensors[tensor].dtype);
    int64_t d[3];
    raw_dims(ctx, tensor, tile, d);
    const size_t raw = (size_t)(d[0] * d[1] * d[2]) * element;
    void *chunk = malloc(raw);
    if (r->inner.frame(r->inner.ctx, tensor, tile, buf, room, size, mask, err) == GLM_OK
        && packer_unpack(r->packer, buf, *size, *mask, chunk, raw, element, err)
            == GLM_OK) {
        memcpy(buf, chunk, raw);
        *size = raw;
        *mask = element > 1 ? 3 : 1;
        r->frames++;
    }
    free(chunk);
    return (int)err->code;
}

Test(flow, frames_of_whole_tiles_are_copied_and_never_decoded)
{
    struct glm_error err = {0};
    char *dir = tmpdir_new();
    const char *in = strdup(tmpdir_path(dir, "in")),
               *out = strdup(tmpdir_path(dir, "out"));
    struct smallckpt_options o = {
        .topo = {.tp = 2, .pp = 2, .ep = 2}, .volumes = {.encoding = ENC_ZSTD}};
    struct ckpt_source c = {.verify = true};
    struct manifest *m;
    struct writer *w;
    struct flow_item *items;
    struct flow_stats stats;
    bool resumed;
    mkdir(in, 0777);
    smallckpt_write(in, &o, &err);
    reader_open(&c.reader, in, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    const struct manifest *from = reader_manifest(c.reader);
    target_manifest(
        &m, from, from->table, &(struct target_form){.same = true}, false, &err);
    const struct ckpt_file *config =
        index_find_file(reader_index(c.reader), "config.json", false);
    void *text;
    index_file(reader_index(c.reader), config, &text, &err);
    manifest_add_file(m, "config.json", false, text, config->bytes);
    volumes_plan(m, models_placement(from->table, (struct topology){.tp = 2, .pp = 4}),
        &o.volumes, &err);
    recode_plan(from, m, RULE_AMAX, &items, &err);
    static const unsigned char plan[32] = {1};
    writer_open(
        &w, m, &(struct work_options){.target = out, .plan = plan}, &resumed, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
    struct rawframes raw = {.inner = ckpt_flow_source(&c), .packer = packer_new()};
    const struct flow_source source = {.m = from,
        .ctx = &raw,
        .read = no_read,
        .chunk_dims = raw_dims,
        .frame = raw_frame,
        .tiles = raw.inner.tiles};
    const struct flow_sink sink = ckpt_flow_sink(w);
    cr_assert_eq(flow_run(&source, &sink, items, 1, "copy", NULL, &stats, &err), GLM_OK,
        "%s", err.text);
    cr_assert_eq(writer_commit(w, &err), GLM_OK, "%s", err.text);
    struct reader *r;
    cr_assert_eq(reader_open(&r, out, &err), GLM_OK, "%s", err.text);
    const struct manifest *to = reader_manifest(r);
    cr_assert_arr_eq(to->fingerprint, from->fingerprint, 32);
    cr_assert_eq(raw.frames, to->chunk_count);
    struct reader_scratch *s = reader_scratch_new();
    for (int64_t i = 0; i < to->chunk_count; i++)
        cr_assert_geq(
            reader_index(r)->chunks[i].mask, 1u, "chunk %ld was packed anew", (long)i);
    for (int64_t i = 0; i < to->tensor_count; i++) {
        const struct rect all = rect_whole(to->tensors[i].grid.dims);
        const size_t room = (size_t)rect_count(&all) * 4 + 2 * DIO_ALIGN;
        unsigned char *buf = dio_alloc(room), *at;
        cr_assert_eq(reader_read(r, i, &all, true, buf, room, &at, NULL, s, &err), GLM_OK,
            "%s", err.text);
        dio_free(buf, room);
    }
    reader_scratch_free(s);
    reader_close(r);
    reader_close(c.reader);
    packer_free(raw.packer);
    free(items);
    free(text);
    free((void *)(uintptr_t)in);
    free((void *)(uintptr_t)out);
    tmpdir_remove(dir);
}
