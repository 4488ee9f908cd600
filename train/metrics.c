#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/number.h"

#define AT(f) offsetof(struct metrics_row, f)

const struct metric metrics_numbers[] = {
    {"loss", "loss/total", AT(loss)},
    {"lm_loss", "loss/lm", AT(lm_loss)},
    {"mtp_loss", "loss/mtp", AT(mtp_loss)},
    {"indexer_loss", "loss/indexer", AT(indexer_loss)},
    {"grad_norm", "optimizer/grad_norm", AT(grad_norm)},
    {"clip", "optimizer/clip", AT(clip)},
    {"lr", "optimizer/lr", AT(lr)},
    {"weight_decay", "optimizer/weight_decay", AT(weight_decay)},
    {"step_seconds", "speed/step_seconds", AT(step_seconds)},
    {"tokens_per_second", "speed/tokens_per_second", AT(tokens_per_second)},
    {"tflops", "speed/tflops", AT(tflops)},
    {"mfu", "speed/mfu", AT(mfu)},
    {"memory_bytes", "memory/bytes", AT(memory_bytes)},
    {"eval_loss", "eval/loss", AT(eval_loss)},
    {"eval_perplexity", "eval/perplexity", AT(eval_perplexity)},
    {"expert_load", "experts/load", AT(expert_load)},
    {"wall_time", NULL, AT(wall_time)},
    {NULL, NULL, 0},
};

static const struct {
    const char *name;
    size_t at;
} counts[] = {{"step", AT(step)}, {"samples", AT(samples)}, {"tokens", AT(tokens)}};

enum { COUNTS = sizeof counts / sizeof counts[0] };

static int64_t *count_of(struct metrics_row *r, int i)
{
    void *const at = (char *)r + counts[i].at;
    return at;
}

static double *number_of(struct metrics_row *r, const struct metric *m)
{
    void *const at = (char *)r + m->at;
    return at;
}

struct metrics_row metrics_row_empty(void)
{
    struct metrics_row r = {0};
    for (const struct metric *m = metrics_numbers; m->name; m++)
        *number_of(&r, m) = (double)NAN;
    return r;
}

size_t metrics_print(const struct metrics_row *row, char buf[METRICS_LINE])
{
    struct metrics_row r = *row;
    char number[32];
    size_t n = 0;
    for (int i = 0; i < COUNTS; i++)
        n += (size_t)snprintf(buf + n, METRICS_LINE - n, "%s\"%s\":%" PRId64,
            i ? "," : "{", counts[i].name, *count_of(&r, i));
    for (const struct metric *m = metrics_numbers; m->name; m++) {
        const double x = metrics_get(row, m);
        n += (size_t)snprintf(buf + n, METRICS_LINE - n, ",\"%s\":%s", m->name,
            isfinite(x) ? number_print(x, number, sizeof number) : "null");
    }
    return n + (size_t)snprintf(buf + n, METRICS_LINE - n, "}\n");
}

/* ---- reading ------------------------------------------------------------------------------------ */

static int parse_line(struct metrics_row *r, const char *path, int64_t line,
    const char *text, size_t size, struct glm_error *err)
{
    json_error_t why;
    json_t *const o =
        json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    *r = metrics_row_empty();
    if (!json_is_object(o)) {
        json_decref(o);
        return glm_fail(err, GLM_EFORMAT, "%s:%" PRId64 ": expected a JSON object: %s",
            path, line, why.text);
    }
    for (int i = 0; i < COUNTS && err->code == GLM_OK; i++) {
        const json_t *const v = json_object_get(o, counts[i].name);
        const double x = json_is_number(v) ? json_number_value(v) : -1;
        if (!(x >= 0 && x <= 9007199254740992.0))
            glm_fail(err, GLM_EFORMAT, "%s:%" PRId64 ": key '%s': expected a count", path,
                line, counts[i].name);
        else
            *count_of(r, i) = (int64_t)x;
    }
    for (const struct metric *m = metrics_numbers; m->name && err->code == GLM_OK; m++) {
        const json_t *const v = json_object_get(o, m->name);
        if (json_is_number(v))
            *number_of(r, m) = json_number_value(v);
        else if (v && !json_is_null(v))
            glm_fail(err, GLM_EFORMAT, "%s:%" PRId64 ": key '%s': expected a number",
                path, line, m->name);
    }
    json_decref(o);
    return err->code;
}

struct lines {
    const char *path;
    FILE *file;
    char *text;
    size_t room;
    int64_t number;
};

/* 1: a whole line; 0: the end, or a line that was cut; -1: failed. */
static int next_line(struct lines *l, ssize_t *size, struct glm_error *err)
{
    errno = 0;
    *size = getline(&l->text, &l->room, l->file);
    l->number++;
    if (*size < 0) {
        if (!ferror(l->file))
            return 0;
        glm_fail_errno(err, "%s: read", l->path);
        return -1;
    }
    return l->text[*size - 1] == '\n';
}

/* RUN or the file itself; free it. */
static char *file_of(const char *path, struct glm_error *err)
{
    struct stat st;
    char *name = NULL;
    const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (asprintf(&name, folder ? "%s/metrics.jsonl" : "%s", path) < 0) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
        return NULL;
    }
    return name;
}

int metrics_read(
    const char *path, struct metrics_row **rows, int64_t *count, struct glm_error *err)
{
    struct lines l = {.path = file_of(path, err)};
    struct metrics_row *list = NULL;
    int64_t n = 0, room = 0;
    ssize_t size;
    *rows = NULL;
    *count = 0;
    if (!l.path)
        return err->code;
    if (!(l.file = fopen(l.path, "rb"))) {
        glm_fail_errno(err, "%s: open", l.path);
        goto out;
    }
    while (next_line(&l, &size, err) == 1) {
        if (n == room) {
            room = room ? 2 * room : 256;
            struct metrics_row *const more = realloc(list, (size_t)room * sizeof *list);
            if (!more) {
                glm_fail(
                    err, GLM_ENOMEM, "%s: no memory for %" PRId64 " lines", l.path, room);
                goto out;
            }
            list = more;
        }
        if (parse_line(&list[n], l.path, l.number, l.text, (size_t)size, err) != 0)
            goto out;
        if (n > 0 && list[n].step <= list[n - 1].step) {
            glm_fail(err, GLM_EFORMAT,
                "%s:%" PRId64 ": step %" PRId64 " follows step %" PRId64, l.path,
                l.number, list[n].step, list[n - 1].step);
            goto out;
        }
        n++;
    }
out:
    if (err->code == GLM_OK) {
        *rows = list;
        *count = n;
        list = NULL;
    }
    free(list);
    free(l.text);
    if (l.file)
        fclose(l.file);
    free((char *)(uintptr_t)l.path);
    return err->code;
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* Where the lines up to resume_step end. */
static int kept_bytes(
    const char *path, int64_t resume_step, int64_t *out, struct glm_error *err)
{
    struct lines l = {.path = path, .file = fopen(path, "rb")};
    struct metrics_row row;
    ssize_t size;
    *out = 0;
    if (!l.file)
        return errno == ENOENT ? 0 : glm_fail_errno(err, "%s: open", path);
    while (next_line(&l, &size, err) == 1) {
        if (parse_line(&row, path, l.number, l.text, (size_t)size, err) != 0
            || row.step > resume_step)
            break;
        *out += size;
    }
    free(l.text);
    fclose(l.file);
    return err->code;
}

int metrics_open(struct metrics *m, const char *run_dir, int64_t resume_step,
    double wall_time, struct glm_error *err)
{
    int64_t keep = 0;
    *m = (struct metrics){.fd = -1, .events.fd = -1};
    if (asprintf(&m->path, "%s/metrics.jsonl", run_dir) < 0) {
        m->path = NULL;
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", run_dir);
    }
    if (resume_step > 0 && kept_bytes(m->path, resume_step, &keep, err) != 0)
        goto out;
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0 || ftruncate(m->fd, keep) != 0) {
        glm_fail_errno(err, "%s: open", m->path);
        goto out;
    }
    m->end = keep;
    tfevents_open(&m->events, run_dir, wall_time, true, resume_step + 1, err);
out:
    if (err->code != GLM_OK) {
        struct glm_error ignored = {0};
        metrics_close(m, &ignored);
    }
    return err->code;
}

int metrics_close(struct metrics *m, struct glm_error *err)
{
    if (!m->path)
        return err->code;
    if (m->fd >= 0 && close(m->fd) != 0)
        glm_fail_errno(err, "%s: close", m->path);
    tfevents_close(&m->events, err);
    free(m->path);
    *m = (struct metrics){.fd = -1, .events.fd = -1};
    return err->code;
}

static int write_events(
    struct metrics *m, const struct metrics_row *row, struct glm_error *err)
{
    struct tfevents_scalar s[TFEVENTS_SCALARS];
    int n = 0;
    for (const struct metric *k = metrics_numbers; k->name; k++) {
        const double x = metrics_get(row, k);
        if (k->tag && isfinite(x))
            s[n++] = (struct tfevents_scalar){k->tag, (float)x};
    }
    return tfevents_scalars(
        &m->events, isfinite(row->wall_time) ? row->wall_time : 0, row->step, s, n, err);
}

int metrics_write(struct metrics *m, const struct metrics_row *row, struct glm_error *err)
{
    char line[METRICS_LINE];
    const size_t size = metrics_print(row, line);
    for (size_t done = 0; done < size;) {
        const ssize_t n = write(m->fd, line + done, size - done);
        if (n < 0 && errno != EINTR) {
            glm_fail_errno(err, "%s: write", m->path);
            (void)!ftruncate(m->fd, m->end);
            return err->code;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    m->end += (int64_t)size;
    return write_events(m, row, err);
}
