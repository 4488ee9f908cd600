/* Packs against a plain list of every row of every document. */
#include "train/packing.h"

#include <stdlib.h>

#include <criterion/criterion.h>

#include "tests/support/rng.h"

struct lengths {
    int64_t count, tokens[4096];
};

static int64_t length_of(const void *ctx, int64_t rank)
{
    return ((const struct lengths *)ctx)->tokens[rank];
}

/* Goes through all packs and holds them against the documents in order. */
static void packs_are_right(const struct lengths *l, int64_t length)
{
    struct glm_error err = {0};
    struct packs p;
    struct pack_piece piece;
    int64_t rank = 0, row = 0, rows = 0, last_used = length;
    cr_assert_eq(packing_plan(&p, l->count, length_of, l, length, &err), GLM_OK);
    for (int64_t no = 0; no < p.count; no++) {
        struct pack_start at = p.start[no];
        int64_t used = 0, first = -1;
        while (packing_next(&p, no, length_of, l, &at, &piece)) {
            while (rank < l->count && row >= l->tokens[rank] - 1) {
                rank++;
                row = 0;
            }
            cr_assert(
                piece.rank == rank && piece.row == row, "a row was lost or repeated");
            const int64_t all = l->tokens[rank] - 1;
            /* Whole, or cut only because it is longer than a pack. */
            cr_assert(piece.rows == all
                || (all > length && piece.row % length == 0
                    && (piece.rows == length || piece.row + piece.rows == all)));
            row += piece.rows;
            used += piece.rows;
            rows += piece.rows;
            first = first < 0 ? piece.rows : first;
        }
        cr_assert(used > 0 && used <= length);
        cr_assert_gt(last_used + first, length, "a piece that fitted began a new pack");
        last_used = used;
    }
    for (; rank < l->count; rank++, row = 0)
        cr_assert_geq(row, l->tokens[rank] - 1, "document %ld ends before its end", rank);
    cr_expect_eq(p.rows, rows);
    packing_clear(&p);
}

Test(packing, keeps_documents_whole_and_loses_no_row)
{
    struct lengths *const l = calloc(1, sizeof *l);
    uint64_t state = 11;
    for (int trial = 0; trial < 200; trial++) {
        l->count = (int64_t)rng_below(&state, 60);
        for (int64_t i = 0; i < l->count; i++)
            l->tokens[i] =
                (int64_t)rng_below(&state, rng_below(&state, 4) == 0 ? 100 : 12);
        packs_are_right(l, 1 + (int64_t)rng_below(&state, 20));
    }
    free(l);
}

Test(packing, of_a_known_list_is_the_known_packs)
{
    static const struct lengths l = {7, {4, 0, 3, 1, 21, 2, 9}};
    /* Rows 3, 2, 20 (8 + 8 + 4), 1, 8 at length 8. */
    static const struct pack_start want[] = {
        {0, 0}, {4, 0}, {4, 8}, {4, 16}, {6, 0}, {7, 0}};
    struct glm_error err = {0};
    struct packs p;
    cr_assert_eq(packing_plan(&p, l.count, length_of, &l, 8, &err), GLM_OK);
    cr_assert_eq(p.count, 5);
    for (int i = 0; i <= 5; i++)
        cr_expect(p.start[i].rank == want[i].rank && p.start[i].row == want[i].row,
            "pack %d", i);
    cr_expect_eq(p.rows, 34);
    cr_expect_eq(p.pieces, 7);
    cr_expect_eq(p.skipped, 2);
    packing_clear(&p);
}

Test(packing, of_nothing_is_nothing)
{
    static const struct lengths l = {3, {0, 1, 0}};
    struct glm_error err = {0};
    struct packs p;
    cr_assert_eq(packing_plan(&p, l.count, length_of, &l, 8, &err), GLM_OK);
    cr_expect_eq(p.count, 0);
    cr_expect_eq(p.skipped, 3);
    packing_clear(&p);
}
