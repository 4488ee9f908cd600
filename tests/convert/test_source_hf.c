/* A Hugging Face directory as a source: what happens when it does not hold still. */
#include "convert/convert.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/tmpdir.h"
#include "tests/support/toy.h"

struct meddler {
    const char *file;
    atomic_bool done;
};

/* Writes one byte again as it is: the time of change alone must tell. */
static void meddle(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct meddler *const m = ctx;
    char byte;
    (void)what, (void)done, (void)total;
    if (atomic_exchange(&m->done, true))
        return;
    const int fd = open(m->file, O_RDWR);
    cr_assert_eq(pread(fd, &byte, 1, 0), 1);
    cr_assert_eq(pwrite(fd, &byte, 1, 0), 1);
    close(fd);
}

Test(source_hf, a_file_that_changes_while_it_is_read_is_never_imported)
{
    char *const dir = tmpdir_new(), *const src = strdup(tmpdir_path(dir, "src"));
    char *const out = strdup(tmpdir_path(dir, "out"));
    char *const file = strdup(tmpdir_path(dir, "src/model-00002-of-00002.safetensors"));
    const struct toy_options toy = {.config = "fixtures/configs/t1.json", .files = 2};
    struct import_options o = {.src = src, .out = out, .dtype = "same", .threads = 2};
    struct meddler m = {.file = file};
    const struct glm_events events = {.progress = meddle, .ctx = &m};
    struct convert_report report;
    struct glm_error err = {0};
    cr_assert_eq(toy_write(src, &toy), 0, "%s", toy_error());
    /* File systems count time in ticks: the change must not fall into the tick of the writing. */
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    cr_assert_eq(utimensat(AT_FDCWD, file, long_ago, 0), 0);
    cr_assert_eq(convert_import(&o, &report, &events, &err), GLM_EFORMAT, "%s", err.text);
    cr_assert_not_null(strstr(err.text, "model-00002-of-00002.safetensors: has changed"),
        "%s", err.text);
    cr_assert_neq(access(out, F_OK), 0);
    /* What the sentence advises works. */
    err = (struct glm_error){0};
    cr_assert_eq(convert_import(&o, &report, &events, &err), GLM_EUSAGE);
    o.restart = true;
    err = (struct glm_error){0};
    cr_assert_eq(convert_import(&o, &report, &events, &err), GLM_OK, "%s", err.text);
    tmpdir_remove(dir);
    free(src);
    free(out);
    free(file);
}
