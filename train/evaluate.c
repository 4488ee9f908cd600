#include "train/evaluate.h"

#include <math.h>

#include "train/clock.h"

int evaluate_run(struct trainer *t, struct train_eval *out,
    const struct glm_events *events, struct glm_error *err)
{
    const int64_t global = t->recipe->batch.global, epoch = feed_epoch(t->valid);
    const int64_t iters = t->recipe->run.eval_iters, from = out->step;
    const int64_t all = iters > INT64_MAX / global ? INT64_MAX : iters * global;
    const int64_t samples = all < epoch ? all : epoch;
    const double start = clock_seconds();
    double sum = 0;

    *out = (struct train_eval){.step = from};
    while (out->samples < samples) {
        const int64_t left = samples - out->samples, n = left < global ? left : global;
        if (feed_fill(t->valid, out->samples, n, &t->batch, err) != GLM_OK)
            return glm_within(err, "validation");
        for (int64_t i = 0; i < t->batch.parts; i++) {
            const int stop = glm_events_stop(events);
            if (stop != 0) {
                glm_fail(err, GLM_ESTOPPED, "stopped while evaluating");
                err->sys_errno = stop;
                return (int)err->code;
            }
            if (model_forward(t->model, &t->batch.part[i], NULL, err) != 0)
                return glm_within(err, "validation");
            sum += model_losses(t->model)->lm_sum;
            out->targets += model_losses(t->model)->lm_count;
        }
        out->samples += n;
    }
    out->loss = out->targets > 0 ? sum / (double)out->targets : NAN;
    out->perplexity = exp(out->loss);
    out->seconds = clock_seconds() - start;
    return GLM_OK;
}
