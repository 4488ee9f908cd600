/* Which bytes of which file are fetched, in which pieces.
 *
 * A file whose data all belong to jobs is read whole from where its digest stands, also over pieces
 * that are written already: without them the digest could not be finished. Of other files (a
 * smaller model) only the pieces of jobs are read, and what lies between them if that is little. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hubflow_inside.h"

struct want { /* a job's bytes */
    int32_t file;
    uint64_t begin, end;
    int64_t job;
};

/* ---- the journal's lines ---------------------------------------------------------------------- */

static int recall_line(void *ctx, char *line, struct glm_error *err)
{
    struct hubflow *f = ctx;
    int file, at = 0;
    (void)err;
    if (sscanf(line, "hub %d %n", &file, &at) < 1 || at == 0 || file < 0
        || file >= f->s->file_count)
        return GLM_OK;
    struct hubstate *s = &f->states[file];
    s->known = s->verified = false;
    if (strcmp(line + at, "verified") == 0)
        s->known = s->verified = true;
    else
        s->known = hubsum_load(&s->sum, line + at);
    return GLM_OK;
}

/* ---- pieces ----------------------------------------------------------------------------------- */

static int add_piece(
    struct hubstream *s, uint64_t begin, uint64_t end, int64_t job, struct glm_error *err)
{
    if (s->count == s->room) {
        const int64_t room = s->room * 2 + 64;
        struct hubpiece *more = realloc(s->pieces, (size_t)room * sizeof *more);
        if (more == NULL)
            return glm_fail(err, GLM_ENOMEM, "%s: no memory for its plan", s->file->what);
        s->pieces = more;
        s->room = room;
    }
    s->pieces[s->count++] = (struct hubpiece){.begin = begin, .end = end, .job = job};
    return GLM_OK;
}

static int add_filler(
    struct hubstream *s, uint64_t begin, uint64_t end, struct glm_error *err)
{
    while (begin < end && err->code == GLM_OK) {
        const uint64_t n = end - begin < HUBFLOW_FILLER ? end - begin : HUBFLOW_FILLER;
        add_piece(s, begin, begin + n, PIECE_HASH, err);
        begin += n;
    }
    return (int)err->code;
}

/* The state of a file's digest, begun anew unless all before it is in the sink. */
static void check_state(
    struct hubflow *f, int32_t no, const struct want *w, int64_t count)
{
    const struct st_header *h = &f->s->files[no].header;
    const enum hubsum_kind kind =
        hubsum_kind_of(hub_find(f->o.hub, f->s->files[no].name)->listed->digest);
    struct hubstate *state = &f->states[no];

    for (int64_t i = 0; state->known && i < count && w[i].begin < state->sum.at; i++)
        if (!f->asks[w[i].job].done) /* lost since: a power cut, a removed file */
            state->known = false;
    if (state->known && state->sum.kind == kind && state->sum.at >= h->data_start
        && state->sum.at <= h->file_size)
        return;
    state->known = false;
    hubsum_begin(&state->sum, kind, h->file_size);
    hubsum_update(&state->sum, f->s->files[no].header_bytes, (size_t)h->data_start);
}

static int plan_whole(struct hubflow *f, struct hubstream *s, const struct want *w,
    int64_t count, struct glm_error *err)
{
    const uint64_t size = f->s->files[s->no].header.file_size;
    const struct hubstate *state = &f->states[s->no];

    check_state(f, s->no, w, count);
    uint64_t at = state->sum.at;
    s->sum = state->sum;
    s->settled_at = s->got = at;
    for (int64_t i = 0; i < count && err->code == GLM_OK; i++) {
        if (f->asks[w[i].job].done || w[i].begin < at)
            continue;
        add_filler(s, at, w[i].begin, err);
        add_piece(s, w[i].begin, w[i].end, w[i].job, err);
        at = w[i].end;
    }
    return add_filler(s, at, size, err);
}

static int plan_parts(struct hubflow *f, struct hubstream *s, const struct want *w,
    int64_t count, struct glm_error *err)
{
    for (int64_t i = 0; i < count && err->code == GLM_OK; i++) {
        if (f->asks[w[i].job].done)
            continue;
        const uint64_t last = s->count > 0 ? s->pieces[s->count - 1].end : w[i].begin;
        if (last < w[i].begin && w[i].begin - last <= HUBFLOW_GAP)
            add_piece(s, last, w[i].begin, PIECE_SKIP, err);
        add_piece(s, w[i].begin, w[i].end, w[i].job, err);
    }
    s->settled_at = s->got = s->count > 0 ? s->pieces[0].begin : 0;
    return (int)err->code;
}

/* ---- files ------------------------------------------------------------------------------------ */

static int by_place(const void *a, const void *b)
{
    const struct want *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Whether jobs take every byte of a file, and there is a digest to compare with. */
static bool is_whole(
    const struct hubflow *f, int32_t no, const struct want *w, int64_t count)
{
    const struct hub_file *file = hub_find(f->o.hub, f->s->files[no].name);
    const struct st_header *h = &f->s->files[no].header;
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += w[i].end - w[i].begin;
    return sum == h->file_size - h->data_start
        && hubsum_kind_of(file->listed->digest) != HUBSUM_NONE;
}

/* Tiles are written ahead of the digest, so an earlier run may have left some that no state covers.
 * Their bytes will pass the digest again, but those of another answer: they are written anew. */
static int doubt_file(struct hubflow *f, int32_t no, const struct want *w, int64_t count,
    struct glm_error *err)
{
    const struct hub_file *file = hub_find(f->o.hub, f->s->files[no].name);
    (void)err;
    if (file->local != NULL || f->states[no].verified || !is_whole(f, no, w, count))
        return GLM_OK;
    check_state(f, no, w, count);
    for (int64_t i = 0; i < count; i++)
        f->asks[w[i].job].again =
            f->asks[w[i].job].done && w[i].begin >= f->states[no].sum.at;
    return GLM_OK;
}

static int plan_file(struct hubflow *f, int32_t no, const struct want *w, int64_t count,
    struct glm_error *err)
{
    struct hub_file *file = hub_find(f->o.hub, f->s->files[no].name);
    struct hubstate *state = &f->states[no];
    int64_t todo = 0;

    for (int64_t i = 0; i < count; i++)
        todo += !f->asks[w[i].job].done;
    if (file->local != NULL) {
        for (int64_t i = 0; i < count; i++)
            if (!f->asks[w[i].job].done)
                f->local[f->local_count++] = w[i].job;
        return GLM_OK;
    }
    const bool whole = is_whole(f, no, w, count);
    if (todo == 0 && (!whole || state->verified))
        return GLM_OK;
    if (state->verified) /* and yet something is missing */
        *state = (struct hubstate){.wrong = state->wrong};
    struct hubstream *s = &f->streams[f->stream_count++];
    *s = (struct hubstream){.flow = f, .file = file, .no = no, .whole = whole};
    return whole ? plan_whole(f, s, w, count, err) : plan_parts(f, s, w, count, err);
}

static void set_places(struct hubflow *f)
{
    for (int i = 0; i < f->stream_count; i++)
        for (int64_t p = 0; p < f->streams[i].count; p++)
            if (f->streams[i].pieces[p].job >= 0)
                f->places[f->streams[i].pieces[p].job] = (struct hubplace){i, p};
}

/* Calls fn with the jobs of each file, in the order of their bytes. */
static int each_file(struct hubflow *f,
    int (*fn)(struct hubflow *, int32_t no, const struct want *, int64_t count,
        struct glm_error *),
    struct glm_error *err)
{
    struct want *w = calloc((size_t)f->ask_count + 1, sizeof *w);

    if (w == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for the plan", f->s->dir);
    for (int64_t i = 0; i < f->ask_count; i++) {
        w[i].job = i;
        hf_reader_extent(f->o.r, f->asks[i].tensor, &f->asks[i].at, &w[i].file,
            &w[i].begin, &w[i].end);
    }
    qsort(w, (size_t)f->ask_count, sizeof *w, by_place);
    for (int64_t i = 0, n; i < f->ask_count && err->code == GLM_OK; i += n) {
        for (n = 1; i + n < f->ask_count && w[i + n].file == w[i].file;)
            n++;
        fn(f, w[i].file, w + i, n, err);
    }
    free(w);
    return (int)err->code;
}

int hubflow_recall(struct hubflow *f, struct glm_error *err)
{
    if (f->sink->recall(f->sink->ctx, recall_line, f, err) == GLM_OK)
        each_file(f, doubt_file, err);
    return (int)err->code;
}

int hubflow_plan(struct hubflow *f, struct glm_error *err)
{
    f->streams = calloc((size_t)f->s->file_count + 1, sizeof *f->streams);
    f->places = malloc(((size_t)f->ask_count + 1) * sizeof *f->places);
    f->local = malloc(((size_t)f->ask_count + 1) * sizeof *f->local);
    if (f->streams == NULL || f->places == NULL || f->local == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for the plan", f->s->dir);
    for (int64_t i = 0; i < f->ask_count; i++)
        f->places[i] = (struct hubplace){-1, 0};
    each_file(f, plan_file, err);
    set_places(f);
    return (int)err->code;
}

void hubflow_plan_clear(struct hubflow *f)
{
    for (int i = 0; f->streams != NULL && i < f->stream_count; i++) {
        struct hubstream *s = &f->streams[i];
        for (int64_t p = 0; p < s->count; p++)
            hubflow_give(f, &s->pieces[p]);
        if (s->filling != NULL)
            hubpool_give(&f->pool, s->filling, s->filling_room);
        free(s->pieces);
    }
    free(f->streams);
    free(f->places);
    free(f->local);
    f->streams = NULL;
    f->places = NULL;
    f->local = NULL;
    f->stream_count = 0;
    f->local_count = f->local_next = 0;
}
