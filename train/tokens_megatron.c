/* Megatron's indexed dataset: .idx says what lies where in .bin. All numbers little-endian.
 *
 *     "MMIDIDX\0\0"  u64 version 1  u8 type  u64 sequences S  u64 document marks M
 *     i32 sizes[S], in tokens   i64 pointers[S], in bytes   i64 marks[M]   (i8 modes[S]: multimodal)
 *
 * Document d is the sequences marks[d] to marks[d + 1]. The writer lays sequences out one after the
 * other, so a pointer is the sum of the sizes before it; a file in which it is not is refused rather
 * than read through holes. The tables are read in pieces: in memory is one number a document. */
#include "train/tokens_inside.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { IDX_HEAD = 34, IDX_MAGIC = 9, IDX_PIECE = 4096 };

struct idx {
    struct tokens *t;
    struct dio file;
    struct digest *sum;
    uint64_t sequences, marks, bin_size;
};

static uint64_t idx_u64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static int idx_type(struct idx *x, int code, struct glm_error *err)
{
    static const enum glm_dtype types[] = {[1] = GLM_U8,
        [2] = GLM_I8,
        [3] = GLM_I16,
        [4] = GLM_I32,
        [5] = GLM_I64,
        [8] = GLM_U16};
    if (code == 6 || code == 7)
        return glm_fail(err, GLM_EFORMAT,
            "%s: byte 17: type %d is floating point; token ids are whole numbers",
            x->file.path, code);
    if (code < 1 || code > 8)
        return glm_fail(err, GLM_EFORMAT, "%s: byte 17: type %d; there are 1 to 8",
            x->file.path, code);
    x->t->dtype = types[code];
    return GLM_OK;
}

/* The lengths that the counts ask for, before anything is allocated for them. */
static int idx_lengths(struct idx *x, struct glm_error *err)
{
    const uint64_t room = x->file.size - IDX_HEAD;
    if (x->sequences > room / 12 || x->marks > (room - 12 * x->sequences) / 8)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes long, too short for its %" PRIu64
            " sequences and %" PRIu64 " document marks",
            x->file.path, x->file.size, x->sequences, x->marks);
    const uint64_t left = room - 12 * x->sequences - 8 * x->marks;
    if (left == x->sequences && left > 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: a multimodal dataset (a mode for each sequence follows the document "
            "marks): "
            "only text datasets can be read",
            x->file.path);
    if (left > 0)
        return glm_fail(err, GLM_EFORMAT, "%s: %" PRIu64 " bytes follow its tables",
            x->file.path, left);
    if (x->marks < 2 || x->sequences == 0)
        return glm_fail(err, GLM_EFORMAT, "%s: there is no document in it", x->file.path);
    return GLM_OK;
}

static int idx_head(struct idx *x, struct glm_error *err)
{
    unsigned char head[IDX_HEAD];
    if (x->file.size < IDX_HEAD)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes long, the header of a Megatron index has %d",
            x->file.path, x->file.size, IDX_HEAD);
    if (dio_pread(&x->file, 0, sizeof head, head, err) != GLM_OK)
        return err->code;
    if (memcmp(head, "MMIDIDX\0\0", IDX_MAGIC) != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: not a Megatron index: it does not begin with MMIDIDX", x->file.path);
    if (idx_u64(head + 9) != 1)
        return glm_fail(err, GLM_EFORMAT, "%s: byte 9: version %" PRIu64 ", expected 1",
            x->file.path, idx_u64(head + 9));
    x->sequences = idx_u64(head + 18);
    x->marks = idx_u64(head + 26);
    digest_update(x->sum, head, sizeof head);
    if (idx_type(x, head[17], err) != GLM_OK)
        return err->code;
    return idx_lengths(x, err);
}

/* Holds every pointer against the sum of the sizes before it. */
static int idx_sequences(struct idx *x, struct glm_error *err)
{
    const uint64_t size = glm_dtype_size(x->t->dtype), S = x->sequences;
    int32_t sizes[IDX_PIECE];
    int64_t pointers[IDX_PIECE];
    uint64_t at = 0;
    for (uint64_t i = 0; i < S; i += IDX_PIECE) {
        const size_t n = S - i < IDX_PIECE ? (size_t)(S - i) : IDX_PIECE;
        if (dio_pread(&x->file, IDX_HEAD + 4 * i, 4 * n, sizes, err) != GLM_OK
            || dio_pread(&x->file, IDX_HEAD + 4 * S + 8 * i, 8 * n, pointers, err)
                != GLM_OK)
            return err->code;
        digest_update(x->sum, sizes, 4 * n);
        digest_update(x->sum, pointers, 8 * n);
        for (size_t k = 0; k < n; k++) {
            if (sizes[k] < 0)
                return glm_fail(err, GLM_EFORMAT,
                    "%s: sequence %" PRIu64 " has the size %d", x->file.path, i + k,
                    sizes[k]);
            if (pointers[k] < 0 || (uint64_t)pointers[k] != at)
                return glm_fail(err, GLM_EFORMAT,
                    "%s: sequence %" PRIu64 ": pointer %lld, expected %" PRIu64
                    " (the sizes before it)",
                    x->file.path, i + k, (long long)pointers[k], at);
            if ((uint64_t)sizes[k] > (x->bin_size - at) / size)
                return glm_fail(err, GLM_EFORMAT,
                    "%s: sequence %" PRIu64 ": %d tokens at byte %" PRIu64
                    " reach beyond the %" PRIu64 " bytes of %s",
                    x->file.path, i + k, sizes[k], at, x->bin_size, x->t->file.path);
            at += (uint64_t)sizes[k] * size;
        }
    }
    if (at != x->bin_size)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes long, its index accounts for %" PRIu64,
            x->t->file.path, x->bin_size, at);
    return GLM_OK;
}

/* Reads marks [first, first + n) and holds them against `before` and each other. */
static int idx_marks(struct idx *x, uint64_t first, size_t n, int64_t *marks,
    int64_t before, struct glm_error *err)
{
    const uint64_t from = IDX_HEAD + 12 * x->sequences;
    if (dio_pread(&x->file, from + 8 * first, 8 * n, marks, err) != GLM_OK)
        return err->code;
    digest_update(x->sum, marks, 8 * n);
    for (size_t k = 0; k < n; k++) {
        const uint64_t d = first + k;
        if (marks[k] < before || (uint64_t)marks[k] > x->sequences
            || (d == 0 && marks[k] != 0)
            || (d + 1 == x->marks && (uint64_t)marks[k] != x->sequences))
            return glm_fail(err, GLM_EFORMAT,
                "%s: document mark %" PRIu64
                " is %lld after %lld: marks rise from 0 to the %" PRIu64 " sequences",
                x->file.path, d, (long long)marks[k], (long long)before, x->sequences);
        before = marks[k];
    }
    return GLM_OK;
}

/* Turns marks (in sequences) into offsets (in tokens), both read once, side by side. */
static int idx_documents(struct idx *x, struct glm_error *err)
{
    int64_t marks[IDX_PIECE], before = 0, pointer;
    const int64_t size = (int64_t)glm_dtype_size(x->t->dtype);
    const uint64_t pointers = IDX_HEAD + 4 * x->sequences;
    x->t->documents = (int64_t)x->marks - 1;
    x->t->start = malloc(x->marks * sizeof *x->t->start);
    if (x->t->start == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for %lld documents", x->file.path,
            (long long)x->t->documents);
    int64_t block[IDX_PIECE];
    uint64_t have = UINT64_MAX; /* the piece of pointers in `block` */
    for (uint64_t i = 0; i < x->marks; i += IDX_PIECE) {
        const size_t n = x->marks - i < IDX_PIECE ? (size_t)(x->marks - i) : IDX_PIECE;
        if (idx_marks(x, i, n, marks, before, err) != GLM_OK)
            return err->code;
        before = marks[n - 1];
        for (size_t k = 0; k < n; k++) {
            const uint64_t s = (uint64_t)marks[k], piece = s / IDX_PIECE;
            if (s == x->sequences) {
                pointer = (int64_t)x->bin_size;
            } else {
                const uint64_t left = x->sequences - piece * IDX_PIECE;
                const size_t m = left < IDX_PIECE ? (size_t)left : IDX_PIECE;
                if (piece != have
                    && dio_pread(
                           &x->file, pointers + 8 * piece * IDX_PIECE, 8 * m, block, err)
                        != GLM_OK)
                    return err->code;
                have = piece;
                pointer = block[s % IDX_PIECE];
            }
            x->t->start[i + k] = pointer / size;
        }
    }
    return GLM_OK;
}

static int idx_read(struct idx *x, struct glm_error *err)
{
    if (idx_head(x, err) != GLM_OK)
        return err->code;
    if (x->bin_size % glm_dtype_size(x->t->dtype) != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes are no whole number of %s tokens", x->t->file.path,
            x->bin_size, glm_dtype_name(x->t->dtype));
    if (idx_sequences(x, err) != GLM_OK || idx_documents(x, err) != GLM_OK)
        return err->code;
    digest_update(x->sum, &x->bin_size, sizeof x->bin_size);
    digest_end(x->sum, x->t->fingerprint);
    return GLM_OK;
}

int tokens_megatron_open(
    struct tokens *t, const char *idx, const char *bin, struct glm_error *err)
{
    struct idx x = {.t = t, .file = {.fd = -1, .direct = -1}, .sum = digest_new()};
    t->format = TOKENS_MEGATRON;
    if (x.sum == NULL) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory for its digest", idx);
        goto out;
    }
    digest_begin(x.sum);
    if (dio_open_read(&x.file, idx, err) == GLM_OK
        && dio_open_read(&t->file, bin, err) == GLM_OK) {
        x.bin_size = t->file.size;
        idx_read(&x, err);
    }
out:
    dio_close(&x.file);
    digest_free(x.sum);
    return err->code;
}
