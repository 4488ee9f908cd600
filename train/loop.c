/* The loop around the steps: when to evaluate, save and stop. */
#include "train/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "train/clock.h"
#include "train/evaluate.h"
#include "train/metrics.h"
#include "train/saver.h"
#include "train/step.h"
#include "train/trainer.h"

struct loop {
    const struct recipe *recipe;
    const struct train_options *o;
    struct train_watch watch;
    const struct glm_events *events;
    struct train_report *report;
    struct trainer t;
    struct rundir dir;  /* of the checkpoints */
    struct rundir home; /* of the metrics, where that is another folder */
    struct metrics metrics;
    double start; /* of the process's steps */
    struct saver saver;
    int64_t last; /* the step to end after */
};

static void note(const struct loop *l, const char *fmt, ...) GLM_PRINTF(2, 3);

static void note(const struct loop *l, const char *fmt, ...)
{
    char sentence[1400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, ap);
    va_end(ap);
    glm_events_note(l->events, sentence);
}

/* ---- saving ----------------------------------------------------------------------------------- */

/* A disk that is full stops no training: the last good checkpoint is there, the next save may fit. */
static int bear(struct loop *l, const struct glm_error *trouble, struct glm_error *err)
{
    if (trouble->code == GLM_OK)
        return GLM_OK;
    if (trouble->code != GLM_EIO) {
        *err = *trouble;
        return (int)err->code;
    }
    if (l->dir.steps > 0)
        note(l,
            "not saved: %s; training goes on, the last good checkpoint is that of step "
            "%lld",
            trouble->text, (long long)rundir_latest(&l->dir));
    else
        note(l, "not saved: %s; training goes on, there is no checkpoint yet",
            trouble->text);
    return GLM_OK;
}

/* The save that is on its way, if it has ended or, with `wait`, when it has. */
static int settle(struct loop *l, bool wait, struct glm_error *err)
{
    struct glm_error trouble = {0};

    if (wait || saver_done(&l->saver))
        saver_wait(&l->saver, &trouble);
    return bear(l, &trouble, err);
}

static int save_on_the_way(struct loop *l, struct glm_error *err)
{
    struct glm_error trouble = {0};

    if (l->o->no_save || settle(l, true, err) != GLM_OK)
        return (int)err->code;
    saver_save(&l->saver, &trouble);
    return bear(l, &trouble, err);
}

/* The last one of the process has to be there. */
static int save_last(struct loop *l, struct glm_error *err)
{
    if (l->o->no_save || settle(l, true, err) != GLM_OK
        || saver_save(&l->saver, err) != GLM_OK)
        return (int)err->code;
    return saver_wait(&l->saver, err);
}

static void open_saver(struct loop *l)
{
    const struct home home = {.k = l->t.k, .stream = l->t.stream};
    struct glm_error no_room = {0};

    l->saver = (struct saver){.dir = &l->dir,
        .state = &l->t.state,
        .how = {.topology = &l->recipe->topology,
            .origin = &l->t.origin,
            .without_mtp = l->t.without_mtp,
            .threads = l->o->threads},
        .keep_last = l->recipe->run.keep_last,
        .saved = l->watch.saved,
        .ctx = l->watch.ctx};
    if (l->recipe->run.async_save && !l->o->no_save
        && saver_beside(&l->saver, &home, &no_room) != GLM_OK)
        note(l, "async_save: %s; training waits for its checkpoints", no_room.text);
}

/* ---- evaluating ------------------------------------------------------------------------------- */

static int evaluate(struct loop *l, struct glm_error *err)
{
    struct train_eval *const e = &l->report->eval;
    struct train_eval now = {.step = l->t.state.step};

    if (evaluate_run(&l->t, &now, l->events, err) != GLM_OK) {
        if (err->code
            == GLM_ESTOPPED) /* the step is whole; the loop sees the signal, too */
            glm_error_clear(err);
        return (int)err->code;
    }
    *e = now;
    if (l->watch.eval != NULL)
        l->watch.eval(l->watch.ctx, e);
    return GLM_OK;
}

/* ---- metrics ---------------------------------------------------------------------------------- */

static double wall_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int open_metrics(struct loop *l, struct glm_error *err)
{
    const char *const own = l->o->run_dir,
                      *const path = own ? own : l->recipe->run.run_dir;
    struct stat a, b;

    if (l->o->no_metrics || rundir_create(path, err) != GLM_OK)
        return (int)err->code;
    const bool apart = stat(path, &a) == 0 && stat(l->dir.path, &b) == 0
        && (a.st_dev != b.st_dev || a.st_ino != b.st_ino);
    if (apart && rundir_open(&l->home, path, l->o->take_lease, err) != GLM_OK)
        return (int)err->code;
    return metrics_open(&l->metrics, path, l->t.state.step, wall_time(), err);
}

/* A row that cannot be written stops no training. */
static void write_metrics(struct loop *l, const struct train_step *s)
{
    const struct train_eval *const e = &l->report->eval;
    struct metrics_row row = metrics_row_empty();
    struct glm_error trouble = {0};

    if (l->o->no_metrics)
        return;
    row.step = s->step;
    row.samples = s->samples;
    row.tokens = s->tokens;
    row.loss = s->loss;
    row.lm_loss = s->lm;
    if (s->mtp_on)
        row.mtp_loss = s->mtp;
    if (s->indexer_on)
        row.indexer_loss = s->indexer;
    row.grad_norm = s->norm;
    row.clip = s->clip;
    row.lr = s->lr;
    row.weight_decay = s->weight_decay;
    row.step_seconds = s->seconds;
    row.tokens_per_second = s->tokens_per_second;
    row.tflops = s->tflops;
    row.mfu = s->mfu;
    row.memory_bytes = (double)s->memory_bytes;
    row.expert_load = s->expert_load;
    row.wall_time = wall_time();
    if (e->targets > 0 && e->step == s->step) {
        row.eval_loss = e->loss;
        row.eval_perplexity = e->perplexity;
    }
    if (metrics_write(&l->metrics, &row, &trouble) != GLM_OK)
        note(l, "step %lld is not in the metrics: %s", (long long)s->step, trouble.text);
}

/* ---- the loop --------------------------------------------------------------------------------- */

static bool every(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

static double time_limit(const struct loop *l)
{
    const int64_t minutes = l->recipe->run.exit_duration_in_mins;
    const double a = l->o->stop_after_seconds,
                 b = minutes > 0 ? 60.0 * (double)minutes : 0;

    return a > 0 && (b <= 0 || a < b) ? a : b;
}

static void measure(struct loop *l, struct train_step *s, double seconds, uint64_t flops)
{
    const double so_far = clock_seconds() - l->start;
    const int64_t done = s->step - l->report->first;

    s->steps = l->recipe->batch.steps;
    s->seconds = seconds;
    s->tokens_per_second = seconds > 0 ? (double)s->rows / seconds : 0;
    s->tflops = flops_tera(flops, seconds);
    s->mfu = flops_mfu(flops, seconds, l->o->peak_tflops);
    s->left_seconds = done > 0 ? so_far / (double)done * (double)(l->last - s->step) : 0;
    s->memory_bytes = clock_resident_bytes();
}

static int one_step(struct loop *l, struct glm_error *err)
{
    const double start = clock_seconds();
    struct train_step s;
    uint64_t flops = 0;

    if (step_run(&l->t, &s, &flops, l->events, err) != GLM_OK)
        return (int)err->code;
    measure(l, &s, clock_seconds() - start, flops);
    if (s.step == l->report->first + 1)
        l->report->first_loss = s.loss;
    l->report->last_loss = s.loss;
    if (l->watch.step != NULL)
        l->watch.step(l->watch.ctx, &s);
    if (l->watch.state != NULL && l->watch.state(l->watch.ctx, &l->t.state, &s, err) != 0)
        return (int)err->code;
    if (every(l->recipe->run.eval_interval, s.step) && l->t.valid != NULL
        && evaluate(l, err) != GLM_OK)
        return (int)err->code;
    write_metrics(l, &s);
    if (every(l->recipe->run.interval, s.step) && s.step < l->last)
        return save_on_the_way(l, err);
    return settle(l, false, err);
}

/* Whether something other than the last step ends the run here. */
static bool asked_to_stop(struct loop *l)
{
    const double limit = time_limit(l);
    const int64_t interval = l->recipe->run.exit_interval;

    l->report->stopped = glm_events_stop(l->events);
    if (l->report->stopped != 0)
        l->report->why = "signal";
    else if (limit > 0 && clock_seconds() - l->start >= limit)
        l->report->why = "time";
    else if (l->t.state.step > l->report->first && every(interval, l->t.state.step))
        l->report->why = "exit_interval";
    return l->report->why != NULL;
}

static int steps(struct loop *l, struct glm_error *err)
{
    while (l->t.state.step < l->last && !asked_to_stop(l))
        if (one_step(l, err) != GLM_OK && err->code != GLM_ESTOPPED)
            return (int)err->code;
        else
            glm_error_clear(err); /* asked_to_stop sees it again */
    if (l->t.state.step >= l->last)
        l->report->why = NULL;
    return save_last(l, err);
}

static int begin(struct loop *l, struct glm_error *err)
{
    const struct train_options *const o = l->o;
    const char *const path = o->run_dir != NULL ? o->run_dir : l->recipe->run.save;

    if (rundir_open(&l->dir, path, o->take_lease, err) != GLM_OK)
        return (int)err->code;
    const int64_t latest = rundir_latest(&l->dir);
    if (latest >= 0 && !o->resume)
        return glm_fail(err, GLM_EUSAGE,
            "%s: holds a run, its newest checkpoint is of step %lld; "
            "--resume goes on with it, another --run begins anew",
            l->dir.path, (long long)latest);
    if (latest < 0) {
        if (o->resume)
            note(l, "%s: holds no checkpoint yet, the run begins at its first step",
                l->dir.path);
        return trainer_start(&l->t, err);
    }
    char *name = rundir_name(&l->dir, latest, err);
    if (name == NULL || trainer_resume(&l->t, name, l->events, err) != GLM_OK)
        goto out;
    if (l->t.state.step != latest)
        glm_fail(err, GLM_EFORMAT, "%s: holds step %lld in train/step", name,
            (long long)l->t.state.step);
    else
        note(l, "goes on from %s", name);
out:
    free(name);
    return (int)err->code;
}

static int train(struct loop *l, struct glm_error *err)
{
    const struct trainer_options how = {
        .threads = l->o->threads, .train = true, .events = l->events};

    if (trainer_open(&l->t, l->recipe, &how, err) != GLM_OK || begin(l, err) != GLM_OK
        || open_metrics(l, err) != GLM_OK)
        return (int)err->code;
    l->report->first = l->t.state.step;
    l->last = l->recipe->batch.steps;
    if (l->o->stop_at > 0 && l->o->stop_at < l->last)
        l->last = l->o->stop_at;
    open_saver(l);
    l->start = clock_seconds();
    if (l->watch.state != NULL
        && l->watch.state(l->watch.ctx, &l->t.state, NULL, err) != 0)
        return (int)err->code;
    steps(l, err);
    l->report->step = l->t.state.step;
    if (l->dir.steps > 0) {
        struct glm_error ignored = {0};
        char *name = rundir_name(&l->dir, rundir_latest(&l->dir), &ignored);
        snprintf(l->report->checkpoint, sizeof l->report->checkpoint, "%s",
            name != NULL ? name : "");
        free(name);
    }
    return (int)err->code;
}

static int only_evaluate(struct loop *l, struct glm_error *err)
{
    const struct trainer_options how = {.threads = l->o->threads, .events = l->events};

    if (trainer_open(&l->t, l->recipe, &how, err) != GLM_OK
        || trainer_weights(&l->t, l->o->eval_only, err) != GLM_OK)
        return (int)err->code;
    return evaluate_run(&l->t, &l->report->eval, l->events, err);
}

int train_run(const struct recipe *r, const struct train_options *o,
    const struct train_watch *watch, const struct glm_events *events,
    struct train_report *report, struct glm_error *err)
{
    const double start = clock_seconds();
    struct loop l = {
        .recipe = r, .o = o, .events = events, .report = report, .metrics = {.fd = -1}};

    *report = (struct train_report){
        .steps = r->batch.steps, .first_loss = NAN, .last_loss = NAN};
    if (watch != NULL)
        l.watch = *watch;
    if (recipe_check_built(r, err) != GLM_OK)
        return (int)err->code;
    if (o->eval_only != NULL)
        only_evaluate(&l, err);
    else
        train(&l, err);
    saver_close(&l.saver);
    metrics_close(&l.metrics, err);
    rundir_close(&l.home);
    rundir_close(&l.dir);
    trainer_close(&l.t);
    report->seconds = clock_seconds() - start;
    return (int)err->code;
}
