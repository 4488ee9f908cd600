/* What a source that downloads needs of the writer: its state lies in the same journal as the tiles,
 * so neither can be ahead of the other by more than a line.
 *
 *     undo <shard> <first row> <count>   rows that were wrong; cancels what stands above it */
#include <inttypes.h>
#include <stdio.h>

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

int writer_forget(
    struct writer *w, int64_t tensor, const struct rect *at, struct glm_error *err)
{
    const struct ckpt_tensor *t = &w->m->tensors[tensor];
    struct rect part;
    char line[128];

    for (int64_t i = t->first_piece; i < t->first_piece + t->pieces; i++) {
        const struct ckpt_piece *p = &w->m->pieces[i];
        if (!rect_intersect(&p->at, at, &part))
            continue;
        const struct rect tiles = tile_cover(&t->grid, &part);
        for (int64_t e = tiles.lo[0]; e < tiles.hi[0]; e++)
            for (int64_t r = tiles.lo[1]; r < tiles.hi[1]; r++) {
                const int64_t first =
                    t->first_tile + tile_index(&t->grid, e, r, tiles.lo[2]);
                const int64_t count = rect_len(&tiles, 2);
                snprintf(line, sizeof line, "undo %" PRId64 " %" PRId64 " %" PRId64 "\n",
                    p->shard, first, count);
                if (writer_journal(w, line, err) != GLM_OK)
                    return (int)err->code;
                pthread_mutex_lock(&w->ledger.lock);
                ledger_forget(&w->ledger, first, count);
                pthread_mutex_unlock(&w->ledger.lock);
                pthread_mutex_lock(&w->shards[p->shard].lock);
                w->shards[p->shard].left += count;
                pthread_mutex_unlock(&w->shards[p->shard].lock);
            }
    }
    return GLM_OK;
}
