/* losscurve RUN [GOLDEN]: whether a run has learned, and as an independent program did.
 *
 * The last loss is at most 0.8 of the first. GOLDEN is JSON whose lists "loss", "lm_loss",
 * "mtp_loss", "indexer_loss" (those it has) are held against the run's metrics: each number within
 * 1e-4, relative. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/metrics.h"

static double relative(double a, double b)
{
    return a == b ? 0 : fabs(a - b) / fabs(b);
}

/* The largest relative difference of one list; NaN: the list is of another length. */
static double compare(const struct metric *m, const json_t *list,
    const struct metrics_row *rows, int64_t count)
{
    double worst = 0;

    if ((int64_t)json_array_size(list) != count)
        return NAN;
    for (int64_t i = 0; i < count; i++) {
        const double d = relative(
            metrics_get(&rows[i], m), json_number_value(json_array_get(list, (size_t)i)));
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst;
}

static int against_golden(const char *path, const struct metrics_row *rows, int64_t count)
{
    json_error_t error;
    json_t *golden = json_load_file(path, 0, &error);
    int bad = 0, compared = 0;

    if (golden == NULL) {
        fprintf(stderr, "losscurve: %s: %s\n", path, error.text);
        return 1;
    }
    for (const struct metric *m = metrics_numbers; m->name != NULL; m++) {
        const json_t *list = json_object_get(golden, m->name);
        if (list == NULL)
            continue;
        const double worst = compare(m, list, rows, count);
        const int good = worst <= 1e-4;
        printf("%-13s differs by at most %.2e (relative) from %s: %s\n", m->name, worst,
            path, good ? "good" : "too much");
        bad |= !good;
        compared++;
    }
    json_decref(golden);
    if (compared == 0)
        fprintf(stderr, "losscurve: %s: holds no list of losses\n", path);
    return bad || compared == 0;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    struct metrics_row *rows = NULL;
    int64_t count = 0;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: losscurve RUN [GOLDEN]\n");
        return 2;
    }
    if (metrics_read(argv[1], &rows, &count, &err) != GLM_OK || count < 2) {
        fprintf(
            stderr, "losscurve: %s\n", err.code != GLM_OK ? err.text : "too few steps");
        return 3;
    }
    const double first = rows[0].loss, last = rows[count - 1].loss;
    printf("loss          %.5f at step %lld, %.5f at step %lld: %.2f of it\n", first,
        (long long)rows[0].step, last, (long long)rows[count - 1].step, last / first);
    int bad = !(last <= 0.8 * first);
    if (argc > 2)
        bad |= against_golden(argv[2], rows, count);
    free(rows);
    return bad;
}
