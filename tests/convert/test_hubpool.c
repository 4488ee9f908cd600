/* Buffers are used again where they fit, and never more bytes are held than asked. */
#include <criterion/criterion.h>
#include <stdint.h>

#include "convert/hubpool.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

Test(hubpool, a_spare_buffer_that_fits_is_used_again)
{
    struct hubpool p = {.most = 64 * MIB};
    size_t small, large, size;
    unsigned char *const a = hubpool_take(&p, 100 * KIB, &small);
    unsigned char *const b = hubpool_take(&p, 3 * MIB, &large);

    cr_assert(a != NULL && b != NULL);
    cr_assert_eq(small, 128 * KIB);
    cr_assert_eq(large, 3 * MIB);
    cr_assert_eq(p.used, small + large);
    hubpool_give(&p, a, small);
    hubpool_give(&p, b, large);
    cr_assert_eq(p.used, 0);
    cr_assert_eq(p.kept, small + large);
    cr_assert_eq(hubpool_take(&p, 2 * MIB, &size), b, "3 MiB serve 2");
    cr_assert_eq(size, large);
    cr_assert_eq(hubpool_take(&p, 128 * KIB, &size), a);
    cr_assert_eq(size, small);
    cr_assert_eq(p.kept, 0);
    hubpool_give(&p, a, small);
    hubpool_give(&p, b, large);
    hubpool_clear(&p);
    cr_assert_eq(p.kept, 0);
}

/* The smaller of two that fit; none of more than twice the size. */
Test(hubpool, no_buffer_that_is_much_too_large_is_taken)
{
    struct hubpool p = {.most = 64 * MIB};
    size_t size[3], got;
    unsigned char *const data[3] = {hubpool_take(&p, 7 * MIB, &size[0]),
        hubpool_take(&p, 4 * MIB, &size[1]), hubpool_take(&p, 3 * MIB, &size[2])};

    for (int i = 0; i < 3; i++)
        hubpool_give(&p, data[i], size[i]);
    unsigned char *const a = hubpool_take(&p, 2 * MIB, &got);
    cr_assert_eq(a, data[2]);
    unsigned char *const b = hubpool_take(&p, 2 * MIB, &got);
    cr_assert_eq(b, data[1]);
    unsigned char *const c = hubpool_take(&p, 2 * MIB, &got);
    cr_assert_neq(c, data[0]);
    cr_assert_eq(got, 2 * MIB);
    hubpool_give(&p, a, size[2]);
    hubpool_give(&p, b, size[1]);
    hubpool_give(&p, c, got);
    hubpool_clear(&p);
}

Test(hubpool, holds_no_more_bytes_than_it_may)
{
    struct hubpool p = {.most = 8 * MIB};
    size_t size, other;

    cr_assert(hubpool_has_room(&p, 100 * MIB), "one buffer there must always be");
    unsigned char *const a = hubpool_take(&p, 7 * MIB, &size);
    cr_assert(hubpool_has_room(&p, MIB));
    cr_assert_not(hubpool_has_room(&p, MIB + 1));
    hubpool_give(&p, a, size);
    cr_assert_eq(p.kept, 7 * MIB);
    unsigned char *const b = hubpool_take(&p, MIB + 1, &other);
    cr_assert_eq(other, 2 * MIB);
    cr_assert_eq(p.kept, 0, "the spare one had to go");
    unsigned char *const c = hubpool_take(&p, 7 * MIB, &size);
    hubpool_give(&p, c, size);
    cr_assert_eq(p.kept, 0, "9 MiB would be held");
    hubpool_give(&p, b, other);
    cr_assert_eq(p.kept, other);
    hubpool_clear(&p);
}

Test(hubpool, keeps_so_many_buffers_and_frees_the_rest)
{
    enum { MOST = sizeof((struct hubpool){0}).spare / sizeof(struct hubspare) };
    struct hubpool p = {.most = 64 * MIB};
    unsigned char *data[MOST + 1];
    size_t size;

    for (int i = 0; i <= MOST; i++)
        data[i] = hubpool_take(&p, 1, &size);
    for (int i = 0; i <= MOST; i++)
        hubpool_give(&p, data[i], size);
    cr_assert_eq(p.count, MOST);
    cr_assert_eq(p.kept, MOST * size);
    cr_assert_eq(p.used, 0);
    hubpool_clear(&p);
    cr_assert_eq(p.count, 0);
}

/* More than there is in any address space: what was there stays as it was. */
Test(hubpool, says_how_much_memory_there_was_not)
{
    struct hubpool p = {.most = SIZE_MAX};
    size_t size = 0;

    cr_assert_null(hubpool_take(&p, (size_t)1 << 62, &size));
    cr_assert_eq(size, (size_t)1 << 62);
    cr_assert_eq(p.used, 0);
}
