/* The writer against files made another way (tests/support/smallckpt.c): byte for byte the same,
 * in one go, after any interruption, and nothing when something is missing. */
#include "ckpt/writer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "ckpt/reader.h"
#include "ckpt/volumes.h"
#include "tests/support/smallckpt.h"
#include "tests/support/tmpdir.h"

static const struct smallckpt_options plain = {
    .topo = {.tp = 4, .pp = 2, .ep = 2, .etp = 2},
    .training = true,
    .volumes = {.shard_size = 2000000}};
static const struct smallckpt_options packed = {
    .topo = {.tp = 4, .pp = 2, .ep = 2, .etp = 2},
    .training = true,
    .volumes = {.encoding = ENC_ZSTD, .shard_size = 2000000}};
static const struct smallckpt_options scaled = {
    .topo = {.tp = 2, .pp = 2}, .form = SMALL_MXFP8, .volumes = {.encoding = ENC_ZSTD}};

struct job {
    int pp;
    int64_t tensor;
    struct rect at;
};

struct set {
    char *dir;
    char want[512], out[512];
    const struct smallckpt_options *o;
    struct smallckpt s; /* its manifest goes to the writer */
    struct writer *w;
    struct writer_scratch *scratch;
    struct job *jobs;
    int64_t count;
    bool resumed;
};

/* One band of tiles after the other, whole width, in the order that the writer asks for. */
static void make_jobs(struct set *x)
{
    const struct manifest *m = writer_manifest(x->w);
    free(x->jobs);
    x->jobs = calloc((size_t)m->tile_count, sizeof *x->jobs);
    x->count = 0;
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct ckpt_tensor *t = &m->tensors[i];
        for (int64_t k = 0; k < tile_count(&t->grid); k += t->grid.count[2]) {
            struct rect at = tile_rect(&t->grid, k);
            at.hi[2] = t->grid.dims[2];
            x->jobs[x->count++] =
                (struct job){placement_pp(m->placement, t->entry), i, at};
        }
    }
    for (int64_t i = 1; i < x->count;
         i++) { /* stable: few cells, so a simple insertion */
        const struct job j = x->jobs[i];
        int64_t k = i;
        for (; k > 0 && x->jobs[k - 1].pp > j.pp; k--)
            x->jobs[k] = x->jobs[k - 1];
        x->jobs[k] = j;
    }
}

static void open_writer(struct set *x)
{
    static const unsigned char plan[32] = {7};
    struct glm_error err = {0};
    char *scrap = strdup(tmpdir_path(x->dir, "scrap"));
    mkdir(scrap, 0777);
    cr_assert_eq(smallckpt_shards(&x->s, scrap, x->o, &err), 0, "%s", err.text);
    free(scrap);
    /* Only the plan of it: no offsets, no digests. */
    struct manifest *m = x->s.m;
    x->s.m = NULL;
    cr_assert_eq(volumes_plan(m, m->placement, &x->o->volumes, &err), 0, "%s", err.text);
    cr_assert_eq(
        writer_open(&x->w, m, &(struct work_options){.target = x->out, .plan = plan},
            &x->resumed, &err),
        GLM_OK, "%s", err.text);
    make_jobs(x);
}

static void close_writer(struct set *x)
{
    writer_close(x->w);
    x->w = NULL;
    smallckpt_clear(&x->s);
}

static void begin(struct set *x, const struct smallckpt_options *o)
{
    struct glm_error err = {0};
    memset(x, 0, sizeof *x);
    x->o = o;
    x->dir = tmpdir_new();
    snprintf(x->want, sizeof x->want, "%s/want", x->dir);
    snprintf(x->out, sizeof x->out, "%s/out", x->dir);
    mkdir(x->want, 0777);
    cr_assert_eq(smallckpt_write(x->want, o, &err), 0, "%s", err.text);
    x->scratch = writer_scratch_new();
    open_writer(x);
}

static void end(struct set *x)
{
    if (x->w != NULL)
        close_writer(x);
    smallckpt_clear(&x->s);
    writer_scratch_free(x->scratch);
    free(x->jobs);
    tmpdir_remove(x->dir);
}

static int put(struct set *x, int64_t n, struct writer_scratch *s, struct glm_error *err)
{
    const struct job *j = &x->jobs[n];
    const struct ckpt_tensor *t = &writer_manifest(x->w)->tensors[j->tensor];
    const int64_t *d = t->grid.dims;
    const int64_t count = rect_count(&j->at);
    unsigned char *data = malloc((size_t)count * glm_dtype_size(t->dtype));
    smallckpt_elements(t, (j->at.lo[0] * d[1] + j->at.lo[1]) * d[2], count, data);
    if (t->derived) {
        const struct rect tiles = tile_cover(&t->grid, &j->at);
        unsigned char *digests = malloc((size_t)rect_count(&tiles) * 32);
        reader_hash_tiles(&t->grid, &j->at, glm_dtype_size(t->dtype), data, digests);
        writer_note(x->w, j->tensor, &j->at, digests, err);
        free(digests);
    } else {
        writer_put(x->w, j->tensor, &j->at, data, NULL, s, err);
    }
    free(data);
    return (int)err->code;
}

/* Puts jobs [from, to), those that are there already left out; returns how many were put. */
static int64_t put_range(struct set *x, int64_t from, int64_t to)
{
    struct glm_error err = {0};
    int64_t n = 0;
    for (int64_t i = from; i < to; i++)
        if (!writer_has(x->w, x->jobs[i].tensor, &x->jobs[i].at)) {
            cr_assert_eq(put(x, i, x->scratch, &err), GLM_OK, "%s", err.text);
            n++;
        }
    return n;
}

static void commit(struct set *x)
{
    struct glm_error err = {0};
    unsigned char fingerprint[32], id[32];
    writer_report_to(x->w, fingerprint, id);
    cr_assert_eq(writer_commit(x->w, &err), GLM_OK, "%s", err.text);
    x->w = NULL;
    cr_assert_eq(tmpdir_differ(x->want, x->out), 0);
    struct reader *r;
    cr_assert_eq(reader_open(&r, x->out, &err), GLM_OK, "%s", err.text);
    cr_assert_arr_eq(fingerprint, reader_manifest(r)->fingerprint, 32);
    cr_assert_arr_eq(id, reader_manifest(r)->id, 32);
    reader_close(r);
}

static void in_one_go(const struct smallckpt_options *o)
{
    struct set x;
    begin(&x, o);
    cr_assert_not(x.resumed);
    cr_assert_eq(put_range(&x, 0, x.count), x.count);
    commit(&x);
    end(&x);
}

Test(writer, plain_files_are_those_that_were_made_another_way)
{
    in_one_go(&plain);
}
Test(writer, packed_files_are_those_that_were_made_another_way)
{
    in_one_go(&packed);
}
Test(writer, weights_with_scales_are_those_that_were_made_another_way)
{
    in_one_go(&scaled);
}

static void interrupted(const struct smallckpt_options *o)
{
    struct set x;
    begin(&x, o);
    for (int part = 1; part < 4; part++) {
        const int64_t to = x.count * part / 4;
        put_range(&x, 0, to);
        close_writer(&x);
        open_writer(&x);
        cr_assert(x.resumed);
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < x.count; i++)
        kept += writer_has(x.w, x.jobs[i].tensor, &x.jobs[i].at);
    cr_assert_gt(kept, o->volumes.encoding == ENC_PLAIN ? x.count / 3 : 0,
        "%ld of %ld kept", (long)kept, (long)x.count);
    cr_assert_lt(kept, x.count);
    put_range(&x, 0, x.count);
    commit(&x);
    end(&x);
}

Test(writer, continues_plain_shards_where_they_were)
{
    interrupted(&plain);
}
Test(writer, continues_with_the_packed_shards_that_are_whole)
{
    interrupted(&packed);
}

static void lost_file(const struct smallckpt_options *o, bool cut)
{
    struct set x;
    begin(&x, o);
    put_range(&x, 0, x.count);
    const char *file = writer_manifest(x.w)->shards[1].file;
    char *path = strdup(tmpdir_path(x.dir, "out.partial/%s", file));
    close_writer(&x);
    if (cut)
        cr_assert_eq(truncate(path, 5000), 0);
    else
        unlink(path);
    open_writer(&x);
    cr_assert(x.resumed);
    cr_assert_gt(put_range(&x, 0, x.count), 0, "what lay in it is written again");
    commit(&x);
    free(path);
    end(&x);
}

Test(writer, a_plain_shard_that_is_gone_is_written_again)
{
    lost_file(&plain, false);
}
Test(writer, a_plain_shard_that_was_cut_is_written_again)
{
    lost_file(&plain, true);
}
Test(writer, a_packed_shard_that_is_gone_is_written_again)
{
    lost_file(&packed, false);
}
Test(writer, a_packed_shard_that_was_cut_is_written_again)
{
    lost_file(&packed, true);
}

Test(writer, a_missing_tile_is_named_and_nothing_is_committed)
{
    struct set x;
    struct glm_error err = {0};
    begin(&x, &plain);
    const int64_t hole = x.count / 2;
    put_range(&x, 0, hole);
    put_range(&x, hole + 1, x.count);
    cr_assert_eq(writer_commit(x.w, &err), GLM_EFORMAT);
    cr_assert_not_null(
        strstr(err.text, writer_manifest(x.w)->tensors[x.jobs[hole].tensor].name), "%s",
        err.text);
    cr_assert_neq(access(x.out, F_OK), 0);
    put_range(&x, 0, x.count);
    commit(&x);
    end(&x);
}

struct waiting {
    struct set *x;
    int64_t job;
    struct glm_error err;
};

static void *wait_in_put(void *arg)
{
    struct waiting *w = arg;
    struct writer_scratch *s = writer_scratch_new();
    put(w->x, w->job, s, &w->err);
    writer_scratch_free(s);
    return NULL;
}

/* The first two jobs that are packed into one shard. */
static int64_t second_of_a_shard(const struct set *x)
{
    const struct manifest *m = writer_manifest(x->w);
    for (int64_t i = 1; i < x->count; i++) {
        const struct ckpt_tensor *t = &m->tensors[x->jobs[i].tensor];
        if (x->jobs[i].tensor == x->jobs[i - 1].tensor && t->pieces == 1 && !t->derived)
            return i;
    }
    cr_assert_fail("no such jobs");
    return -1;
}

static void wait_for_turn(bool fail)
{
    struct set x;
    struct glm_error err = {0};
    pthread_t id;
    begin(&x, &scaled);
    const int64_t second = second_of_a_shard(&x);
    put_range(&x, 0, second - 1);
    struct waiting w = {.x = &x, .job = second};
    pthread_create(&id, NULL, wait_in_put, &w);
    usleep(50000);
    if (fail)
        writer_fail(x.w);
    else
        cr_assert_eq(put(&x, second - 1, x.scratch, &err), GLM_OK, "%s", err.text);
    pthread_join(id, NULL);
    cr_assert_eq(w.err.code, fail ? GLM_ESTOPPED : GLM_OK, "%s", w.err.text);
    if (!fail) {
        put_range(&x, second + 1, x.count);
        commit(&x);
    }
    end(&x);
}

Test(writer, a_frame_waits_for_those_before_it, .timeout = 1800)
{
    wait_for_turn(false);
}
Test(writer, a_failure_wakes_those_who_wait, .timeout = 1800)
{
    wait_for_turn(true);
}
