#include "cli/progress.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

struct scene {
    struct progress *p;
    struct glm_events e;
    FILE *f;
    char *text;
    size_t size;
    uint64_t ns;
};

static uint64_t scene_now(void *ctx)
{
    return ((struct scene *)ctx)->ns;
}

static void scene_begin(struct scene *s, int mode, bool quiet)
{
    *s = (struct scene){.ns = 5000000000u};
    s->f = open_memstream(&s->text, &s->size);
    struct progress_options o = {.name = "glm-x",
        .out = s->f,
        .quiet = quiet,
        .now_ns = scene_now,
        .clock_ctx = s};
    o.mode = mode;
    s->p = progress_new(&o);
    s->e = progress_events(s->p, NULL);
}

static void scene_at(
    struct scene *s, double seconds, const char *what, uint64_t done, uint64_t total)
{
    s->ns = 5000000000u + (uint64_t)(seconds * 1e9);
    glm_events_progress(&s->e, what, done, total);
}

static void scene_end(struct scene *s, bool succeeded, const char *expected)
{
    progress_end(s->p, succeeded);
    progress_free(s->p);
    fclose(s->f);
    cr_expect_str_eq(s->text, expected);
    free(s->text);
}

Test(progress, on_a_terminal_redraws_one_line_with_rate_and_time_left)
{
    struct scene s;
    scene_begin(&s, PROGRESS_TERMINAL, false);
    scene_at(&s, 0, "import", 0, 8000000000u);
    scene_at(&s, 0.1, "import", 100000000u, 8000000000u); /* too soon to draw again */
    scene_at(&s, 1, "import", 1000000000u, 8000000000u);
    scene_at(&s, 2, "import", 3000000000u, 8000000000u);
    scene_at(&s, 4, "import", 8000000000u, 8000000000u);
    scene_end(&s, true,
        "\rimport: 1.00 GB of 8.00 GB, 12 %, 1.00 GB/s, 7.0 s left\033[K"
        "\rimport: 3.00 GB of 8.00 GB, 37 %, 1.50 GB/s, 3.3 s left\033[K"
        "\rimport: 8.00 GB of 8.00 GB, 100 %, 2.00 GB/s\033[K"
        "\r\033[Kimport: 8.00 GB in 4.0 s, 2.00 GB/s\n");
}

Test(progress, in_a_log_writes_whole_lines_every_ten_seconds)
{
    struct scene s;
    scene_begin(&s, PROGRESS_LOG, false);
    for (int i = 0; i <= 25; i++)
        scene_at(&s, i, "import", (uint64_t)i * 100000000u, 0);
    scene_end(&s, true,
        "glm-x: import: 1.00 GB, 100 MB/s\n"
        "glm-x: import: 2.00 GB, 100 MB/s\n"
        "import: 2.50 GB in 25 s, 100 MB/s\n");
}

Test(progress, a_stall_shows_soon_and_the_rate_forgets_old_speed)
{
    struct scene s;
    scene_begin(&s, PROGRESS_LOG, false);
    scene_at(&s, 0, "import", 0, 4000000000u);
    scene_at(&s, 2, "import", 2000000000u, 4000000000u);
    for (int i = 1; i <= 32; i++) /* eight seconds of nothing */
        scene_at(&s, 2 + 0.25 * i, "import", 2000000000u, 4000000000u);
    for (int i = 1; i <= 20; i++)
        scene_at(&s, 10 + 0.5 * i, "import", 2000000000u + (uint64_t)i * 1000000u,
            4000000000u);
    scene_end(&s, false,
        "glm-x: import: 2.00 GB of 4.00 GB, 50 %, stalled\n"
        "glm-x: import: 2.02 GB of 4.00 GB, 50 %, 2.00 MB/s, 16 min 30 s left\n");
}

Test(progress, a_new_phase_closes_the_last_one_and_counts_its_first_piece)
{
    struct scene s;
    scene_begin(&s, PROGRESS_LOG, false);
    scene_at(&s, 1, "check", 500, 1000); /* first heard of after a piece: it began at 0 */
    scene_at(&s, 2, "check", 1000, 1000);
    scene_at(&s, 3, "import", 500000, 1000000);
    scene_at(&s, 4, "import", 1000000, 1000000);
    scene_end(&s, true,
        "check: 1.00 kB in 2.0 s, 500 B/s\nimport: 1.00 MB in 2.0 s, 500 kB/s\n");
}

Test(progress, a_note_stands_on_its_own_line_and_failure_leaves_no_summary)
{
    struct scene s;
    scene_begin(&s, PROGRESS_TERMINAL, false);
    scene_at(&s, 0, "import", 0, 10);
    scene_at(&s, 1, "import", 5, 10);
    glm_events_note(&s.e, "continues at 50 %");
    scene_at(&s, 2, "import", 10, 10);
    scene_end(&s, false,
        "\rimport: 5 B of 10 B, 50 %, 5 B/s, 1.0 s left\033[K"
        "\r\033[Kglm-x: continues at 50 %\n"
        "\rimport: 10 B of 10 B, 100 %, 5 B/s\033[K\r\033[K");
}

Test(progress, quiet_draws_nothing)
{
    struct scene s;
    scene_begin(&s, PROGRESS_TERMINAL, true);
    scene_at(&s, 0, "import", 0, 10);
    scene_at(&s, 9, "import", 10, 10);
    glm_events_note(&s.e, "a note");
    scene_end(&s, true, "");
}

Test(progress, bytes_and_times_are_written_for_people)
{
    static const struct {
        uint64_t v;
        const char *text;
    } bytes[] = {{0, "0 B"}, {999, "999 B"}, {1000, "1.00 kB"}, {9994, "9.99 kB"},
        {99949, "99.9 kB"}, {999499, "999 kB"}, {999600, "1.00 MB"},
        {1506659881000u, "1.51 TB"}, {UINT64_MAX, "18.4 EB"}};
    char buf[32];
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        cr_expect_str_eq(progress_bytes(bytes[i].v, buf, sizeof buf), bytes[i].text);
    static const struct {
        double v;
        const char *text;
    } times[] = {{0, "0.0 s"}, {9.94, "9.9 s"}, {9.96, "10 s"}, {59.4, "59 s"},
        {59.6, "1 min 00 s"}, {185, "3 min 05 s"}, {7620, "2 h 07 min"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        cr_expect_str_eq(progress_time(times[i].v, buf, sizeof buf), times[i].text);
}
