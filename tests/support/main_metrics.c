/* metrics RUN FROM TO [RESUME]: writes the metrics of steps FROM to TO, for the tests of other
 * readers. Values are functions of the step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "train/metrics.h"

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    struct metrics m;
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: metrics RUN FROM TO [RESUME]\n");
        return 2;
    }
    const int64_t from = atoll(argv[2]), to = atoll(argv[3]);
    metrics_open(
        &m, argv[1], argc > 4 ? atoll(argv[4]) : 0, 1764000000.0 + (double)from, &err);
    for (int64_t s = from; s <= to && err.code == GLM_OK; s++) {
        const double x = (double)s;
        struct metrics_row r = metrics_row_empty();
        r.step = s;
        r.samples = 4 * s;
        r.tokens = 512 * s;
        r.lm_loss = 6 * exp(-x / 20) + 0.1 * sin(x);
        r.mtp_loss = 1.1 * r.lm_loss;
        r.indexer_loss = 0.5 / (x + 1);
        r.loss = r.lm_loss + 0.1 * r.mtp_loss + 0.01 * r.indexer_loss;
        r.grad_norm = 2 + cos(3 * x);
        r.lr = 1e-3 / 3 * (1 + cos(x / 30));
        r.eval_loss = s % 10 == 0 ? r.lm_loss + 0.05 : (double)NAN;
        r.wall_time = 1764000000.125 + x;
        metrics_write(&m, &r, &err);
    }
    if (err.code == GLM_OK)
        metrics_close(&m, &err);
    if (err.code != GLM_OK)
        fprintf(stderr, "metrics: %s\n", err.text);
    return glm_exit_status(&err);
}
