/* Makes progress durable: sync the sink, then one journal line for each file that has come further.
 *
 * Only pieces count before which everything is in the sink, and only up to a state of the digest
 * that was kept (hubflow.c: mark). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hubflow_inside.h"

struct step { /* how far a stream can be settled */
    int64_t pieces, examined;
    uint64_t at;
    struct hubsum sum;
    bool moved;
};

bool hubflow_settle_due(const struct hubflow *f)
{
    for (int i = 0; i < f->stream_count; i++) {
        const struct hubstream *s = &f->streams[i];
        const uint64_t at = s->taken > 0 ? s->pieces[s->taken - 1].end : s->settled_at;
        if (s->waits || (at > s->settled_at && at - s->settled_at >= HUBFLOW_SETTLE)
            || (s->received && s->taken == s->count && !s->verified && !s->wrong
                && s->settled < s->count))
            return true;
    }
    return false;
}

static bool is_in(const struct hubflow *f, const struct hubpiece *p)
{
    return p->processed && (p->job < 0 || f->written(f->written_ctx, p->job));
}

/* Lock held. */
static struct step look(const struct hubflow *f, const struct hubstream *s)
{
    struct step step = {.pieces = s->settled, .at = s->settled_at};
    int64_t in = s->settled;

    while (in < s->taken && is_in(f, &s->pieces[in]))
        in++;
    for (step.examined = in;
         step.examined < s->taken && s->pieces[step.examined].processed;)
        step.examined++;
    if (!s->whole) {
        step.pieces = in;
        step.moved = in > s->settled;
        step.at = in < s->count ? s->pieces[in].begin
            : in > 0            ? s->pieces[in - 1].end
                                : 0;
        return step;
    }
    for (int i = 0; i < s->mark_count; i++)
        if (s->marks[i].pieces <= in && s->marks[i].pieces > step.pieces) {
            step.pieces = s->marks[i].pieces;
            step.sum = s->marks[i].sum;
            step.at = step.sum.at;
            step.moved = true;
        }
    return step;
}

/* Lock held: the step has become durable. */
static void advance(struct hubflow *f, struct hubstream *s, const struct step *step)
{
    s->examined = step->examined;
    s->settled = step->pieces;
    s->settled_at = step->at;
    s->waits = false;
    if (!s->whole || !step->moved)
        return;
    f->states[s->no].known = true;
    f->states[s->no].sum = step->sum;
    int kept = 0;
    for (int i = 0; i < s->mark_count; i++)
        if (s->marks[i].pieces > step->pieces)
            s->marks[kept++] = s->marks[i];
    s->mark_count = kept;
}

static void compare(struct hubflow *f, struct hubstream *s)
{
    char hex[HUBSUM_HEX];
    if (!s->whole || s->settled < s->count || s->verified || s->wrong)
        return;
    hubsum_hex(&s->sum, hex);
    s->verified = strcmp(hex, s->file->listed->digest) == 0;
    s->wrong = !s->verified;
    f->states[s->no].verified = s->verified;
}

/* The states that the steps lead to, and the files that have ended well. */
static int write_lines(
    struct hubflow *f, const struct step *steps, const bool *ends, struct glm_error *err)
{
    char *text = NULL, state[HUBSUM_TEXT];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (out == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the journal");
    for (int i = 0; i < f->stream_count; i++) {
        const struct hubstream *s = &f->streams[i];
        if (ends != NULL && ends[i])
            fprintf(out, "hub %d verified\n", (int)s->no);
        if (ends == NULL && s->whole && steps[i].moved) {
            hubsum_save(&steps[i].sum, state);
            fprintf(out, "hub %d %s\n", (int)s->no, state);
        }
    }
    if (fclose(out) != 0)
        glm_fail(err, GLM_ENOMEM, "no memory for the journal");
    else if (size > 0)
        f->sink->journal(f->sink->ctx, text, err);
    free(text);
    return (int)err->code;
}

/* The window of a stream moves on only when the line is durable that makes it so. */
int hubflow_settle(struct hubflow *f, struct glm_error *err)
{
    struct step *steps = calloc((size_t)f->stream_count + 1, sizeof *steps);
    bool *ends = calloc((size_t)f->stream_count + 1, sizeof *ends);
    bool moved = false;

    if (steps == NULL || ends == NULL) {
        glm_fail(err, GLM_ENOMEM, "no memory to settle");
        goto out;
    }
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < f->stream_count; i++) {
        steps[i] = look(f, &f->streams[i]);
        moved = moved || steps[i].moved;
    }
    pthread_mutex_unlock(&f->lock);
    if (moved
        && (f->sink->settle(f->sink->ctx, err) != GLM_OK
            || write_lines(f, steps, NULL, err) != GLM_OK))
        goto out;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < f->stream_count; i++) {
        struct hubstream *s = &f->streams[i];
        const bool before = s->verified;
        advance(f, s, &steps[i]);
        compare(f, s);
        ends[i] = s->verified && !before;
    }
    pthread_mutex_unlock(&f->lock);
    hubnet_wake(hub_net(f->o.hub));
    write_lines(f, steps, ends, err);
out:
    free(steps);
    free(ends);
    return (int)err->code;
}

void *hubflow_settler(void *flow)
{
    struct hubflow *f = flow;
    struct glm_error err = {0};

    pthread_mutex_lock(&f->lock);
    while (!f->ending && err.code == GLM_OK) {
        if (!hubflow_settle_due(f)) {
            pthread_cond_wait(&f->due, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        hubflow_settle(f, &err);
        pthread_mutex_lock(&f->lock);
        /* A stream may wait for a job that is still being worked on. */
        if (err.code == GLM_OK && hubflow_settle_due(f)) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += 5000000;
            t.tv_sec += t.tv_nsec / 1000000000;
            t.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&f->due, &f->lock, &t);
        }
    }
    if (err.code != GLM_OK)
        hubflow_fail(f, &err);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}
