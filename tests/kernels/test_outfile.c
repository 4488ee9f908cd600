/* Where a file of the user's choice lies, and how it is opened. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/outfile.h"
#include "tests/support/tmpdir.h"

Test(outfile, is_inside_by_where_it_leads_and_not_by_how_it_is_written)
{
    char *const dir = tmpdir_new();
    char real[PATH_MAX];
    cr_assert_eq(chdir(dir), 0);
    cr_assert_eq(mkdir("a", 0777) | mkdir("a/b", 0777), 0);
    tmpdir_write(tmpdir_path(dir, "a/file"), "x", 1);
    cr_assert_eq(symlink("a/file", "link") | symlink("a", "folder"), 0);
    static const struct {
        const char *path, *folder;
        bool inside;
    } cases[] = {{"a/file", "a", true}, {"a/new", "a", true}, {"a/b/new", "a/", true},
        {"link", "a", true}, {"folder/new", "a", true}, {"a/file", "folder", true},
        {"a", "a", true}, {"./a/../a/b", "./a", true}, {"new", "new", true},
        {"new", "new//", true}, {"a.tsv", "a", false}, {"a2/file", "a", false},
        {"new.tsv", "new", false}, {"new/file", "new", false}, {"file", "a", false},
        {"a/../file", "a", false}, {"/dev/null", "a", false}, {"/new", "/", true},
        {"", "a", false}, {"a/file", "", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(outfile_inside(cases[i].path, cases[i].folder, real),
            cases[i].inside, "'%s' in '%s'", cases[i].path, cases[i].folder);
    tmpdir_remove(dir);
}

Test(outfile, keeps_what_is_there_until_it_is_begun, .timeout = 20)
{
    char *const dir = tmpdir_new();
    const char *const path = tmpdir_path(dir, "file");
    struct glm_error err = {0};
    struct outfile o;
    struct stat st;
    tmpdir_write(path, "before", 6);
    cr_assert_eq(outfile_open(&o, path, &err), GLM_OK, "%s", err.text);
    cr_assert(o.regular);
    cr_assert(stat(path, &st) == 0 && st.st_size == 6);
    cr_assert_eq(outfile_begin(&o, path, &err), GLM_OK, "%s", err.text);
    fputs("new", o.out);
    cr_assert_eq(outfile_close(&o, path, &err), GLM_OK, "%s", err.text);
    cr_assert(stat(path, &st) == 0 && st.st_size == 3);
    cr_assert_eq(outfile_close(&o, path, &err), GLM_OK);

    cr_assert_eq(outfile_open(&o, "/dev/full", &err), GLM_OK, "%s", err.text);
    cr_assert(!o.regular && outfile_begin(&o, "/dev/full", &err) == GLM_OK);
    fputs("new", o.out);
    cr_assert_eq(outfile_close(&o, "/dev/full", &err), GLM_EIO);
    err = (struct glm_error){0};

    const char *const pipe = tmpdir_path(dir, "pipe");
    cr_assert_eq(mkfifo(pipe, 0666), 0);
    cr_assert_eq(outfile_open(&o, pipe, &err), GLM_EUSAGE);
    err = (struct glm_error){0};
    const int reader = open(pipe, O_RDONLY | O_NONBLOCK);
    cr_assert_eq(outfile_open(&o, pipe, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(fcntl(fileno(o.out), F_GETFL) & O_NONBLOCK, 0, "a write waits");
    cr_assert_eq(outfile_close(&o, pipe, &err), GLM_OK);
    close(reader);
    tmpdir_remove(dir);
}
