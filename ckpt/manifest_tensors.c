/* Tensors and pieces of a manifest: names against the table, shapes, order, geometry, extents. */
#include "ckpt/manifest_parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/shard.h"
#include "kernels/base/checked.h"

enum { PARSE_ALIGN = 4096, PARSE_BLOCK_MAX = 4096 };

/* ---- tensors -------------------------------------------------------------------------------- */

/* A scale's name -> the weight's row. How many elements a scale stands for is on its line. Weights
 * have scales where the release quantises them; an optimizer may keep any matrix in codes. */
static const struct table_entry *parse_scale(
    struct parse *p, enum ckpt_section section, const struct field *name)
{
    static const char *const suffixes[] = {
        ".weight_scale_inv", ".weight_scale", ".scale"};
    char weight[512];
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        int64_t member = -1;
        if (name->length >= sizeof weight
            || !table_scale_of(
                name->text, name->length, suffixes[i], weight, sizeof weight))
            continue;
        const struct table_entry *const e =
            table_find(p->table, weight, strlen(weight), &member);
        if (e && member < 0
            && (e->quantised || (section != SECTION_WEIGHT && e->rank >= 2)))
            return e;
    }
    return NULL;
}

struct tensor_line {
    enum ckpt_section section;
    enum glm_dtype dtype;
    int64_t shape[4];
    int rank;
    const struct table_entry *entry;
    bool scale;
    int64_t block[2];
    char name[512];
};

static int64_t blocks_of(int64_t n, int64_t block)
{
    return n / block + (n % block != 0);
}

/* The shape that the table gives a row, or the scale of a row. */
static int parse_expected_shape(struct parse *p, const struct tensor_line *t)
{
    const struct table_entry *const e = t->entry;
    bool same = t->rank == e->rank;
    for (int i = 0; same && i < e->rank; i++) {
        const int64_t block =
            !t->scale || i < e->rank - 2 ? 1 : t->block[i - (e->rank - 2)];
        same = t->shape[i] == blocks_of(e->shape[i], block);
    }
    return same
        ? 0
        : parse_fail(
            p, "tensor '%s': its shape is not the one that config.json gives", t->name);
}

static int parse_tensor_name(struct parse *p, struct tensor_line *t)
{
    const struct field *const name = &p->f[2];
    int64_t member = -1;
    if (name->length == 0 || name->length >= sizeof t->name
        || memchr(name->text, '\0', name->length))
        return parse_fail(p, "a tensor's name has %zu bytes", name->length);
    memcpy(t->name, name->text, name->length);
    t->name[name->length] = '\0';
    if (t->section == SECTION_TRAIN)
        return manifest_train_name_ok(name->text, name->length)
            ? 0
            : parse_fail(p, "tensor '%s' is no name for section train", t->name);
    t->entry = table_find(p->table, name->text, name->length, &member);
    if (t->entry && member >= 0)
        return parse_fail(p, "tensor '%s' is a member of a stack", t->name);
    if (!t->entry) {
        t->entry = parse_scale(p, t->section, name);
        t->scale = t->entry != NULL;
    }
    return t->entry
        ? 0
        : parse_fail(p, "tensor '%s' is not in the table of this config.json", t->name);
}

/* Whether scales may follow a tensor: E4M3 weights, optimizer state in any code of 8 bits. */
static bool parse_is_code(const struct ckpt_tensor *t)
{
    return t->section == SECTION_WEIGHT ? t->dtype == GLM_F8_E4M3
                                        : glm_dtype_bits(t->dtype) == 8;
}

/* Sections in order; in them rows in table order, a scale right after its weight; train by name. */
static int parse_tensor_order(struct parse *p, const struct tensor_line *t)
{
    const struct manifest *const m = p->m;
    const struct ckpt_tensor *const last =
        m->tensor_count > 0 ? &m->tensors[m->tensor_count - 1] : NULL;
    const bool same_section = last && last->section == t->section;
    bool fine = !last || last->section <= t->section;
    if (same_section && t->section == SECTION_TRAIN)
        fine = strcmp(last->name, t->name) < 0;
    else if (same_section && !t->scale)
        fine = last->entry < t->entry;
    if (t->scale)
        fine = same_section && last->entry == t->entry && parse_is_code(last)
            && last->block[0] == 1 && last->block[1] == 1;
    return fine ? 0 : parse_fail(p, "tensor '%s' is out of order", t->name);
}

static int parse_tensor_extra(struct parse *p, struct ckpt_tensor *t)
{
    static const char *const rules[] = {"te_round_up", "ocp_floor", "amax", "pow2"};
    if (p->fields == 7 || t->block[0] * t->block[1] > 1)
        return 0;
    if (parse_field_is(&p->f[7], "derived master")) {
        if (t->section != SECTION_WEIGHT || t->dtype != GLM_BF16)
            return parse_fail(
                p, "tensor '%s': only a BF16 weight can be derived", t->name);
        t->derived = true;
        return 0;
    }
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        char word[64];
        snprintf(word, sizeof word, "scale_rule %s", rules[i]);
        if (parse_field_is(&p->f[7], word) && t->dtype == GLM_F8_E4M3) {
            snprintf(t->scale_rule, sizeof t->scale_rule, "%s", rules[i]);
            return 0;
        }
    }
    return parse_fail(p, "tensor '%s': '%.*s' is not known here", t->name,
        (int)(p->f[7].length < 40 ? p->f[7].length : 40), p->f[7].text);
}

/* The checked line becomes a tensor of the manifest. */
static struct ckpt_tensor *parse_tensor_add(struct parse *p, const struct tensor_line *t)
{
    struct manifest *const m = p->m;
    struct ckpt_tensor *const out = manifest_add_tensor(m, t->name, t->section, t->dtype,
        t->shape, t->rank, t->entry && t->entry->stack, t->entry);
    if (!out) {
        parse_no_memory(p);
        return NULL;
    }
    out->block[0] = t->scale ? t->block[0] : 1;
    out->block[1] = t->scale ? t->block[1] : 1;
    out->scale = -1;
    if (t->scale)
        m->tensors[m->tensor_count - 2].scale = m->tensor_count - 1;
    out->first_piece = m->piece_count;
    out->pieces = 0;
    return out;
}

/* "block <rows>,<columns>" on a scale's line. */
static int parse_scale_block(struct parse *p, struct tensor_line *t)
{
    static const char word[] = "block ";
    struct field *const f = &p->f[7];
    if (p->fields != 8 || f->length < sizeof word
        || memcmp(f->text, word, sizeof word - 1) != 0)
        return parse_fail(
            p, "tensor '%s': a scale's line must end in its block", t->name);
    f->text += sizeof word - 1;
    f->length -= sizeof word - 1;
    if (parse_list(p, 7, "block", t->block, 2) != 2 || t->block[0] < 1 || t->block[1] < 1
        || t->block[0] > PARSE_BLOCK_MAX || t->block[1] > PARSE_BLOCK_MAX
        || (t->block[0] == 1 && t->block[1] == 1))
        return parse_fail(
            p, "tensor '%s': its block is not two counts, one above 1", t->name);
    return 0;
}

static int parse_tensor_line(struct parse *p, struct tensor_line *t)
{
    int64_t elements = 0;
    memset(t, 0, sizeof *t);
    if (p->fields != 7 && p->fields != 8)
        return parse_fail(p, "'tensor' has %d fields, expected 7 or 8", p->fields);
    if (!section_find(p->f[1].text, p->f[1].length, &t->section))
        return parse_fail(p, "there is no section '%.*s'",
            (int)(p->f[1].length < 40 ? p->f[1].length : 40), p->f[1].text);
    if (!glm_dtype_find(p->f[3].text, p->f[3].length, &t->dtype)
        || glm_dtype_bits(t->dtype) < 8)
        return parse_fail(p, "'%.*s' is no element type that a checkpoint holds",
            (int)(p->f[3].length < 40 ? p->f[3].length : 40), p->f[3].text);
    if (parse_tensor_name(p, t) != 0 || parse_tensor_order(p, t) != 0
        || (t->rank = parse_list(p, 4, "shape", t->shape, 4)) < 0)
        return p->err->code;
    if (!checked_count(t->shape, t->rank, &elements) || elements > INT64_MAX / 16)
        return parse_fail(
            p, "tensor '%s': its shape counts more elements than can be", t->name);
    if (t->scale && parse_scale_block(p, t) != 0)
        return p->err->code;
    return t->entry ? parse_expected_shape(p, t) : 0;
}

static int parse_piece(struct parse *p, const struct ckpt_tensor *t);

int parse_tensor(struct parse *p, bool *more)
{
    struct manifest *const m = p->m;
    struct tensor_line line;
    if (parse_tensor_line(p, &line) != 0)
        return p->err->code;
    struct ckpt_tensor *const t = parse_tensor_add(p, &line);
    if (!t || parse_digest(p, 5, t->fingerprint) != 0
        || parse_i64(p, 6, "first tile", &t->first_tile) != 0
        || parse_tensor_extra(p, t) != 0)
        return p->err->code;
    if (t->first_tile != m->tile_count)
        return parse_fail(p, "tensor '%s': first tile %" PRId64 ", expected %" PRId64,
            t->name, t->first_tile, m->tile_count);
    if (__builtin_add_overflow(m->tile_count, tile_count(&t->grid), &m->tile_count))
        return parse_fail(p, "more tiles than can be");
    while ((*more = parse_next(p)) && parse_line_is(p, "piece"))
        if (parse_piece(p, t) != 0)
            return p->err->code;
    t->pieces = m->piece_count - t->first_piece;
    if (p->err->code == GLM_OK
        && manifest_cover(t, m->pieces + t->first_piece, t->pieces, p->err) != 0)
        return glm_within(p->err, "%s: manifest, line %" PRId64, p->path, p->line);
    return p->err->code;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static int parse_piece_rect(struct parse *p, const struct ckpt_tensor *t, struct rect *at)
{
    int64_t lo[3] = {0}, n[3] = {0};
    const struct rect whole = rect_whole(t->grid.dims);
    int64_t a[3], b[3];
    const int axes = shard_axes(t, &whole, a, b);
    if (parse_list(p, 2, "piece offset", lo, 3) != axes
        || parse_list(p, 3, "piece shape", n, 3) != axes)
        return parse_fail(
            p, "tensor '%s': a piece has other axes than the tensor", t->name);
    *at = whole;
    for (int i = 0; i < axes; i++) {
        const int axis = RECT_AXES - axes + i;
        if (n[i] < 1 || lo[i] > t->grid.dims[axis] || n[i] > t->grid.dims[axis] - lo[i])
            return parse_fail(p, "tensor '%s': a piece leaves the tensor", t->name);
        at->lo[axis] = lo[i];
        at->hi[axis] = lo[i] + n[i];
    }
    if (!tile_aligned(&t->grid, at))
        return parse_fail(p, "tensor '%s': a piece is not made of whole tiles", t->name);
    return 0;
}

/* Pieces by offset (experts, rows, columns); in a shard at most one of a tensor; in its cell. */
static int parse_piece_place(
    struct parse *p, const struct ckpt_tensor *t, const struct ckpt_piece *piece)
{
    const struct manifest *const m = p->m;
    struct rect tiles;
    if (piece->tensor == p->shard_tensor[piece->shard])
        return parse_fail(
            p, "tensor '%s' has two pieces in shard %" PRId64, t->name, piece->shard);
    p->shard_tensor[piece->shard] = piece->tensor;
    if (m->piece_count > t->first_piece) {
        const struct rect *const last = &m->pieces[m->piece_count - 1].at;
        int i = 0;
        while (i < RECT_AXES - 1 && last->lo[i] == piece->at.lo[i])
            i++;
        if (last->lo[i] >= piece->at.lo[i])
            return parse_fail(p,
                "tensor '%s': its pieces are not in the order of their offsets", t->name);
    }
    if (!t->entry)
        return 0;
    const struct cell c = placement_cell(m->placement, m->shards[piece->shard].cell);
    if (!placement_tiles(m->placement, t->entry, &t->grid, t->block, &c, &tiles))
        return parse_fail(p,
            "tensor '%s': shard %" PRId64 " is of a cell that owns nothing of it",
            t->name, piece->shard);
    const struct rect span = tile_span(&t->grid, &tiles);
    if (!rect_contains(&span, &piece->at))
        return parse_fail(p,
            "tensor '%s': a piece in shard %" PRId64 " leaves what its cell owns",
            t->name, piece->shard);
    return 0;
}

static int parse_piece_plain(
    struct parse *p, const struct ckpt_tensor *t, struct ckpt_piece *piece)
{
    const uint64_t expected = (uint64_t)rect_count(&piece->at) * glm_dtype_size(t->dtype);
    const uint64_t length = p->m->shards[piece->shard].bytes;
    if (parse_u64(p, 5, "offset", &piece->offset) != 0
        || parse_u64(p, 6, "bytes", &piece->bytes) != 0)
        return p->err->code;
    if (piece->bytes != expected)
        return parse_fail(p,
            "tensor '%s': a piece of %" PRIu64 " bytes, expected %" PRIu64, t->name,
            piece->bytes, expected);
    if (piece->offset % PARSE_ALIGN != 0 || piece->offset < p->shard_end[piece->shard]
        || piece->offset > length || piece->bytes > length - piece->offset)
        return parse_fail(p,
            "tensor '%s': a piece at offset %" PRIu64 " (%" PRIu64 " bytes) is not"
            " page aligned, overlaps the one before or leaves shard %" PRId64 " (%" PRIu64
            " bytes)",
            t->name, piece->offset, piece->bytes, piece->shard, length);
    p->shard_end[piece->shard] = piece->offset + piece->bytes;
    return 0;
}

static int parse_piece_zstd(
    struct parse *p, const struct ckpt_tensor *t, struct ckpt_piece *piece)
{
    const struct rect cover = tile_cover(&t->grid, &piece->at);
    struct manifest *const m = p->m;
    if (parse_i64(p, 5, "first chunk", &piece->first_chunk) != 0
        || parse_i64(p, 6, "chunks", &piece->chunks) != 0
        || parse_u64(p, 7, "bytes", &piece->bytes) != 0)
        return p->err->code;
    if (piece->chunks != rect_count(&cover))
        return parse_fail(p,
            "tensor '%s': a piece of %" PRId64 " chunks, expected %" PRId64, t->name,
            piece->chunks, rect_count(&cover));
    if (piece->first_chunk != m->chunk_count
        || __builtin_add_overflow(m->chunk_count, piece->chunks, &m->chunk_count))
        return parse_fail(p, "tensor '%s': first chunk %" PRId64 ", expected %" PRId64,
            t->name, piece->first_chunk, m->chunk_count);
    if (piece->bytes > m->shards[piece->shard].bytes)
        return parse_fail(p,
            "tensor '%s': a piece of %" PRIu64 " bytes in a shard of %" PRIu64, t->name,
            piece->bytes, m->shards[piece->shard].bytes);
    return 0;
}

static int parse_piece(struct parse *p, const struct ckpt_tensor *t)
{
    struct manifest *const m = p->m;
    struct ckpt_piece *const piece = &m->pieces[m->piece_count];
    const bool plain = p->fields == 7 && parse_field_is(&p->f[4], "plain");
    if (!plain && !(p->fields == 8 && parse_field_is(&p->f[4], "zstd")))
        return parse_fail(
            p, "tensor '%s': a piece is 'plain' with 7 fields or 'zstd' with 8", t->name);
    memset(piece, 0, sizeof *piece);
    piece->tensor = m->tensor_count - 1;
    piece->encoding = plain ? ENC_PLAIN : ENC_ZSTD;
    if (parse_i64(p, 1, "shard number", &piece->shard) != 0)
        return p->err->code;
    if (piece->shard >= m->shard_count)
        return parse_fail(p, "there is no shard %" PRId64, piece->shard);
    if (parse_piece_rect(p, t, &piece->at) != 0 || parse_piece_place(p, t, piece) != 0)
        return p->err->code;
    if ((plain ? parse_piece_plain(p, t, piece) : parse_piece_zstd(p, t, piece)) != 0)
        return p->err->code;
    m->piece_count++;
    return 0;
}
