#include "train/wholestep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes ----------------------------------------------------------------------------------- */

static int shape_of(struct wholestep_shape *s, const struct model_batch *part,
    int64_t parts, const struct model_scale *scale, struct glm_error *err)
{
    *s = (struct wholestep_shape){.parts = parts, .scale = *scale};
    if ((s->rows = calloc((size_t)(2 * parts + 1), sizeof *s->rows)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the shapes of a step");
    for (int64_t i = 0; i < parts; i++) {
        s->rows[2 * i] = part[i].tokens;
        s->rows[2 * i + 1] = part[i].tokens > 0 ? part[i].sequences : 0;
    }
    return GLM_OK;
}

static bool same(const struct wholestep_shape *a, const struct wholestep_shape *b)
{
    return a->rows != NULL && b->rows != NULL && a->parts == b->parts
        && a->scale.lm == b->scale.lm && a->scale.mtp == b->scale.mtp
        && a->scale.indexer == b->scale.indexer
        && memcmp(a->rows, b->rows, (size_t)(2 * a->parts) * sizeof *a->rows) == 0;
}

/* *to becomes *from, which is empty afterwards. */
static void take(struct wholestep_shape *to, struct wholestep_shape *from)
{
    free(to->rows);
    *to = *from;
    *from = (struct wholestep_shape){0};
}

void wholestep_clear(struct wholestep *w)
{
    if (w->recording != NULL)
        w->k->forget(w->recording);
    free(w->last.rows);
    free(w->recorded.rows);
    *w = (struct wholestep){0};
}

/* ---- the step --------------------------------------------------------------------------------- */

static int asked_to_stop(const struct glm_events *events, struct glm_error *err)
{
    const int stop = glm_events_stop(events);

    if (stop == 0)
        return GLM_OK;
    glm_fail(err, GLM_ESTOPPED, "stopped");
    err->sys_errno = stop;
    return (int)err->code;
}

static int begin(struct wholestep *w, struct glm_error *err)
{
    if (params_zero_grads(w->params, err) != 0)
        return (int)err->code;
    return model_clear(w->model, err);
}

static int update(struct wholestep *w, struct glm_error *err)
{
    int64_t watch;
    const double *const watched = model_watched(w->model, &watch);

    return optimizer_queue(w->optimizer, watched, watch, w->k, w->stream, err);
}

static int place_all(struct wholestep *w, const struct model_batch *part, int64_t parts,
    struct glm_error *err)
{
    for (int64_t i = 0; i < parts; i++)
        if (part[i].tokens > 0 && model_place(w->model, i, &part[i], err) != 0)
            return (int)err->code;
    return GLM_OK;
}

/* Operation by operation. */
static int launch(struct wholestep *w, struct model_batch *part, int64_t parts,
    const struct model_scale *scale, const struct glm_events *events,
    struct glm_error *err)
{
    if ((w->ahead && place_all(w, part, parts, err) != 0) || begin(w, err) != 0)
        return (int)err->code;
    for (int64_t i = 0; i < parts; i++) {
        if (asked_to_stop(events, err) != GLM_OK)
            return (int)err->code;
        if (part[i].tokens > 0
            && ((!w->ahead && model_place(w->model, i, &part[i], err) != 0)
                || model_queue(w->model, i, scale, w->load, err) != 0))
            return (int)err->code;
    }
    return update(w, err);
}

/* Leaves the recording, or none and the reason. */
static void record(struct wholestep *w, const struct model_batch *part, int64_t parts,
    const struct model_scale *scale)
{
    struct glm_error err = {0};

    if (w->k->record(w->stream, &err) == 0) {
        if (begin(w, &err) == 0) {
            for (int64_t i = 0; i < parts && err.code == GLM_OK; i++)
                if (part[i].tokens > 0)
                    model_queue(w->model, i, scale, w->load, &err);
            if (err.code == GLM_OK)
                update(w, &err);
        }
        w->k->recorded(w->stream, &w->recording, &err);
    }
    if (err.code == GLM_OK)
        return;
    w->record = false;
    snprintf(w->why, sizeof w->why, "%.250s", err.text);
}

/* Whether there is a recording of this shape. */
static bool ready(
    struct wholestep *w, struct wholestep_shape *shape, const struct model_batch *part)
{
    if (!w->record || w->k->record == NULL)
        return false;
    if (w->recording != NULL && same(&w->recorded, shape))
        return true;
    if (!same(&w->last, shape))
        return false;
    if (w->recording != NULL)
        w->k->forget(w->recording);
    w->recording = NULL;
    record(w, part, shape->parts, &shape->scale);
    take(&w->recorded, shape);
    return w->recording != NULL;
}

static int replay(struct wholestep *w, const struct model_batch *part, int64_t parts,
    const struct glm_events *events, struct glm_error *err)
{
    if (asked_to_stop(events, err) != GLM_OK)
        return (int)err->code;
    if (place_all(w, part, parts, err) != 0)
        return (int)err->code;
    w->replays++;
    return w->k->replay(w->recording, w->stream, err);
}

int wholestep_run(struct wholestep *w, struct model_batch *part, int64_t parts,
    const struct model_scale *scale, const struct optimizer_step *rates,
    const struct glm_events *events, struct glm_error *err)
{
    struct wholestep_shape shape;

    for (int64_t i = 0; i < parts; i++)
        part[i].late = true;
    if (optimizer_begin(w->optimizer, rates, err) != 0
        || shape_of(&shape, part, parts, scale, err) != GLM_OK)
        return (int)err->code;
    if (ready(w, &shape, part))
        replay(w, part, parts, events, err);
    else
        launch(w, part, parts, scale, events, err);
    if (shape.rows != NULL) /* not handed over to the recording */
        take(&w->last, &shape);
    if (err->code == GLM_OK && w->k->stream_wait(w->stream, err) == 0)
        model_fetch(w->model, err);
    return (int)err->code;
}
