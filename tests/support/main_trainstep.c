/* trainstep FIXTURE DTYPE SEQUENCES LENGTH THREADS: forward and backward of a tiny model, one step
 * for each line on standard input; writes the step's seconds and its mean loss on one line each.
 * For tests/bench/bench_train_cpu.py, which takes turns with a peer. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/support/tinymodel.h"
#include "tests/support/tmpdir.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int step(struct tinymodel *t, struct model *m, const struct model_batch *b,
    struct glm_error *err)
{
    const double began = now();
    tinymodel_zero_grads(t);
    if (model_forward(m, b, NULL, err) != 0)
        return err->code;
    const struct model_losses *l = model_losses(m);
    const double mean = l->lm_sum / (double)l->lm_count;
    if (model_backward(m, &(struct model_scale){.lm = 1.0 / (double)l->lm_count}, err)
        != 0)
        return err->code;
    printf("%.6f %.7f\n", now() - began, mean);
    fflush(stdout);
    return 0;
}

static int *lengths_of(int sequences, int length)
{
    int *lengths = calloc((size_t)sequences + 1, sizeof *lengths);
    if (!lengths)
        abort();
    for (int s = 0; s < sequences; s++)
        lengths[s] = length;
    return lengths;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    char path[256], line[16];
    size_t size;
    if (argc != 6) {
        fprintf(stderr, "usage: trainstep FIXTURE f32|bf16 SEQUENCES LENGTH THREADS\n");
        return 2;
    }
    snprintf(path, sizeof path, "%s/config.json", argv[1]);
    char *config = tmpdir_read(path, &size);
    const enum glm_dtype dtype = argv[2][0] == 'b' ? GLM_BF16 : GLM_F32;
    const int sequences = atoi(argv[3]), length = atoi(argv[4]);
    struct tinymodel *t = tinymodel_new(config, 1, false, dtype, true);
    int *lengths = lengths_of(sequences, length);
    struct tinybatch b = tinybatch_new(lengths, t->table->config.vocab_size, 1);
    const struct model_options o = {.dtype = dtype,
        .max_tokens = b.batch.tokens,
        .max_sequences = sequences,
        .zero_padding_row_grad = true};
    glm_stream stream = kernels_find("cpu")->stream_new(atoi(argv[5]), &err);
    if (stream) {
        struct model *m = tinymodel_model(t, &o, stream);
        while (fgets(line, sizeof line, stdin) && step(t, m, &b.batch, &err) == 0)
            ;
        model_free(m);
    }
    kernels_find("cpu")->stream_free(stream);
    tinybatch_free(&b);
    tinymodel_free(t);
    free(lengths);
    free(config);
    if (err.code != GLM_OK)
        fprintf(stderr, "trainstep: %s\n", err.text);
    return glm_exit_status(&err);
}
