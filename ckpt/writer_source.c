/* What a source that downloads needs of the writer: its state lies in the same journal as the tiles,
 * so neither can be ahead of the other by more than a line.
 *
 *     undo <shard> <first row> <count>   rows that were wrong; cancels what stands above it */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/writer_inside.h"

const char *writer_folder(const struct writer *w)
{
    return work_path(w->work);
}

int writer_journal(struct writer *w, const char *line, struct glm_error *err)
{
    /* In line with the ledger's own: appends of two threads would mix. */
    pthread_mutex_lock(&w->ledger.sync_lock);
    work_journal(w->work, line, err);
    pthread_mutex_unlock(&w->ledger.sync_lock);
    return (int)err->code;
}

int writer_recall(struct writer *w,
    int (*fn)(void *ctx, char *line, struct glm_error *err), void *ctx,
    struct glm_error *err)
{
    return work_replay(w->work, fn, ctx, err);
}

int writer_settle(struct writer *w, struct glm_error *err)
{
    return ledger_sync(&w->ledger, w->work, writer_sync_runs, w, err);
}

bool writer_durable(struct writer *w, int64_t tensor, const struct rect *at)
{
    const struct ckpt_tensor *t = &w->m->tensors[tensor];
    struct rect part;
    bool all = writer_has(w, tensor, at);

    for (int64_t i = t->first_piece; all && i < t->first_piece + t->pieces; i++) {
        struct shard_state *s = &w->shards[w->m->pieces[i].shard];
        if (!rect_intersect(&w->m->pieces[i].at, at, &part) || !s->is_packed)
            continue;
        pthread_mutex_lock(&s->lock);
        all = s->phase == SHARD_WHOLE;
        pthread_mutex_unlock(&s->lock);
    }
    return all;
}

/* Counts rows of one shard as never written; the journal's line goes to out. A row that several
 * callers forget (a matrix's scales) counts once. */
static void forget_rows(
    struct writer *w, int64_t shard, int64_t first, int64_t count, FILE *out)
{
    pthread_mutex_lock(&w->ledger.lock);
    const int64_t gone = ledger_forget(&w->ledger, first, count);
    pthread_mutex_unlock(&w->ledger.lock);
    if (gone == 0)
        return;
    fprintf(out, "undo %" PRId64 " %" PRId64 " %" PRId64 "\n", shard, first, count);
    pthread_mutex_lock(&w->shards[shard].lock);
    w->shards[shard].left += gone;
    pthread_mutex_unlock(&w->shards[shard].lock);
}

int writer_forget(
    struct writer *w, int64_t tensor, const struct rect *at, struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[tensor];
    struct rect part;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the journal");
    for (int64_t i = t->first_piece; i < t->first_piece + t->pieces; i++) {
        const struct ckpt_piece *p = &w->m->pieces[i];
        if (!rect_intersect(&p->at, at, &part))
            continue;
        const struct rect tiles = tile_cover(&t->grid, &part);
        for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
            for (int64_t r = tiles.lo[1]; r < tiles.hi[1]; r++)
                forget_rows(w, p->shard,
                    t->first_tile + tile_index(&t->grid, e, r, tiles.lo[2]),
                    rect_len(&tiles, 2), out);
    }
    if (fclose(out) != 0)
        glm_fail(err, GLM_ENOMEM, "no memory for the journal");
    else if (size > 0)
        writer_journal(w, text, err);
    free(text);
    return (int)err->code;
}
