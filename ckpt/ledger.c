/* A bitmap under a lock, and batches: write many, sync once, journal once. */
#include "ckpt/ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ledger_init(struct ledger *l, int64_t rows, struct glm_error *err)
{
    *l = (struct ledger){.rows = rows, .batch = LEDGER_BATCH};
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->sync_lock, NULL);
    l->bits = calloc((size_t)rows / 8 + 1, 1);
    return l->bits == NULL
        ? glm_fail(err, GLM_ENOMEM, "no memory for %" PRId64 " tile marks", rows)
        : GLM_OK;
}

void ledger_clear(struct ledger *l)
{
    if (l->bits == NULL)
        return;
    free(l->bits);
    free(l->runs);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->sync_lock);
    *l = (struct ledger){0};
}

static bool bit(const struct ledger *l, int64_t i)
{
    return l->bits[i / 8] >> (i % 8) & 1;
}

static void mark(struct ledger *l, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++)
        if (!bit(l, i)) {
            l->bits[i / 8] = (unsigned char)(l->bits[i / 8] | 1u << (i % 8));
            l->done++;
        }
}

int64_t ledger_forget(struct ledger *l, int64_t first, int64_t count)
{
    const int64_t before = l->done;

    for (int64_t i = first; i < first + count; i++)
        if (bit(l, i)) {
            l->bits[i / 8] = (unsigned char)(l->bits[i / 8] & ~(1u << (i % 8)));
            l->done--;
        }
    return before - l->done;
}

bool ledger_has(struct ledger *l, int64_t first, int64_t count)
{
    bool all = true;

    pthread_mutex_lock(&l->lock);
    for (int64_t i = first; all && i < first + count; i++)
        all = bit(l, i);
    pthread_mutex_unlock(&l->lock);
    return all;
}

int64_t ledger_missing(struct ledger *l, int64_t *first)
{
    pthread_mutex_lock(&l->lock);
    const int64_t missing = l->rows - l->done;
    *first = -1;
    for (int64_t i = 0; missing > 0 && i < l->rows && *first < 0; i++)
        if (!bit(l, i))
            *first = i;
    pthread_mutex_unlock(&l->lock);
    return missing;
}

int ledger_add(struct ledger *l, int64_t group, int64_t first, int64_t count,
    uint64_t bytes, bool *due, struct glm_error *err)
{
    pthread_mutex_lock(&l->lock);
    if (group >= 0 && l->run_count == l->run_room) {
        const int64_t room = l->run_room * 2 + 64;
        struct ledger_run *more = realloc(l->runs, (size_t)room * sizeof *more);
        if (more == NULL)
            glm_fail(err, GLM_ENOMEM, "no memory for the journal");
        else {
            l->runs = more;
            l->run_room = room;
        }
    }
    if (err->code == GLM_OK) {
        mark(l, first, count);
        l->pending_bytes += bytes;
        if (group >= 0)
            l->runs[l->run_count++] = (struct ledger_run){group, first, count};
    }
    *due = l->pending_bytes >= l->batch;
    pthread_mutex_unlock(&l->lock);
    return (int)err->code;
}

static int by_place(const void *a, const void *b)
{
    const struct ledger_run *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Joins runs that touch; returns how many are left. */
static int64_t joined_runs(struct ledger_run *runs, int64_t count)
{
    int64_t n = 0;

    qsort(runs, (size_t)count, sizeof *runs, by_place);
    for (int64_t i = 0; i < count; i++) {
        struct ledger_run *last = n > 0 ? &runs[n - 1] : NULL;
        if (last != NULL && last->group == runs[i].group
            && last->first + last->count == runs[i].first)
            last->count += runs[i].count;
        else
            runs[n++] = runs[i];
    }
    return n;
}

static int journal_runs(
    struct work *w, const struct ledger_run *runs, int64_t count, struct glm_error *err)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    if (f == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the journal");
    for (int64_t i = 0; i < count; i++)
        fprintf(f, "done %" PRId64 " %" PRId64 " %" PRId64 "\n", runs[i].group,
            runs[i].first, runs[i].count);
    if (fclose(f) != 0)
        glm_fail(err, GLM_ENOMEM, "no memory for the journal");
    else
        work_journal(w, text, err);
    free(text);
    return (int)err->code;
}

int ledger_sync(struct ledger *l, struct work *w, ledger_sync_fn *fn, void *ctx,
    struct glm_error *err)
{
    pthread_mutex_lock(&l->sync_lock);
    pthread_mutex_lock(&l->lock);
    struct ledger_run *runs = l->runs;
    int64_t count = l->run_count;
    l->runs = NULL;
    l->run_count = l->run_room = 0;
    l->pending_bytes = 0;
    pthread_mutex_unlock(&l->lock);
    if (l->broken) {
        glm_fail(
            err, GLM_EIO, "an earlier sync failed; nothing more is recorded as written");
    } else if (count > 0) {
        count = joined_runs(runs, count);
        if (fn(ctx, runs, count, err) == GLM_OK)
            journal_runs(w, runs, count, err);
        l->broken = err->code != GLM_OK;
    }
    free(runs);
    pthread_mutex_unlock(&l->sync_lock);
    return (int)err->code;
}

bool ledger_replay(struct ledger *l, const char *line, struct ledger_run *run)
{
    int end = 0;

    if (sscanf(line, "done %" SCNd64 " %" SCNd64 " %" SCNd64 "%n", &run->group,
            &run->first, &run->count, &end)
            != 3
        || line[end] != '\0')
        return false;
    if (run->group < 0 || run->first < 0 || run->count < 0
        || run->first > l->rows - run->count)
        return false;
    mark(l, run->first, run->count);
    return true;
}
