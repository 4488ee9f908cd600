#include "verify/resume.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "convert/convert.h"

struct job { /* of one process */
    const struct resume_options *o;
    const char *run;   /* its run folder */
    const char *trace; /* NULL: none */
    int64_t stop_at, from;
    bool resume, save;
};

/* ---- in the child ----------------------------------------------------------------------------- */

struct recording {
    struct trace_writer trace;
    const struct glm_events *events;
};

static int record(void *ctx, const struct state *state, const struct train_step *s,
    struct glm_error *err)
{
    struct recording *const r = ctx;
    char text[64];

    snprintf(text, sizeof text, s == NULL ? "at step %lld" : "step %lld is done",
        (long long)state->step);
    glm_events_note(r->events, text);
    return trace_add(&r->trace, state, s, err);
}

static int work(const struct job *j, struct glm_error *err)
{
    struct recording recording = {.events = j->o->events};
    struct trace_writer *const trace = &recording.trace;
    struct train_report report;
    struct recipe *r = NULL;
    const struct train_watch watch = {
        .ctx = &recording, .state = j->trace != NULL ? record : NULL};
    const struct train_options o = {.run_dir = j->run,
        .resume = j->resume,
        .threads = j->o->threads,
        .stop_at = j->stop_at,
        .no_save = !j->save,
        .no_metrics = true};
    /* The parent's handlers are here, too, so a signal to all reaches the loop. */
    const struct glm_events events = {
        .stop = j->o->events != NULL ? j->o->events->stop : NULL};

    if (recipe_read(&r, j->o->recipe, &j->o->keys, err) != GLM_OK
        || (j->trace != NULL && trace_create(trace, j->trace, j->from, err) != GLM_OK))
        goto out;
    r->run.interval = 0; /* the one save is at the end */
    if (train_run(r, &o, &watch, &events, &report, err) == GLM_OK
        && report.stopped != 0) {
        glm_fail(err, GLM_ESTOPPED, "stopped");
        err->sys_errno = report.stopped;
    }
out:
    trace_finish(trace, err);
    recipe_free(r);
    return (int)err->code;
}

/* ---- in the parent ---------------------------------------------------------------------------- */

static bool read_all(int fd, void *to, size_t size)
{
    char *at = to;

    while (size > 0) {
        const ssize_t n = read(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static void wait_for(pid_t child, const struct glm_events *events)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    bool told = false;

    while (waitpid(child, NULL, WNOHANG) == 0) {
        const int stop = glm_events_stop(events);
        if (stop != 0 && !told)
            kill(child, stop);
        told = stop != 0;
        nanosleep(&pause, NULL);
    }
}

static int in_process(const struct job *j, struct glm_error *err)
{
    struct glm_error answer = {0};
    int end[2];

    if (pipe(end) != 0)
        return glm_fail_errno(err, "a pipe to a child process");
    const pid_t child = fork();
    if (child < 0) {
        close(end[0]);
        close(end[1]);
        return glm_fail_errno(err, "start a child process");
    }
    if (child == 0) {
        close(end[0]);
        work(j, &answer);
        const ssize_t n = write(end[1], &answer, sizeof answer);
        _exit(n == (ssize_t)sizeof answer ? 0 : 1);
    }
    close(end[1]);
    wait_for(child, j->o->events);
    if (!read_all(end[0], &answer, sizeof answer))
        glm_fail(err, GLM_EDEVICE, "a training process died without a word");
    else
        *err = answer;
    close(end[0]);
    return (int)err->code;
}

static int remove_tree(const char *path)
{
    DIR *d = opendir(path);
    int rc = 0;

    if (d == NULL)
        return unlink(path);
    for (struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;) {
        char *name = NULL;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (asprintf(&name, "%s/%s", path, e->d_name) < 0) {
            rc = -1;
            break;
        }
        rc = e->d_type == DT_DIR ? remove_tree(name) : unlink(name);
        free(name);
    }
    closedir(d);
    return rc == 0 ? rmdir(path) : rc;
}

static int choose_steps(struct resume_report *report, const struct resume_options *o,
    int64_t steps, struct glm_error *err)
{
    const int64_t half = steps / 2 < 5 ? steps / 2 : 5;

    report->n = o->n > 0 ? o->n : half;
    report->m = o->m > 0 ? o->m : half;
    if (report->n < 1 || report->m < 1 || report->n > steps
        || report->m > steps - report->n)
        return glm_fail(err, GLM_EUSAGE,
            "%s: %lld and %lld steps do not fit into the recipe's %lld", o->recipe,
            (long long)report->n, (long long)report->m, (long long)steps);
    return GLM_OK;
}

/* The folder to work in, malloc'd. */
static char *make_folder(
    const struct resume_options *o, const char *run, struct glm_error *err)
{
    char *path = NULL;

    if (o->dir != NULL ? (path = strdup(o->dir)) == NULL
                       : asprintf(&path, "%s.verify-XXXXXX", run) < 0) {
        glm_fail(err, GLM_ENOMEM, "no memory for a name");
        return NULL;
    }
    if (o->dir != NULL ? mkdir(path, 0777) != 0 : mkdtemp(path) == NULL) {
        glm_fail_errno(err, "%s: create the folder", path);
        free(path);
        return NULL;
    }
    return path;
}

static void say(char *out, size_t size, const struct trace_difference *d)
{
    const char *const when = d->loaded ? "as loaded" : "after the step";
    int n;

    if (d->what[0] != '\0') {
        n = snprintf(out, size,
            "step %lld: the %s is %.17g in one process, %.17g after a restart",
            (long long)d->step, d->what, d->a, d->b);
    } else {
        n = snprintf(out, size,
            "step %lld, %s: %s/%s differs first in tile %lld, from element "
            "[%lld,%lld,%lld] on",
            (long long)d->step, when, d->section, d->tensor, (long long)d->tile,
            (long long)d->at.lo[0], (long long)d->at.lo[1], (long long)d->at.lo[2]);
    }
    if (d->tensors > 0 && n > 0 && (size_t)n < size)
        snprintf(
            out + n, size - (size_t)n, "; %lld tensors differ", (long long)d->tensors);
}

struct paths {
    char *one, *two, *trace_one, *trace_two, *ckpt;
};

static int make_paths(
    struct paths *p, const char *folder, int64_t n, struct glm_error *err)
{
    char **const all[] = {&p->one, &p->two, &p->trace_one, &p->trace_two, &p->ckpt};
    char step[32];
    snprintf(step, sizeof step, "two/step-%09lld", (long long)n);
    const char *const names[] = {"one", "two", "one.trace", "two.trace", step};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (asprintf(all[i], "%s/%s", folder, names[i]) < 0) {
            *all[i] = NULL; /* where asprintf fails it leaves anything */
            return glm_fail(err, GLM_ENOMEM, "no memory for names");
        }
    return GLM_OK;
}

/* A second process that the checkpoint itself stops is a difference, too. */
static int go_on(const struct job *j, struct glm_error *err)
{
    if (in_process(j, err) == GLM_EFORMAT || err->code == GLM_EUSAGE) {
        err->code = GLM_EMISMATCH;
        glm_within(err, "the second process does not go on");
    }
    return (int)err->code;
}

/* The checkpoint written again at another topology, under its name. */
static int change_topology(
    const struct resume_options *o, const char *ckpt, struct glm_error *err)
{
    struct convert_report report;
    char *out = NULL;

    if (asprintf(&out, "%s.then", ckpt) < 0)
        return glm_fail(err, GLM_ENOMEM, "no memory for names");
    const struct reshard_options reshard = {
        .ckpt = ckpt, .out = out, .topology = *o->then, .threads = o->threads};
    if (convert_reshard(&reshard, &report, NULL, err) == GLM_OK
        && (remove_tree(ckpt) != 0 || rename(out, ckpt) != 0))
        glm_fail_errno(err, "%s: put in the place of %s", out, ckpt);
    free(out);
    return (int)err->code;
}

static int prove(struct resume_report *report, const struct resume_options *o,
    const struct paths *p, struct glm_error *err)
{
    const int64_t n = report->n, end = report->n + report->m;
    const struct job one = {
        .o = o, .run = p->one, .trace = p->trace_one, .stop_at = end, .from = n};
    const struct job two = {.o = o, .run = p->two, .stop_at = n, .save = true};
    const struct job three = {.o = o,
        .run = p->two,
        .trace = p->trace_two,
        .stop_at = end,
        .from = n,
        .resume = true};
    char sentence[800];

    glm_events_note(o->events, "one process, all steps");
    if (in_process(&one, err) != GLM_OK)
        return (int)err->code;
    glm_events_note(o->events, "a process up to the save");
    if (in_process(&two, err) != GLM_OK)
        return (int)err->code;
    if (o->then != NULL && change_topology(o, p->ckpt, err) != GLM_OK)
        return (int)err->code;
    if (o->between != NULL && o->between(o->between_ctx, p->ckpt, err) != GLM_OK)
        return (int)err->code;
    glm_events_note(o->events, "a new process from the checkpoint on");
    if (go_on(&three, err) != GLM_OK
        || trace_compare(
               p->trace_one, p->trace_two, &report->difference, &report->counts, err)
            != GLM_OK)
        return (int)err->code;
    if (report->difference.found) {
        say(sentence, sizeof sentence, &report->difference);
        glm_fail(err, GLM_EMISMATCH, "%s", sentence);
    } else if (report->counts.records != report->m + 1) {
        glm_fail(err, GLM_EMISMATCH, "%lld states could be compared, expected %lld",
            (long long)report->counts.records, (long long)report->m + 1);
    }
    return (int)err->code;
}

int resume_run(
    struct resume_report *report, const struct resume_options *o, struct glm_error *err)
{
    struct recipe *r = NULL;
    struct paths p = {0};
    char *folder = NULL;
    struct timespec a, b;

    clock_gettime(CLOCK_MONOTONIC, &a);
    *report = (struct resume_report){0};
    if (recipe_read(&r, o->recipe, &o->keys, err) != GLM_OK
        || recipe_check_built(r, err) != GLM_OK
        || choose_steps(report, o, r->batch.steps, err) != GLM_OK
        || (folder = make_folder(o, r->run.save, err)) == NULL
        || make_paths(&p, folder, report->n, err) != GLM_OK)
        goto out;
    prove(report, o, &p, err);
out:
    if (folder != NULL && o->dir == NULL)
        remove_tree(folder);
    free(folder);
    free(p.one);
    free(p.two);
    free(p.trace_one);
    free(p.trace_two);
    free(p.ckpt);
    recipe_free(r);
    clock_gettime(CLOCK_MONOTONIC, &b);
    report->seconds =
        (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
    return (int)err->code;
}
