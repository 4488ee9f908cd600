/* NAME.partial: who may work there, what is believed of a journal, and the one commit. */
#include "ckpt/work.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "tests/support/tmpdir.h"

static const unsigned char plan_a[32] = {1}, plan_b[32] = {2};

static char *folder;
static char target[512];

static void begin(void)
{
    folder = tmpdir_new();
    snprintf(target, sizeof target, "%s/out", folder);
}

static void end(void)
{
    tmpdir_remove(folder);
}

TestSuite(work, .init = begin, .fini = end);

static const char *partial(const char *name)
{
    return tmpdir_path(folder, "out.partial/%s", name);
}

static int open_with(
    struct work **w, bool *resumed, struct glm_error *err, struct work_options o)
{
    *err = (struct glm_error){0};
    if (o.target == NULL)
        o.target = target;
    if (o.plan == NULL)
        o.plan = plan_a;
    return work_open(w, &o, resumed, err);
}

/* Opens, or fails the test with the sentence. */
static struct work *opened(bool *resumed, struct work_options o)
{
    struct glm_error err;
    struct work *w;
    cr_assert_eq(open_with(&w, resumed, &err, o), GLM_OK, "%s", err.text);
    return w;
}

static void refused(struct work_options o, enum glm_code code, const char *says)
{
    struct glm_error err;
    struct work *w;
    bool resumed;
    cr_assert_eq((enum glm_code)open_with(&w, &resumed, &err, o), code, "%s", err.text);
    cr_assert_null(w);
    cr_assert_not_null(strstr(err.text, says), "'%s' does not say '%s'", err.text, says);
}

static void journal(struct work *w, const char *text)
{
    struct glm_error err = {0};
    cr_assert_eq(work_journal(w, text, &err), GLM_OK, "%s", err.text);
}

static int collect(void *ctx, char *line, struct glm_error *err)
{
    (void)err;
    strcat(ctx, line);
    strcat(ctx, ";");
    return 0;
}

/* Lines that a second run is told of, joined by semicolons. */
static const char *replayed(struct work *w)
{
    static char text[4096];
    struct glm_error err = {0};
    text[0] = '\0';
    cr_assert_eq(work_replay(w, collect, text, &err), GLM_OK, "%s", err.text);
    return text;
}

/* A partial with two journal lines whose owner is gone. */
static void interrupted(void)
{
    bool resumed;
    struct work *w = opened(&resumed, (struct work_options){0});
    journal(w, "done 0 0 5\n");
    journal(w, "done 1 5 2\n");
    work_close(w);
}

/* ---- the lease ---- */

Test(work, a_living_process_keeps_its_folder)
{
    int ready[2], stop[2];
    char c = 0;
    cr_assert_eq(pipe(ready) | pipe(stop), 0);
    const pid_t child = fork();
    if (child == 0) {
        struct glm_error err = {0};
        struct work *w;
        bool resumed;
        const struct work_options o = {.target = target, .plan = plan_a};
        if (work_open(&w, &o, &resumed, &err) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        close(stop[1]);
        if (read(stop[0], &c, 1) < 0)
            _exit(2);
        _exit(0); /* without closing: it dies with the lease in place */
    }
    close(stop[0]);
    cr_assert_eq(read(ready[0], &c, 1), 1);
    refused((struct work_options){0}, GLM_EUSAGE, "works here now");
    refused((struct work_options){.take_lease = true}, GLM_EUSAGE, "works here now");
    refused((struct work_options){.restart = true}, GLM_EUSAGE, "works here now");
    close(stop[1]);
    waitpid(child, NULL, 0);
    cr_assert_eq(access(partial("lease"), F_OK), 0, "the dead child left no lease");
    bool resumed;
    struct work *w = opened(&resumed, (struct work_options){0});
    cr_assert(resumed, "a dead owner's work is continued");
    work_close(w);
}

static void lease_of(const char *text)
{
    interrupted();
    tmpdir_write(partial("lease"), text, strlen(text));
}

Test(work, a_process_number_given_to_another_process_is_a_dead_owner)
{
    char host[256], text[512];
    bool resumed;
    gethostname(host, sizeof host);
    snprintf(text, sizeof text, "%s\t%ld\t12345\tno-such-boot\n", host, (long)getpid());
    lease_of(text);
    work_close(opened(&resumed, (struct work_options){0}));
    cr_assert(resumed);
}

Test(work, another_hosts_lease_is_taken_only_when_told_to)
{
    bool resumed;
    lease_of("elsewhere\t17\t12345\tboot\n");
    refused((struct work_options){0}, GLM_EUSAGE, "elsewhere");
    refused((struct work_options){0}, GLM_EUSAGE, "--take-lease");
    work_close(opened(&resumed, (struct work_options){.take_lease = true}));
    cr_assert(resumed);
}

Test(work, a_torn_lease_is_nobodys)
{
    bool resumed;
    lease_of("");
    work_close(opened(&resumed, (struct work_options){0}));
    cr_assert(resumed);
    lease_of("half a host na");
    work_close(opened(&resumed, (struct work_options){0}));
    cr_assert(resumed);
}

Test(work, what_half_made_leases_left_is_swept)
{
    bool resumed;
    interrupted();
    tmpdir_write(partial("lease.4711"), "x", 1);
    tmpdir_write(partial("lease.4711.dead"), "x", 1);
    work_close(opened(&resumed, (struct work_options){0}));
    cr_assert_neq(access(partial("lease.4711"), F_OK), 0);
    cr_assert_neq(access(partial("lease.4711.dead"), F_OK), 0);
    cr_assert_neq(access(partial("lease"), F_OK), 0, "the lease is dropped at the end");
}

/* ---- the journal ---- */

Test(work, lines_come_back_as_they_were_written)
{
    bool resumed;
    interrupted();
    struct work *w = opened(&resumed, (struct work_options){0});
    cr_assert(resumed);
    cr_assert_str_eq(replayed(w), "done 0 0 5;done 1 5 2;");
    journal(w, "done 2 7 1\n");
    work_close(w);
    w = opened(&resumed, (struct work_options){0});
    cr_assert_str_eq(replayed(w), "done 0 0 5;done 1 5 2;done 2 7 1;");
    work_close(w);
}

Test(work, a_line_torn_anywhere_is_dropped_and_written_over)
{
    bool resumed;
    size_t size, first;
    interrupted();
    char *text = tmpdir_read(partial("journal"), &size);
    char *second = strchr(strchr(text, '\n') + 1, '\n') + 1; /* plan, done 0, then this */
    first = (size_t)(second - text);
    for (size_t cut = first; cut < size; cut++) {
        tmpdir_write(partial("journal"), text, cut);
        struct work *w = opened(&resumed, (struct work_options){0});
        cr_assert(resumed);
        cr_assert_str_eq(replayed(w), "done 0 0 5;", "cut at %zu", cut);
        journal(w, "done 9 9 9\n");
        cr_assert_str_eq(replayed(w), "done 0 0 5;done 9 9 9;", "cut at %zu", cut);
        work_close(w);
    }
    free(text);
}

Test(work, no_flipped_bit_of_a_line_is_believed)
{
    bool resumed;
    size_t size;
    interrupted();
    char *text = tmpdir_read(partial("journal"), &size);
    const size_t first = (size_t)(strchr(text, '\n') + 1 - text);
    for (size_t i = first; i < size; i++)
        for (int b = 0; b < 8; b++) {
            text[i] = (char)(text[i] ^ (1 << b));
            tmpdir_write(partial("journal"), text, size);
            text[i] = (char)(text[i] ^ (1 << b));
            struct work *w = opened(&resumed, (struct work_options){0});
            const char *got = replayed(w);
            cr_assert(strcmp(got, "") == 0 || strcmp(got, "done 0 0 5;") == 0,
                "byte %zu bit %d: '%s'", i, b, got);
            work_close(w);
        }
    free(text);
}

Test(work, another_plan_is_refused_and_kept_until_restart)
{
    bool resumed;
    interrupted();
    tmpdir_write(partial("data"), "x", 1);
    refused((struct work_options){.plan = plan_b}, GLM_EUSAGE, "--restart");
    cr_assert_eq(access(partial("data"), F_OK), 0);
    struct work *w =
        opened(&resumed, (struct work_options){.plan = plan_b, .restart = true});
    cr_assert_not(resumed);
    cr_assert_str_eq(replayed(w), "");
    cr_assert_neq(access(partial("data"), F_OK), 0, "restart discards");
    work_close(w);
}

Test(work, restart_discards_the_same_plan_too)
{
    bool resumed;
    interrupted();
    struct work *w = opened(&resumed, (struct work_options){.restart = true});
    cr_assert_not(resumed);
    cr_assert_str_eq(replayed(w), "");
    work_close(w);
}

Test(work, a_partial_without_a_plan_is_begun_anew)
{
    bool resumed;
    interrupted();
    tmpdir_write(partial("journal"), "plan 01", 7); /* torn in its first line */
    tmpdir_write(partial("data"), "x", 1);
    struct work *w = opened(&resumed, (struct work_options){0});
    cr_assert_not(resumed);
    cr_assert_neq(access(partial("data"), F_OK), 0);
    work_close(w);
}

Test(work, a_folder_that_is_being_finished_is_not_taken)
{
    bool resumed;
    struct work *w = opened(&resumed, (struct work_options){0});
    unlink(partial("journal")); /* as the commit does, just before the rename */
    unlink(partial("lease"));
    refused((struct work_options){0}, GLM_EUSAGE, "works here now");
    cr_assert_neq(
        access(partial("lease"), F_OK), 0, "a refused one leaves nothing in there");
    work_close(w);
}

/* ---- the target ---- */

Test(work, a_symbolic_link_is_never_written_through)
{
    cr_assert_eq(mkdir(tmpdir_path(folder, "real"), 0777), 0);
    cr_assert_eq(symlink("real", target), 0);
    refused((struct work_options){0}, GLM_EUSAGE, "symbolic link");
    refused((struct work_options){.replace = true}, GLM_EUSAGE, "symbolic link");
    cr_assert_neq(access(tmpdir_path(folder, "out.partial"), F_OK), 0);
}

Test(work, a_partial_that_is_a_link_is_not_followed)
{
    cr_assert_eq(mkdir(tmpdir_path(folder, "real"), 0777), 0);
    tmpdir_write(tmpdir_path(folder, "real/precious"), "x", 1);
    cr_assert_eq(symlink("real", tmpdir_path(folder, "out.partial")), 0);
    refused((struct work_options){0}, GLM_EUSAGE, "symbolic link");
    refused((struct work_options){.restart = true}, GLM_EUSAGE, "symbolic link");
    cr_assert_eq(access(tmpdir_path(folder, "real/precious"), F_OK), 0);
}

Test(work, too_little_space_is_refused_before_writing)
{
    refused((struct work_options){.need_bytes = UINT64_MAX / 2}, GLM_EIO,
        "9223372036854775807");
    cr_assert_neq(access(tmpdir_path(folder, "out.partial"), F_OK), 0, "nothing is left");
}

Test(work, an_existing_target_needs_replace)
{
    cr_assert_eq(mkdir(target, 0777), 0);
    refused((struct work_options){0}, GLM_EUSAGE, "--replace");
}

static void commit(struct work *w, const char *const *extras)
{
    struct glm_error err = {0};
    cr_assert_eq(work_commit(w, extras, &err), GLM_OK, "%s", err.text);
}

Test(work, the_commit_leaves_what_the_caller_wrote_and_nothing_of_its_own)
{
    static const char *const extras[] = {"tiles.part", "absent.part", NULL};
    bool resumed;
    struct work *w = opened(&resumed, (struct work_options){0});
    tmpdir_write(partial("data"), "x", 1);
    tmpdir_write(partial("tiles.part"), "x", 1);
    commit(w, extras);
    cr_assert_eq(access(tmpdir_path(folder, "out/data"), F_OK), 0);
    for (const char *const *n =
             (const char *const[]){"journal", "lease", "tiles.part", NULL};
         *n != NULL; n++)
        cr_assert_neq(
            access(tmpdir_path(folder, "out/%s", *n), F_OK), 0, "%s is left", *n);
    cr_assert_neq(access(tmpdir_path(folder, "out.partial"), F_OK), 0);
}

Test(work, replace_exchanges_and_removes_the_old_one)
{
    bool resumed;
    cr_assert_eq(mkdir(target, 0777), 0);
    tmpdir_write(tmpdir_path(folder, "out/index.h5"), "GLMCKPT 1\n", 10);
    cr_assert_eq(mkdir(tmpdir_path(folder, "out/sub"), 0777), 0);
    tmpdir_write(tmpdir_path(folder, "out/sub/old"), "x", 1);
    struct work *w = opened(&resumed, (struct work_options){.replace = true});
    tmpdir_write(partial("new"), "x", 1);
    cr_assert_eq(
        access(tmpdir_path(folder, "out/sub/old"), F_OK), 0, "old until the end");
    commit(w, NULL);
    cr_assert_eq(access(tmpdir_path(folder, "out/new"), F_OK), 0);
    cr_assert_neq(access(tmpdir_path(folder, "out/sub"), F_OK), 0);
    cr_assert_neq(access(tmpdir_path(folder, "out.partial"), F_OK), 0);
}

Test(work, replace_spares_a_folder_of_other_things)
{
    bool resumed;
    cr_assert_eq(mkdir(target, 0777), 0);
    tmpdir_write(tmpdir_path(folder, "out/thesis"), "x", 1);
    refused((struct work_options){.replace = true}, GLM_EUSAGE, "neither an index.h5");
    /* Names that others use, too. */
    tmpdir_write(tmpdir_path(folder, "out/config.json"), "{}", 2);
    tmpdir_write(tmpdir_path(folder, "out/index.h5"), "\211HDF\r\n\032\n", 8);
    refused((struct work_options){.replace = true}, GLM_EUSAGE, "neither an index.h5");
    cr_assert_eq(access(tmpdir_path(folder, "out/thesis"), F_OK), 0);
    cr_assert_neq(access(tmpdir_path(folder, "out.partial"), F_OK), 0);
    cr_assert_eq(unlink(tmpdir_path(folder, "out/thesis")), 0);
    cr_assert_eq(unlink(tmpdir_path(folder, "out/config.json")), 0);
    cr_assert_eq(unlink(tmpdir_path(folder, "out/index.h5")), 0);
    commit(opened(&resumed, (struct work_options){.replace = true}), NULL);
}

Test(work, a_model_folder_is_replaced)
{
    bool resumed;
    cr_assert_eq(mkdir(target, 0777), 0);
    tmpdir_write(tmpdir_path(folder, "out/config.json"), "{}", 2);
    tmpdir_write(tmpdir_path(folder, "out/model.safetensors"), "x", 1);
    commit(opened(&resumed, (struct work_options){.replace = true}), NULL);
}

Test(work, a_partial_of_other_things_is_spared)
{
    cr_assert_eq(mkdir(tmpdir_path(folder, "out.partial"), 0777), 0);
    tmpdir_write(partial("thesis"), "x", 1);
    refused((struct work_options){0}, GLM_EUSAGE, "no unfinished work");
    refused((struct work_options){.restart = true}, GLM_EUSAGE, "no unfinished work");
    cr_assert_eq(access(partial("thesis"), F_OK), 0);
    cr_assert_neq(access(partial("lease"), F_OK), 0, "a refused one leaves nothing");
}

Test(work, a_file_called_like_a_seal_is_spared)
{
    tmpdir_write(tmpdir_path(folder, "out.sealed"), "mine\n", 5);
    refused((struct work_options){0}, GLM_EUSAGE, "out.sealed");
    cr_assert_eq(access(tmpdir_path(folder, "out.sealed"), F_OK), 0);
    cr_assert_neq(access(tmpdir_path(folder, "out.partial"), F_OK), 0);
}

Test(work, a_name_that_cannot_be_renamed_to_is_refused_at_once)
{
    for (const char *const *n =
             (const char *const[]){".", "..", "/tmp/.", "/proc", "/tmp/..", NULL};
         *n != NULL; n++) {
        struct work_options o = {.target = *n, .replace = true};
        refused(o, GLM_EUSAGE, *n);
    }
}

Test(work, an_empty_name_is_refused)
{
    refused((struct work_options){.target = ""}, GLM_EUSAGE, "empty");
}

Test(work, a_target_that_appears_meanwhile_is_not_overwritten)
{
    struct glm_error err = {0};
    bool resumed;
    struct work *w = opened(&resumed, (struct work_options){0});
    cr_assert_eq(mkdir(target, 0777), 0);
    tmpdir_write(tmpdir_path(folder, "out/other"), "x", 1);
    cr_assert_eq(work_commit(w, NULL, &err), GLM_EUSAGE);
    cr_assert_not_null(strstr(err.text, "appeared"), "%s", err.text);
    cr_assert_eq(access(tmpdir_path(folder, "out/other"), F_OK), 0);
    work_close(w);
}

Test(work, slashes_at_the_end_of_a_name_mean_nothing)
{
    char name[600];
    bool resumed;
    snprintf(name, sizeof name, "%s//", target);
    struct work *w = opened(&resumed, (struct work_options){.target = name});
    commit(w, NULL);
    cr_assert_eq(access(target, F_OK), 0);
}

/* ---- a commit that was cut off ---------------------------------------------------------------- */

static int finish(struct work_options o, bool *finished)
{
    static const char *const extras[] = {"tiles.part", NULL};
    struct glm_error err = {0};
    o.target = target;
    o.seal = true;
    return work_finish(&o, extras, finished, &err);
}

/* The state that a kill between the journal's removal and the rename leaves. */
static void cut_off(void)
{
    bool resumed, finished;
    struct work *w = opened(&resumed, (struct work_options){.seal = true});
    tmpdir_write(partial("index.h5"), "whole", 5);
    tmpdir_write(partial("tiles.part"), "x", 1);
    work_close(w);
    cr_assert_eq(finish((struct work_options){.plan = plan_a}, &finished), GLM_OK);
    cr_assert_not(finished, "nothing was sealed");
    char hex[65] = "";
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", plan_a[i]);
    tmpdir_write(tmpdir_path(folder, "out.sealed"), hex, 64);
    unlink(partial("journal"));
}

Test(work, completes_a_commit_that_was_cut_off)
{
    bool finished;
    cut_off();
    cr_assert_eq(finish((struct work_options){.plan = plan_a}, &finished), GLM_OK);
    cr_assert(finished);
    size_t n;
    char *text = tmpdir_read(tmpdir_path(folder, "out/index.h5"), &n);
    cr_assert_str_eq(text, "whole");
    free(text);
    cr_assert_neq(access(tmpdir_path(folder, "out/tiles.part"), F_OK), 0);
    cr_assert_neq(access(tmpdir_path(folder, "out.sealed"), F_OK), 0);
    cr_assert_neq(access(tmpdir_path(folder, "out.partial"), F_OK), 0);
}

Test(work, completes_no_commit_of_another_plan)
{
    bool finished, resumed;
    cut_off();
    cr_assert_eq(finish((struct work_options){.plan = plan_b}, &finished), GLM_OK);
    cr_assert_not(finished);
    cr_assert_neq(access(tmpdir_path(folder, "out"), F_OK), 0);
    work_close(opened(&resumed, (struct work_options){.plan = plan_b}));
    cr_assert_not(resumed);
    cr_assert_neq(access(tmpdir_path(folder, "out.sealed"), F_OK), 0,
        "the mark of what is cleared stays");
}

Test(work, completes_nothing_that_is_to_be_discarded)
{
    bool finished;
    cut_off();
    cr_assert_eq(
        finish((struct work_options){.plan = plan_a, .restart = true}, &finished),
        GLM_OK);
    cr_assert_not(finished);
}

Test(work, a_commit_leaves_no_mark)
{
    bool resumed;
    struct glm_error err = {0};
    struct work *w = opened(&resumed, (struct work_options){.seal = true});
    cr_assert_eq(work_commit(w, NULL, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(access(target, F_OK), 0);
    cr_assert_neq(access(tmpdir_path(folder, "out.sealed"), F_OK), 0);
}
