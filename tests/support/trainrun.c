#include "tests/support/trainrun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"
#include "train/tokens_write.h"

enum { VOCAB = 96, DOCUMENTS = 160 };

static void check(const struct glm_error *err)
{
    if (err->code != GLM_OK) {
        fprintf(stderr, "test support: %s\n", err->text);
        abort();
    }
}

/* Documents of 0 to 70 tokens, each a walk in which the next token is one of four; a tenth of the
 * rows is masked. */
static void write_data(const char *path)
{
    struct glm_error err = {0};
    struct tokens_writer *w;
    uint64_t at = 1;

    tokens_writer_open(&w, path, GLM_U16, false, &err);
    for (int d = 0; d < DOCUMENTS && err.code == GLM_OK; d++) {
        const int64_t n = (int64_t)(rng_mix(at++) % 71);
        int32_t ids[80];
        uint8_t mask[80];
        int32_t id = (int32_t)(rng_mix(at++) % VOCAB);
        for (int64_t i = 0; i < n; i++) {
            const uint64_t x = rng_mix(at++);
            ids[i] = id;
            mask[i] = x >> 8 & 0xFF ? x % 10 != 0 : 1;
            id = (int32_t)((3 * id + 1 + (int32_t)(x >> 40 & 3)) % VOCAB);
        }
        if (n > 0)
            tokens_writer_add(w, ids, mask, n, &err);
        tokens_writer_end(w, &err);
    }
    tokens_writer_finish(w, &err);
    check(&err);
    tokens_writer_close(w);
}

/* Lines "  key: value" of a frame, but for keys that the test gives itself. */
static void add_lines(FILE *f, const char *const *lines, const char *given)
{
    for (; *lines != NULL; lines++) {
        char key[64];
        snprintf(key, sizeof key, "  %.*s:", (int)strcspn(*lines, ":"), *lines);
        if (strstr(given, key) == NULL)
            fprintf(f, "  %s\n", *lines);
    }
    fputs(given, f);
}

void trainrun_write(const char *dir, const char *args, const char *glm)
{
    static const char *const frame[] = {"train_iters: 20", "global_batch_size: 4",
        "micro_batch_size: 4", "seq_length: 32", "lr: 2e-3", "min_lr: 1e-4",
        "lr_decay_style: cosine", "lr_warmup_iters: 2", "seed: 7",
        "dsa_indexer_loss_coeff: 0.01", "dsa_indexer_use_sparse_loss: true",
        "save_interval: 5", "split: \"80,20,0\"", "eval_iters: 2", NULL};
    static const char *const ours[] = {"packing: documents", "keep_last: 0", NULL};
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    if (f == NULL)
        abort();
    fprintf(f, "ARGS:\n");
    add_lines(f, frame, args);
    fprintf(f, "GLM:\n  model: %s/config.json\n  data: %s/data.h5\n", dir, dir);
    add_lines(f, ours, glm);
    fclose(f);
    tmpdir_write(tmpdir_path(dir, "recipe.yaml"), text, size);
    free(text);
}

char *trainrun_new(const char *args, const char *glm)
{
    char *dir = tmpdir_new();
    size_t size;

    char *config = tmpdir_read("fixtures/train/micro.json", &size);
    tmpdir_write(tmpdir_path(dir, "config.json"), config, size);
    free(config);
    write_data(tmpdir_path(dir, "data.h5"));
    trainrun_write(dir, args, glm);
    return dir;
}

struct recipe *trainrun_recipe(const char *dir)
{
    const struct recipe_options none = {0};
    struct glm_error err = {0};
    struct recipe *r;

    recipe_read(&r, tmpdir_path(dir, "recipe.yaml"), &none, &err);
    check(&err);
    return r;
}

int trainrun_go(const char *dir, const char *run, struct train_options o,
    const struct train_watch *watch, const struct glm_events *events,
    struct train_report *report, struct glm_error *err)
{
    struct recipe *r = trainrun_recipe(dir);
    char path[1024];

    snprintf(path, sizeof path, "%s/%s", dir, run);
    o.run_dir = path;
    train_run(r, &o, watch, events, report, err);
    recipe_free(r);
    return (int)err->code;
}

struct train_report trainrun_good(
    const char *dir, const char *run, struct train_options o)
{
    struct train_report report;
    struct glm_error err = {0};

    trainrun_go(dir, run, o, NULL, NULL, &report, &err);
    check(&err);
    return report;
}

static const char *step_path(const char *dir, const char *run, int64_t step)
{
    return tmpdir_path(dir, "%s/step-%09lld", run, (long long)step);
}

bool trainrun_there(const char *dir, const char *run, int64_t step)
{
    return access(step_path(dir, run, step), F_OK) == 0;
}

const char *trainrun_print(const char *dir, const char *run, int64_t step)
{
    static char buffers[8][DIGEST_HEX];
    static int next;
    char *out = buffers[next++ % 8];
    struct glm_error err = {0};
    struct reader *r;

    out[0] = '\0';
    if (reader_open(&r, step_path(dir, run, step), &err) == GLM_OK)
        digest_hex(reader_manifest(r)->fingerprint, out);
    reader_close(r);
    return out;
}
