/* The plan of the files: each cell's rectangles in table order, cut into volumes.
 *
 * All cells are filled side by side in one pass over the tensors. That gives the same volumes as
 * filling one cell after another, because a cell's volumes depend on its own pieces alone, and
 * leaves the pieces where the manifest wants them: by tensor, then by offset. Shards get their
 * numbers afterwards, cell by cell. Nothing is kept per tile. */
#include "ckpt/volumes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t default_size = UINT64_C(4) << 30;

struct fill {        /* one cell being filled */
    int64_t volumes; /* begun so far */
    uint64_t used;   /* element bytes in the last one */
};

struct plan {
    struct manifest *m;
    const struct placement *placement;
    struct volumes_options o;
    struct fill *cells;
    /* [capacity]: cell of each piece; piece.shard is its volume there until the end */
    int *piece_cell;
    int64_t capacity;
};

static uint64_t bytes_of(const struct ckpt_tensor *t, const struct rect *at)
{
    return (uint64_t)rect_count(at) * glm_dtype_size(t->dtype);
}

static int reserve(struct plan *p, struct glm_error *err)
{
    if (p->m->piece_count < p->capacity)
        return 0;
    const int64_t room = p->capacity ? p->capacity * 2 : 1024;
    struct ckpt_piece *pieces = realloc(p->m->pieces, (size_t)room * sizeof *pieces);
    if (pieces)
        p->m->pieces = pieces;
    int *cells = realloc(p->piece_cell, (size_t)room * sizeof *cells);
    if (cells)
        p->piece_cell = cells;
    if (!pieces || !cells)
        return glm_fail(err, GLM_ENOMEM, "no memory for %lld pieces", (long long)room);
    p->capacity = room;
    return 0;
}

/* Scales stay plain in packed shards: a conversion writes a matrix's scales when its last rows are
 * done, out of the order in which frames must come. So do single numbers: a chunk has an axis. */
static enum ckpt_encoding encoding_of(const struct plan *p, const struct ckpt_tensor *t)
{
    const bool scale = t->block[0] * t->block[1] > 1;
    return scale || t->rank == 0 ? ENC_PLAIN : p->o.encoding;
}

/* Adds a piece to its cell: to the volume being filled if it has room, else to a new one. */
static int add_piece(struct plan *p, int64_t tensor, int cell, const struct rect *at,
    bool fresh, struct glm_error *err)
{
    struct fill *f = &p->cells[cell];
    const uint64_t bytes = bytes_of(&p->m->tensors[tensor], at);
    if (reserve(p, err) != 0)
        return err->code;
    if (f->volumes == 0
        || (f->used > 0
            && (fresh || f->used >= p->o.shard_size
                || bytes > p->o.shard_size - f->used))) {
        f->volumes++;
        f->used = 0;
    }
    f->used += bytes;
    p->piece_cell[p->m->piece_count] = cell;
    p->m->pieces[p->m->piece_count++] = (struct ckpt_piece){.tensor = tensor,
        .shard = f->volumes - 1,
        .at = *at,
        .encoding = encoding_of(p, &p->m->tensors[tensor]),
        .bytes = encoding_of(p, &p->m->tensors[tensor]) == ENC_PLAIN ? bytes : 0};
    return 0;
}

/* What one cell stores of a tensor: one piece, or, of a stack that exceeds an empty volume, pieces
 * of as many whole experts as fit. */
static int add_cell(struct plan *p, int64_t tensor, int cell, struct glm_error *err)
{
    const struct ckpt_tensor *t = &p->m->tensors[tensor];
    const struct cell c = placement_cell(p->placement, cell);
    struct rect tiles;
    if (!placement_tiles(p->placement, t->entry, &t->grid, t->block, &c, &tiles))
        return 0;
    struct rect at = tile_span(&t->grid, &tiles);
    if (!t->stack || bytes_of(t, &at) <= p->o.shard_size)
        return add_piece(p, tensor, cell, &at, false, err);
    const int64_t end = at.hi[0];
    const uint64_t one = bytes_of(t, &at) / (uint64_t)rect_len(&at, 0);
    const uint64_t fit = p->o.shard_size / one;
    const int64_t step = fit < 1 ? 1 : (int64_t)fit;
    for (; at.lo[0] < end; at.lo[0] = at.hi[0]) {
        at.hi[0] = end - at.lo[0] < step ? end : at.lo[0] + step;
        if (add_piece(p, tensor, cell, &at, true, err) != 0)
            return err->code;
    }
    return 0;
}

struct sorted { /* a piece and its cell, to be put in order together */
    struct ckpt_piece piece;
    int cell;
};

static int by_offset(const void *a, const void *b)
{
    const struct rect *x = &((const struct sorted *)a)->piece.at;
    const struct rect *y = &((const struct sorted *)b)->piece.at;
    for (int i = 0; i < RECT_AXES; i++)
        if (x->lo[i] != y->lo[i])
            return x->lo[i] < y->lo[i] ? -1 : 1;
    return 0;
}

/* Cells come in the order of their offsets but for split stacks with ETP: those interleave. */
static int sort_pieces(struct plan *p, int64_t from, struct glm_error *err)
{
    struct ckpt_piece *pieces = p->m->pieces + from;
    const size_t n = (size_t)(p->m->piece_count - from);
    struct sorted *s = malloc((n + 1) * sizeof *s);
    if (!s)
        return glm_fail(err, GLM_ENOMEM, "no memory for %zu pieces", n);
    for (size_t i = 0; i < n; i++)
        s[i] = (struct sorted){pieces[i], p->piece_cell[from + (int64_t)i]};
    qsort(s, n, sizeof *s, by_offset);
    for (size_t i = 0; i < n; i++) {
        pieces[i] = s[i].piece;
        p->piece_cell[from + (int64_t)i] = s[i].cell;
    }
    free(s);
    return 0;
}

static int add_tensor(struct plan *p, int64_t tensor, struct glm_error *err)
{
    struct manifest *m = p->m;
    struct ckpt_tensor *t = &m->tensors[tensor];
    const int cells = placement_cells(p->placement);
    const int per = cells / placement_topology(p->placement)->pp;
    const int first = placement_pp(p->placement, t->entry) * per;
    t->first_tile = m->tile_count;
    m->tile_count += tile_count(&t->grid);
    t->first_piece = m->piece_count;
    for (int i = first; !t->derived && i < first + per; i++)
        if (add_cell(p, tensor, i, err) != 0)
            return err->code;
    t->pieces = m->piece_count - t->first_piece;
    if (t->stack && t->pieces > 1 && sort_pieces(p, t->first_piece, err) != 0)
        return err->code;
    for (int64_t i = t->first_piece; encoding_of(p, t) == ENC_ZSTD && i < m->piece_count;
         i++) {
        const struct rect tiles = tile_cover(&t->grid, &m->pieces[i].at);
        m->pieces[i].first_chunk = m->chunk_count;
        m->pieces[i].chunks = rect_count(&tiles);
        m->chunk_count += m->pieces[i].chunks;
    }
    return 0;
}

/* Numbers the shards cell by cell and names them. */
static int name_shards(struct plan *p, struct glm_error *err)
{
    struct manifest *m = p->m;
    const int cells = placement_cells(p->placement);
    int64_t *base = malloc((size_t)cells * sizeof *base), total = 0;
    for (int i = 0; base && i < cells; i++) {
        base[i] = total;
        total += p->cells[i].volumes;
    }
    m->shards = base ? calloc((size_t)total + 1, sizeof *m->shards) : NULL;
    if (!m->shards) {
        free(base);
        return glm_fail(err, GLM_ENOMEM, "no memory for %lld shards", (long long)total);
    }
    m->shard_count = total;
    for (int i = 0; i < cells; i++) {
        char name[40];
        const struct cell c = placement_cell(p->placement, i);
        cell_name(&c, name, sizeof name);
        for (int64_t v = 0; v < p->cells[i].volumes; v++) {
            struct ckpt_shard *s = &m->shards[base[i] + v];
            s->cell = i;
            snprintf(s->file, sizeof s->file, "shard-%s-%04d.h5", name, (int)v);
        }
    }
    for (int64_t i = 0; i < m->piece_count; i++)
        m->pieces[i].shard += base[p->piece_cell[i]];
    free(base);
    return 0;
}

int volumes_plan(struct manifest *m, struct placement *placement,
    const struct volumes_options *o, struct glm_error *err)
{
    struct plan p = {.m = m, .placement = placement, .o = *o};
    if (p.o.shard_size == 0)
        p.o.shard_size = default_size;
    if (m->placement != placement)
        placement_free(m->placement);
    m->placement = placement;
    free(m->pieces);
    free(m->shards);
    m->pieces = NULL;
    m->shards = NULL;
    m->piece_count = m->shard_count = m->tile_count = m->chunk_count = 0;
    p.cells = calloc((size_t)placement_cells(placement), sizeof *p.cells);
    if (!p.cells || reserve(&p, err) != 0) {
        glm_fail(err, GLM_ENOMEM, "no memory for %d cells", placement_cells(placement));
        goto out;
    }
    for (int64_t i = 0; i < m->tensor_count; i++) {
        assert(i == 0 || m->tensors[i - 1].section <= m->tensors[i].section);
        if (add_tensor(&p, i, err) != 0)
            goto out;
    }
    name_shards(&p, err);
out:
    free(p.cells);
    free(p.piece_cell);
    return err->code;
}
