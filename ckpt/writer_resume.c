/* Continuing an earlier run: what its journal says is durable, checked against the files.
 *
 * A line is believed only if its shard's file is there with the skeleton that the plan gives it; a
 * file that a power cut took is written again. */
#include "ckpt/writer_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/digest.h"

static void unpack_chunk_row(struct ckpt_chunk *c, const unsigned char in[CHUNK_ROW])
{
    memcpy(&c->offset, in, 8);
    memcpy(&c->bytes, in + 8, 4);
    memcpy(&c->mask, in + 12, 4);
    memcpy(c->sha256, in + 16, DIGEST_SIZE);
}

/* Offsets of a shard's pieces follow from the manifest alone: made again in a file beside. */
static int recompute_offsets(struct writer *w, int64_t no, struct glm_error *err)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/again.tmp", work_path(w->work));
    if (w->shards[no].is_packed) {
        struct packed_shard *p;
        if (shard_create_packed(&p, w->m, no, path, err) == GLM_OK)
            shard_abandon_packed(p);
    } else if (shard_create_plain(w->m, no, path, err) == GLM_OK) {
        shard_skeleton(w->m, NULL, no, path, w->m->shards[no].skeleton, err);
    }
    unlink(path);
    return (int)err->code;
}

/* Whether the file that an earlier run left is the one the journal speaks of. */
static bool shard_is_there(struct writer *w, int64_t no)
{
    unsigned char skeleton[DIGEST_SIZE];
    struct glm_error ignored = {0};
    struct stat st;
    char path[4096];

    writer_shard_path(w, no, path);
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode)
        && (uint64_t)st.st_size == w->m->shards[no].bytes
        && shard_skeleton(w->m, w->chunks, no, path, skeleton, &ignored) == GLM_OK
        && memcmp(skeleton, w->m->shards[no].skeleton, DIGEST_SIZE) == 0;
}

static int load_rows(
    struct writer *w, int64_t first, int64_t count, struct glm_error *err)
{
    return dio_pread(&w->tiles_part, (uint64_t)first * DIGEST_SIZE,
        (size_t)count * DIGEST_SIZE, w->tiles + (size_t)first * DIGEST_SIZE, err);
}

static int mark_rows(
    struct writer *w, int64_t first, int64_t count, struct glm_error *err)
{
    bool due;
    return ledger_add(&w->ledger, -1, first, count, 0, &due, err);
}

static int replay_packed(struct writer *w, const char *line, struct glm_error *err)
{
    int64_t no;
    uint64_t bytes;
    char hex[DIGEST_HEX];

    if (sscanf(line, "packed %" SCNd64 " %" SCNu64 " %64s", &no, &bytes, hex) != 3
        || no < 0 || no >= w->m->shard_count || !w->shards[no].is_packed)
        return GLM_OK;
    if (recompute_offsets(w, no, err) != GLM_OK)
        return (int)err->code;
    struct ckpt_shard *shard = &w->m->shards[no];
    shard->bytes = bytes;
    if (!digest_from_hex(hex, shard->skeleton))
        return GLM_OK;
    for (int64_t i = 0; i < w->m->piece_count; i++) {
        struct ckpt_piece *p = &w->m->pieces[i];
        if (p->shard != no || p->encoding != ENC_ZSTD)
            continue;
        p->bytes = 0;
        for (int64_t c = 0; c < p->chunks; c++) {
            unsigned char row[CHUNK_ROW];
            if (dio_pread(&w->chunks_part, (uint64_t)(p->first_chunk + c) * CHUNK_ROW,
                    CHUNK_ROW, row, err)
                != GLM_OK)
                return (int)err->code;
            unpack_chunk_row(&w->chunks[p->first_chunk + c], row);
            p->bytes += w->chunks[p->first_chunk + c].bytes;
        }
    }
    if (!shard_is_there(w, no))
        return GLM_OK;
    for (int64_t i = 0; i < w->m->piece_count; i++)
        if (w->m->pieces[i].shard == no
            && (writer_piece_rows(w, &w->m->pieces[i], load_rows, err) != GLM_OK
                || writer_piece_rows(w, &w->m->pieces[i], mark_rows, err) != GLM_OK))
            return (int)err->code;
    w->shards[no].phase = SHARD_WHOLE;
    w->shards[no].left = 0;
    return GLM_OK;
}

/* Rows that were forgotten after the lines above had counted them. */
static int replay_undo(struct writer *w, const char *line)
{
    struct ledger_run run;

    if (sscanf(line, "undo %" SCNd64 " %" SCNd64 " %" SCNd64, &run.group, &run.first,
            &run.count)
            != 3
        || run.group < 0 || run.group >= w->m->shard_count || run.first < 0
        || run.count < 0 || run.first > w->m->tile_count - run.count)
        return GLM_OK;
    const int64_t gone = ledger_forget(&w->ledger, run.first, run.count);
    if (w->shards[run.group].phase == SHARD_OPEN)
        w->shards[run.group].left += gone;
    return GLM_OK;
}

int writer_replay_line(void *ctx, char *line, struct glm_error *err)
{
    struct writer *w = ctx;
    struct ledger_run run;

    if (strncmp(line, "packed ", 7) == 0)
        return replay_packed(w, line, err);
    if (strncmp(line, "undo ", 5) == 0)
        return replay_undo(w, line);
    if (!ledger_replay(&w->ledger, line, &run))
        return GLM_OK;
    if (run.group >= w->m->shard_count || w->shards[run.group].is_packed) {
        ledger_forget(&w->ledger, run.first, run.count);
        return GLM_OK;
    }
    struct shard_state *s = &w->shards[run.group];
    if (s->phase == SHARD_ABSENT) {
        if (recompute_offsets(w, run.group, err) != GLM_OK)
            return (int)err->code;
        if (!shard_is_there(w, run.group)) {
            ledger_forget(&w->ledger, run.first, run.count);
            return GLM_OK;
        }
        s->phase = SHARD_OPEN;
    }
    s->left -= run.count;
    return load_rows(w, run.first, run.count, err);
}
