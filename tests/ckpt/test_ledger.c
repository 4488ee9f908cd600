/* The ledger: what is marked, what is journaled, in which order, and what a failure leaves. */
#include "ckpt/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"

struct seen {
    char text[4096];
    bool fail;
    int calls;
};

static int sync_seen(
    void *ctx, const struct ledger_run *runs, int64_t count, struct glm_error *err)
{
    struct seen *s = ctx;
    s->calls++;
    for (int64_t i = 0; i < count; i++) {
        char one[64];
        snprintf(one, sizeof one, "%d:%d+%d ", (int)runs[i].group, (int)runs[i].first,
            (int)runs[i].count);
        strcat(s->text, one);
    }
    return s->fail ? glm_fail(err, GLM_EIO, "the disk is gone") : GLM_OK;
}

static char *folder;
static struct work *work;
static struct ledger ledger;

static void begin(void)
{
    static const unsigned char plan[32] = {1};
    struct glm_error err = {0};
    bool resumed;
    folder = tmpdir_new();
    work_open(&work,
        &(struct work_options){.target = tmpdir_path(folder, "out"), .plan = plan},
        &resumed, &err);
    ledger_init(&ledger, 100, &err);
    cr_assert_eq(err.code, GLM_OK, "%s", err.text);
}

static void end(void)
{
    ledger_clear(&ledger);
    work_close(work);
    tmpdir_remove(folder);
}

TestSuite(ledger, .init = begin, .fini = end);

static bool add(int64_t group, int64_t first, int64_t count, uint64_t bytes)
{
    struct glm_error err = {0};
    bool due;
    cr_assert_eq(ledger_add(&ledger, group, first, count, bytes, &due, &err), GLM_OK);
    return due;
}

static const char *journal(void)
{
    static char *text;
    size_t size;
    free(text);
    text = tmpdir_read(tmpdir_path(folder, "out.partial/journal"), &size);
    return text;
}

Test(ledger, rows_that_touch_are_journaled_as_one_run_per_file)
{
    struct seen s = {0};
    struct glm_error err = {0};
    add(1, 40, 5, 10);
    add(0, 10, 10, 10);
    add(0, 0, 10, 10);
    add(1, 45, 5, 10);
    add(0, 30, 1, 10);
    cr_assert_eq(ledger_sync(&ledger, work, sync_seen, &s, &err), GLM_OK);
    cr_assert_str_eq(s.text, "0:0+20 0:30+1 1:40+10 ");
    cr_assert_not_null(strstr(journal(), "done 0 0 20\t"));
    cr_assert_not_null(strstr(journal(), "done 1 40 10\t"));
    cr_assert_eq(ledger_sync(&ledger, work, sync_seen, &s, &err), GLM_OK);
    cr_assert_eq(s.calls, 1, "nothing new, nothing to sync");
}

Test(ledger, a_group_below_zero_is_marked_and_not_journaled)
{
    struct seen s = {0};
    struct glm_error err = {0};
    add(-1, 3, 4, 1 << 30);
    cr_assert(ledger_has(&ledger, 3, 4));
    cr_assert_eq(ledger_sync(&ledger, work, sync_seen, &s, &err), GLM_OK);
    cr_assert_eq(s.calls, 0);
    cr_assert_null(strstr(journal(), "done"));
}

Test(ledger, a_sync_is_due_after_a_batch_of_bytes)
{
    struct seen s = {0};
    struct glm_error err = {0};
    ledger.batch = 100;
    cr_assert_not(add(0, 0, 1, 60));
    cr_assert(add(0, 1, 1, 60));
    ledger_sync(&ledger, work, sync_seen, &s, &err);
    cr_assert_not(add(0, 2, 1, 60));
}

Test(ledger, what_fails_to_sync_is_not_journaled_then_or_later)
{
    struct seen s = {.fail = true};
    struct glm_error err = {0}, later = {0};
    add(0, 0, 5, 1);
    cr_assert_eq(ledger_sync(&ledger, work, sync_seen, &s, &err), GLM_EIO);
    s.fail = false;
    add(0, 5, 5, 1);
    cr_assert_eq(ledger_sync(&ledger, work, sync_seen, &s, &later), GLM_EIO);
    cr_assert_eq(s.calls, 1);
    cr_assert_null(strstr(journal(), "done"), "%s", journal());
}

Test(ledger, missing_counts_and_names_the_first)
{
    int64_t first;
    cr_assert_eq(ledger_missing(&ledger, &first), 100);
    cr_assert_eq(first, 0);
    add(0, 0, 99, 1);
    cr_assert_eq(ledger_missing(&ledger, &first), 1);
    cr_assert_eq(first, 99);
    add(0, 90, 10, 1); /* twice the same rows count once */
    cr_assert_eq(ledger_missing(&ledger, &first), 0);
    cr_assert_eq(first, -1);
    ledger_forget(&ledger, 7, 3);
    ledger_forget(&ledger, 8, 1);
    cr_assert_eq(ledger_missing(&ledger, &first), 3);
    cr_assert_eq(first, 7);
    cr_assert_not(ledger_has(&ledger, 0, 100));
    cr_assert(ledger_has(&ledger, 10, 90));
}

Test(ledger, agrees_with_an_array_of_flags)
{
    bool flags[100] = {0};
    uint64_t state = 7;
    for (int round = 0; round < 2000; round++) {
        const int64_t first = (int64_t)rng_below(&state, 100);
        const int64_t count = (int64_t)rng_below(&state, (uint64_t)(101 - first));
        const bool mark = rng_below(&state, 3) != 0;
        int64_t missing = 0, lowest, want = -1;
        if (mark)
            add(-1, first, count, 0);
        else
            ledger_forget(&ledger, first, count);
        for (int64_t i = first; i < first + count; i++)
            flags[i] = mark;
        for (int64_t i = 99; i >= 0; i--) {
            missing += !flags[i];
            want = flags[i] ? want : i;
            cr_assert_eq(flags[i], ledger_has(&ledger, i, 1), "row %d", (int)i);
        }
        cr_assert_eq(ledger_missing(&ledger, &lowest), missing);
        cr_assert_eq(lowest, want);
    }
}

Test(ledger, a_line_that_is_none_or_out_of_range_marks_nothing)
{
    static const char *const bad[] = {"done 0 0", "done 0 0 5 x", "done -1 0 5",
        "done 0 -1 5", "done 0 0 101", "done 0 96 5", "done 0 9223372036854775807 2",
        "done 0 2 -1", "gone 0 0 5", "done 0 99999999999999999999 1", ""};
    struct ledger_run run;
    int64_t first;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_not(ledger_replay(&ledger, bad[i], &run), "'%s'", bad[i]);
        cr_assert_eq(ledger_missing(&ledger, &first), 100, "'%s'", bad[i]);
    }
    cr_assert(ledger_replay(&ledger, "done 3 95 5", &run));
    cr_assert_eq(run.group, 3);
    cr_assert(ledger_has(&ledger, 95, 5));
    cr_assert_eq(ledger_missing(&ledger, &first), 95);
}
