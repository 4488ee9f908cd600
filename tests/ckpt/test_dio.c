/* Reads and writes past the page cache at every alignment, against plain reads of the whole file. */
#include "ckpt/dio.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"

enum { FILE_SIZE = 1000003, ROOM = 1 << 20, BOUNCE = 1 << 20 };

static char *folder;
static char path[512];
static unsigned char *content;

static void begin(void)
{
    folder = tmpdir_new();
    snprintf(path, sizeof path, "%s/file", folder);
    content = malloc(FILE_SIZE);
    for (size_t i = 0; i < FILE_SIZE; i++)
        content[i] = (unsigned char)rng_mix(i);
    tmpdir_write(path, content, FILE_SIZE);
}

static void end(void)
{
    free(content);
    tmpdir_remove(folder);
}

TestSuite(dio, .init = begin, .fini = end);

static const size_t places[] = {
    0, 1, 511, 512, 4095, 4096, 4097, 8192, 65536, 99999, 524288};
static const size_t sizes[] = {
    0, 1, 512, 4095, 4096, 65535, 65536, 65537, 131072, 400000};
enum { PLACES = sizeof places / sizeof *places, SIZES = sizeof sizes / sizeof *sizes };

static struct dio opened(void)
{
    struct glm_error err = {0};
    struct dio f;
    cr_assert_eq(dio_open_read(&f, path, &err), GLM_OK, "%s", err.text);
    cr_assert_eq(f.size, (uint64_t)FILE_SIZE);
    return f;
}

Test(dio, reads_any_range)
{
    struct dio f = opened();
    unsigned char *buf = dio_alloc(ROOM), *at;
    for (int i = 0; i < PLACES; i++)
        for (int k = 0; k < SIZES; k++) {
            struct glm_error err = {0};
            cr_assert_eq(dio_read(&f, places[i], sizes[k], buf, &at, &err), GLM_OK, "%s",
                err.text);
            cr_assert_arr_eq(at, content + places[i], sizes[k]);
            cr_assert(at >= buf && at + sizes[k] <= buf + ROOM);
        }
    dio_free(buf, ROOM);
    dio_close(&f);
}

Test(dio, reads_to_the_very_end_and_not_past_it)
{
    struct dio f = opened();
    unsigned char *buf = dio_alloc(ROOM), *at;
    for (int k = 1; k < SIZES; k++) {
        struct glm_error err = {0};
        cr_assert_eq(dio_read(&f, FILE_SIZE - sizes[k], sizes[k], buf, &at, &err), GLM_OK,
            "%s", err.text);
        cr_assert_arr_eq(at, content + FILE_SIZE - sizes[k], sizes[k]);
        cr_assert_eq(dio_read(&f, FILE_SIZE - sizes[k] + 1, sizes[k], buf, &at, &err),
            GLM_EFORMAT);
        cr_assert_not_null(strstr(err.text, "ends at byte 1000003"), "%s", err.text);
    }
    struct glm_error err = {0};
    cr_assert_eq(dio_read(&f, FILE_SIZE + 70000, 100000, buf, &at, &err), GLM_EFORMAT);
    err = (struct glm_error){0};
    cr_assert_eq(dio_pread(&f, FILE_SIZE - 1, 2, buf, &err), GLM_EFORMAT);
    dio_free(buf, ROOM);
    dio_close(&f);
}

static void write_everywhere(bool bounced)
{
    struct glm_error err = {0};
    struct dio f;
    unsigned char *data = calloc(1, ROOM), *bounce = dio_alloc(BOUNCE);
    uint64_t state = 3;
    cr_assert_eq(dio_open_write(&f, path, false, &err), GLM_OK, "%s", err.text);
    for (int i = 0; i < PLACES; i++)
        for (int k = 0; k < SIZES; k++)
            for (size_t skew = 0; skew < 3; skew++) {
                unsigned char *from = data + skew * 7;
                for (size_t b = 0; b < sizes[k]; b += 1 + b / 64)
                    from[b] = (unsigned char)rng_next(&state);
                cr_assert_eq(dio_write(&f, places[i], from, sizes[k],
                                 bounced ? bounce : NULL, bounced ? BOUNCE : 0, &err),
                    GLM_OK, "%s", err.text);
                memcpy(content + places[i], from, sizes[k]);
            }
    cr_assert_eq(dio_sync(&f, &err), GLM_OK);
    dio_close(&f);
    size_t size;
    unsigned char *now = tmpdir_read(path, &size);
    cr_assert_eq(size, (size_t)FILE_SIZE);
    cr_assert_arr_eq(now, content, FILE_SIZE);
    free(now);
    free(data);
    dio_free(bounce, BOUNCE);
}

Test(dio, writes_any_range_from_any_memory_and_touches_nothing_else)
{
    write_everywhere(true);
}
Test(dio, writes_without_a_bounce_buffer)
{
    write_everywhere(false);
}

Test(dio, a_range_larger_than_the_bounce_buffer_is_written_in_parts)
{
    enum { BIG = (3 << 20) + 12345 };
    struct glm_error err = {0};
    struct dio f;
    unsigned char *data = malloc(BIG + 1), *bounce = dio_alloc(BOUNCE);
    for (size_t i = 0; i < BIG + 1; i++)
        data[i] = (unsigned char)rng_mix(i);
    cr_assert_eq(dio_open_write(&f, path, false, &err), GLM_OK);
    cr_assert_eq(
        dio_write(&f, 4095, data + 1, BIG, bounce, BOUNCE, &err), GLM_OK, "%s", err.text);
    dio_close(&f);
    size_t size;
    unsigned char *now = tmpdir_read(path, &size);
    cr_assert_eq(size, (size_t)4095 + BIG);
    cr_assert_arr_eq(now + 4095, data + 1, BIG);
    cr_assert_arr_eq(now, content, 4095);
    free(now);
    free(data);
    dio_free(bounce, BOUNCE);
}

Test(dio, only_regular_files_are_opened)
{
    struct glm_error err = {0};
    struct dio f;
    cr_assert_eq(dio_open_read(&f, folder, &err), GLM_EFORMAT);
    cr_assert_not_null(strstr(err.text, "not a regular file"));
    dio_close(&f);
    err = (struct glm_error){0};
    cr_assert_eq(dio_open_read(&f, "/dev/null", &err), GLM_EFORMAT);
    err = (struct glm_error){0};
    /* Nobody writes into it: a blocking open would wait for ever. */
    cr_assert_eq(mkfifo(tmpdir_path(folder, "pipe"), 0666), 0);
    cr_assert_eq(dio_open_read(&f, tmpdir_path(folder, "pipe"), &err), GLM_EFORMAT);
    err = (struct glm_error){0};
    cr_assert_eq(dio_open_read(&f, tmpdir_path(folder, "absent"), &err), GLM_EIO);
    cr_assert_eq(err.sys_errno, ENOENT);
    dio_close(&f); /* harmless */
    dio_close(&(struct dio){0});
}

Test(dio, slurp_gives_the_file_with_a_zero_behind_it_up_to_a_limit)
{
    struct glm_error err = {0};
    void *data;
    size_t size;
    cr_assert_eq(dio_slurp(path, FILE_SIZE, &data, &size, &err), GLM_OK);
    cr_assert_eq(size, (size_t)FILE_SIZE);
    cr_assert_arr_eq(data, content, FILE_SIZE);
    cr_assert_eq(((char *)data)[FILE_SIZE], '\0');
    free(data);
    cr_assert_eq(dio_slurp(path, FILE_SIZE - 1, &data, &size, &err), GLM_EFORMAT);
    cr_assert_null(data);
    cr_assert_not_null(strstr(err.text, "1000002"), "%s", err.text);
}

Test(dio, a_failed_write_names_file_offset_and_size)
{
    struct glm_error err = {0};
    struct dio f;
    cr_assert_eq(dio_open_read(&f, path, &err), GLM_OK); /* not open for writing */
    cr_assert_eq(dio_write(&f, 17, content, 100, NULL, 0, &err), GLM_EIO);
    cr_assert_not_null(
        strstr(err.text, "file: write of 100 bytes at offset 17"), "%s", err.text);
    dio_close(&f);
}

Test(dio, the_limit_of_open_files_is_raised_to_what_is_allowed)
{
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = 64;
    setrlimit(RLIMIT_NOFILE, &l);
    dio_raise_limit();
    getrlimit(RLIMIT_NOFILE, &l);
    cr_assert_eq(l.rlim_cur, l.rlim_max);
}

Test(dio, more_files_than_the_hard_limit_allows_are_refused_before_they_are_opened)
{
    const struct rlimit l = {100, 100};
    struct glm_error err = {0};

    if (setrlimit(RLIMIT_NOFILE, &l) != 0) { /* valgrind has some for itself */
        printf("SKIP dio: a hard limit of 100 files cannot be set here\n");
        return;
    }
    cr_expect_eq(dio_need_descriptors(68, &err), GLM_OK, "%s", err.text);
    cr_expect_eq(dio_need_descriptors(69, &err), GLM_EIO);
    cr_expect(
        strstr(err.text, "101 files") && strstr(err.text, "is 100"), "%s", err.text);
}
