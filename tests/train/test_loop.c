/* The training loop: bits over restarts, threads and topologies; stops; what is refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/brief.h"
#include "tests/support/reseal.h"
#include "tests/support/tmpdir.h"
#include "tests/support/trainrun.h"
#include "train/metrics.h"
#include "train/rundir.h"

#define GO(...) ((struct train_options){.threads = 1, __VA_ARGS__})

static void same_bits(const char *dir, const char *a, const char *b, int64_t step)
{
    const char *x = trainrun_print(dir, a, step), *y = trainrun_print(dir, b, step);
    cr_assert(x[0] != '\0', "%s has no checkpoint of step %lld", a, (long long)step);
    cr_assert_str_eq(x, y, "step %lld of %s and %s", (long long)step, a, b);
}

/* Loss, norm and the rest of each step, but for times. */
static void same_metrics(const char *dir, const char *a, const char *b)
{
    struct metrics_row *x, *y;
    int64_t n, m;
    struct glm_error err = {0};
    metrics_read(tmpdir_path(dir, "%s", a), &x, &n, &err);
    metrics_read(tmpdir_path(dir, "%s", b), &y, &m, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    cr_assert_eq(n, m);
    for (int64_t i = 0; i < n; i++) {
        cr_assert_eq(x[i].step, i + 1);
        cr_assert_eq(y[i].step, i + 1);
        cr_assert_eq(x[i].tokens, y[i].tokens);
        cr_assert(memcmp(&x[i].loss, &y[i].loss, sizeof(double)) == 0,
            "loss of step %lld", (long long)i + 1);
        cr_assert(memcmp(&x[i].indexer_loss, &y[i].indexer_loss, sizeof(double)) == 0);
        cr_assert(memcmp(&x[i].mtp_loss, &y[i].mtp_loss, sizeof(double)) == 0);
        cr_assert(memcmp(&x[i].grad_norm, &y[i].grad_norm, sizeof(double)) == 0);
        cr_assert(memcmp(&x[i].lr, &y[i].lr, sizeof(double)) == 0);
    }
    free(x);
    free(y);
}

static void restarts(const char *args)
{
    char *dir = trainrun_new(args, "");
    trainrun_good(dir, "whole", GO());
    for (int64_t stop = 5; stop <= 20; stop += 5)
        trainrun_good(dir, "pieces", GO(.stop_at = stop, .resume = stop > 5));
    for (int64_t step = 5; step <= 20; step += 5)
        same_bits(dir, "whole", "pieces", step);
    same_metrics(dir, "whole", "pieces");
    tmpdir_remove(dir);
}

Test(loop, goes_on_from_every_save_with_the_same_bits)
{
    static const char *const types[] = {"", "  bf16: true\n"};
    static const char *const optimizers[] = {
        "  optimizer: muon\n", "  optimizer: adam\n"};
    static const char *const micro[] = {
        "  micro_batch_size: 4\n", "  micro_batch_size: 1\n"};
    for (int i = 0; i < 8; i += brief() ? 7 : 1) {
        char args[256];
        snprintf(args, sizeof args, "%s%s%s", types[i & 1], optimizers[i >> 1 & 1],
            micro[i >> 2]);
        restarts(args);
    }
}

Test(loop, goes_on_in_every_stage_with_the_same_bits)
{
    static const struct {
        const char *args, *glm;
    } cases[] = {
        {"  dsa_indexer_use_sparse_loss: false\n  bf16: true\n",
            "  stages: indexer_warmup\n"},
        {"  dsa_indexer_use_sparse_loss: false\n  dsa_indexer_loss_coeff: 0\n",
            "  stages: dense\n"},
        {"", "  stages: rl_safe\n"},
        {"  mtp_num_layers: 0\n  lr_decay_style: WSD\n  lr_wsd_decay_iters: 6\n", ""},
        {"  micro_batch_size: 1\n", "  packing: stream\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dir = trainrun_new(cases[i].args, cases[i].glm);
        const struct train_report r = trainrun_good(dir, "whole", GO(.stop_at = 10));
        trainrun_good(dir, "pieces", GO(.stop_at = 5));
        trainrun_good(dir, "pieces", GO(.stop_at = 10, .resume = true));
        same_bits(dir, "whole", "pieces", 10);
        same_metrics(dir, "whole", "pieces");
        cr_assert(isfinite(r.last_loss));
        tmpdir_remove(dir);
    }
}

Test(loop, learns)
{
    char *dir = trainrun_new(
        "  optimizer: muon\n  muon_extra_scale_factor: 0.2\n  lr: 2e-2\n", "");
    const struct train_report r = trainrun_good(dir, "run", GO());
    cr_assert(r.last_loss < 0.95 * r.first_loss, "%g to %g", r.first_loss, r.last_loss);
    tmpdir_remove(dir);
}

Test(loop, bits_do_not_depend_on_threads)
{
    char *dir =
        trainrun_new("  bf16: true\n  optimizer: muon\n  micro_batch_size: 2\n", "");
    const int64_t stop = brief() ? 5 : 20;
    trainrun_good(dir, "one", GO(.stop_at = stop));
    trainrun_good(dir, "two", (struct train_options){.threads = 2, .stop_at = stop});
    trainrun_good(dir, "four", (struct train_options){.threads = 4, .stop_at = stop});
    same_bits(dir, "one", "two", stop);
    same_bits(dir, "one", "four", stop);
    tmpdir_remove(dir);
}

Test(loop, goes_on_from_a_checkpoint_of_any_topology_with_the_same_bits)
{
    char *dir = trainrun_new("  bf16: true\n", "");
    trainrun_good(dir, "whole", GO());
    trainrun_write(dir,
        "  bf16: true\n  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: "
        "2\n"
        "  expert_model_parallel_size: 2\n",
        "");
    trainrun_good(dir, "cut", GO(.stop_at = 10));
    cr_assert(access(tmpdir_path(dir, "cut/step-000000010/shard-p001-t000-0000.h5"), F_OK)
        == 0);
    trainrun_good(dir, "cut", GO(.resume = true));
    for (int64_t step = 5; step <= 20; step += 5)
        same_bits(dir, "whole", "cut", step);
    tmpdir_remove(dir);
}

/* ---- stops ------------------------------------------------------------------------------------ */

struct stopper {
    volatile sig_atomic_t signal;
    int64_t at;
    int number;
};

static void stop_at(void *ctx, const struct train_step *s)
{
    struct stopper *const p = ctx;
    if (s->step == p->at)
        p->signal = p->number;
}

Test(loop, a_signal_saves_the_last_whole_step_and_ends)
{
    char *dir = trainrun_new("  micro_batch_size: 1\n", "");
    struct stopper p = {.at = 7, .number = SIGTERM};
    const struct train_watch watch = {.ctx = &p, .step = stop_at};
    const struct glm_events events = {.stop = &p.signal};
    struct train_report report;
    struct glm_error err = {0};
    trainrun_go(dir, "cut", GO(), &watch, &events, &report, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    cr_assert_eq(report.step, 7);
    cr_assert_eq(report.steps, 20);
    cr_assert_eq(report.stopped, SIGTERM);
    cr_assert_str_eq(report.why, "signal");
    cr_assert(trainrun_there(dir, "cut", 7));
    trainrun_good(dir, "cut", GO(.resume = true));
    trainrun_good(dir, "whole", GO());
    same_bits(dir, "whole", "cut", 20);
    same_metrics(dir, "whole", "cut");
    cr_assert(access(tmpdir_path(dir, "cut/run.partial"), F_OK) != 0,
        "the lease is still there");
    tmpdir_remove(dir);
}

Test(loop, stops_when_its_time_is_over)
{
    char *dir = trainrun_new("", "");
    const struct train_report r =
        trainrun_good(dir, "run", GO(.stop_after_seconds = 1e-9));
    cr_assert_eq(r.step, 0);
    cr_assert_str_eq(r.why, "time");
    cr_assert(trainrun_there(dir, "run", 0));
    const struct train_report all = trainrun_good(dir, "run", GO(.resume = true));
    cr_assert_eq(all.step, 20);
    cr_assert(all.why == NULL);
    tmpdir_remove(dir);
}

Test(loop, keeps_the_newest_checkpoints_and_says_which_is_the_latest)
{
    char *dir = trainrun_new("  save_interval: 3\n", "  keep_last: 2\n");
    size_t size;
    trainrun_good(dir, "run", GO());
    for (int64_t step = 1; step <= 20; step++)
        cr_assert_eq(trainrun_there(dir, "run", step), step == 18 || step == 20,
            "step %lld", (long long)step);
    char *latest = tmpdir_read(tmpdir_path(dir, "run/latest"), &size);
    cr_assert_str_eq(latest, "step-000000020\n");
    free(latest);
    tmpdir_remove(dir);
}

/* ---- evaluation ------------------------------------------------------------------------------- */

Test(loop, an_evaluation_of_a_checkpoint_is_the_one_its_run_had)
{
    char *dir = trainrun_new("  eval_interval: 10\n", "");
    const struct train_report r = trainrun_good(dir, "run", GO());
    cr_assert_eq(r.eval.step, 20);
    cr_assert(r.eval.targets > 0);
    const struct train_report e = trainrun_good(
        dir, "none", GO(.eval_only = tmpdir_path(dir, "run/step-000000020")));
    cr_assert_eq(e.eval.targets, r.eval.targets);
    cr_assert(memcmp(&e.eval.loss, &r.eval.loss, sizeof(double)) == 0, "%.17g, %.17g",
        e.eval.loss, r.eval.loss);
    cr_assert_float_eq(e.eval.perplexity, exp(e.eval.loss), 1e-9);
    cr_assert(
        access(tmpdir_path(dir, "none"), F_OK) != 0, "an evaluation made a run folder");
    tmpdir_remove(dir);
}

/* ---- what goes wrong -------------------------------------------------------------------------- */

static void refused(const char *dir, const char *run, struct train_options o,
    enum glm_code code, const char *words)
{
    struct train_report report;
    struct glm_error err = {0};
    trainrun_go(dir, run, o, NULL, NULL, &report, &err);
    cr_assert_eq(err.code, code, "code %d: %s", err.code, err.text);
    cr_assert(strstr(err.text, words), "'%s' is not in '%s'", words, err.text);
}

Test(loop, a_loss_that_is_no_number_names_the_first_weight_and_saves_nothing)
{
    struct glm_error err = {0};
    char *dir = trainrun_new("", "");
    trainrun_good(dir, "run", GO(.stop_after_seconds = 1e-9));
    /* A norm's weight is 1 now; with one more bit it is infinite. */
    reseal_flip(tmpdir_path(dir, "run/step-000000000"), SECTION_WEIGHT,
        "model.norm.weight", 3, 30, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    refused(dir, "run", GO(.resume = true), GLM_EMISMATCH, "step 1");
    refused(
        dir, "run", GO(.resume = true), GLM_EMISMATCH, "'model.norm.weight', element 3");
    cr_assert(trainrun_there(dir, "run", 0) && !trainrun_there(dir, "run", 5));
    tmpdir_remove(dir);
}

static void shrink(void *ctx, const char *path, double seconds, double waited)
{
    (void)path;
    (void)seconds;
    (void)waited;
    *(int *)ctx += 1;
    const struct rlimit small = {100000, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE,
        *(int *)ctx == 1 ? &small : &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
}

static void widen(void *ctx, const struct train_step *s)
{
    (void)ctx;
    if (s->step == 17)
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
}

static void count_notes(void *ctx, const char *sentence)
{
    if (strstr(sentence, "not saved")
        && strstr(sentence,
            "training goes on, the last good "
            "checkpoint is that of step 5"))
        *(int *)ctx += 1;
}

Test(loop, a_run_that_diverges_keeps_its_last_good_checkpoint)
{
    char *dir = trainrun_new(
        "  lr: 1e6\n  lr_warmup_iters: 0\n  save_interval: 1\n  clip_grad: 0\n", "");
    struct train_report report;
    struct glm_error err = {0};
    trainrun_go(dir, "run", GO(), NULL, NULL, &report, &err);
    cr_assert_eq(err.code, GLM_EMISMATCH, "code %d: %s", err.code, err.text);
    cr_assert(strstr(err.text, "gradient of ") || strstr(err.text, "weight that is")
            || strstr(err.text, "is not a finite number"),
        "%s", err.text);
    int64_t last = 0;
    while (trainrun_there(dir, "run", last + 1))
        last++;
    cr_assert(last >= 1 && last < 20);
    char word[32];
    snprintf(word, sizeof word, "step %lld", (long long)last + 1);
    cr_assert(strstr(err.text, word), "'%s' is not in '%s'", word, err.text);
    cr_assert(trainrun_print(dir, "run", last)[0] != '\0');
    tmpdir_remove(dir);
}

/* A weight that no number of this step shows. */
static int spoil(void *ctx, const struct state *s, const struct train_step *step,
    struct glm_error *err)
{
    (void)ctx;
    (void)err;
    for (int64_t i = 0; step != NULL && step->step == 10 && i < s->tensors.count; i++)
        if (s->tensors.list[i].section == SECTION_WEIGHT
            && strcmp(s->tensors.list[i].name, "model.embed_tokens.weight") == 0)
            ((float *)s->tensors.list[i].data)[48 * 95 + 7] = INFINITY;
    return 0;
}

Test(loop, a_state_with_a_weight_that_is_no_number_is_not_saved)
{
    char *dir = trainrun_new("", "  keep_last: 1\n");
    const struct train_watch watch = {.state = spoil};
    struct train_report report;
    struct glm_error err = {0};
    trainrun_go(dir, "run", GO(), &watch, NULL, &report, &err);
    cr_assert_eq(err.code, GLM_EMISMATCH, "code %d: %s", err.code, err.text);
    cr_assert(strstr(err.text, "step 10, nothing was saved") != NULL
            && strstr(err.text, "weight/model.embed_tokens.weight, element 4567") != NULL,
        "%s", err.text);
    cr_assert(trainrun_there(dir, "run", 5) && !trainrun_there(dir, "run", 10));
    trainrun_good(dir, "run", GO(.resume = true, .stop_at = 10));
    tmpdir_remove(dir);
}

Test(loop, an_adam_without_epsilon_is_refused)
{
    char *dir = trainrun_new("  optimizer: adam\n  adam_eps: 0\n", "");
    refused(dir, "run", GO(), GLM_EUSAGE, "adam_eps: 0");
    tmpdir_remove(dir);
}

Test(loop, a_disk_that_is_full_is_a_warning_and_training_goes_on)
{
    char *dir = trainrun_new("", "");
    int saves = 0, notes = 0;
    const struct train_watch watch = {.ctx = &saves, .saved = shrink, .step = widen};
    const struct glm_events events = {.ctx = &notes, .note = count_notes};
    struct train_report report;
    struct glm_error err = {0};
    signal(SIGXFSZ, SIG_IGN);
    trainrun_go(dir, "run", GO(), &watch, &events, &report, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    cr_assert_eq(notes, 2); /* of steps 10 and 15 */
    cr_assert_eq(saves, 2);
    cr_assert(trainrun_there(dir, "run", 5) && trainrun_there(dir, "run", 20));
    cr_assert(!trainrun_there(dir, "run", 10) && !trainrun_there(dir, "run", 15));
    cr_assert(access(tmpdir_path(dir, "run/step-000000010.partial"), F_OK) != 0);
    trainrun_good(dir, "whole", GO());
    same_bits(dir, "whole", "run", 20);
    tmpdir_remove(dir);
}

static void count_saves(void *ctx, const char *path, double seconds, double waited)
{
    (void)path;
    cr_assert(waited >= 0 && waited <= seconds);
    *(int *)ctx += 1;
}

Test(loop, checkpoints_written_beside_training_have_the_same_bits)
{
    static const char *const types[] = {"", "  bf16: true\n"};
    const int64_t last = brief() ? 8 : 20;
    for (int i = brief() ? 1 : 0; i < 2; i++) {
        char args[128];
        int saves = 0;
        const struct train_watch watch = {.ctx = &saves, .saved = count_saves};
        struct train_report report;
        struct glm_error err = {0};
        snprintf(args, sizeof args, "%s  save_interval: 1\n", types[i]);
        char *dir = trainrun_new(args, "  keep_last: 0\n");
        trainrun_good(dir, "waits", GO(.stop_at = last));
        snprintf(
            args, sizeof args, "%s  save_interval: 1\n  async_save: true\n", types[i]);
        trainrun_write(dir, args, "  keep_last: 0\n");
        trainrun_go(dir, "beside", GO(.stop_at = last), &watch, NULL, &report, &err);
        cr_assert(err.code == GLM_OK, "%s", err.text);
        cr_assert_eq(saves, last);
        for (int64_t step = 1; step <= last; step++)
            same_bits(dir, "waits", "beside", step);
        trainrun_good(dir, "again", GO(.stop_at = 7));
        trainrun_good(dir, "again", GO(.stop_at = last, .resume = true));
        same_bits(dir, "waits", "again", last);
        tmpdir_remove(dir);
    }
}

Test(loop, a_disk_that_is_full_beside_training_is_a_warning)
{
    char *dir = trainrun_new("  async_save: true\n", "");
    int saves = 0, notes = 0;
    const struct train_watch watch = {.ctx = &saves, .saved = shrink, .step = widen};
    const struct glm_events events = {.ctx = &notes, .note = count_notes};
    struct train_report report;
    struct glm_error err = {0};
    signal(SIGXFSZ, SIG_IGN);
    trainrun_go(dir, "run", GO(), &watch, &events, &report, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    cr_assert_geq(notes, 1);
    cr_assert(trainrun_there(dir, "run", 5) && trainrun_there(dir, "run", 20));
    trainrun_good(dir, "whole", GO());
    same_bits(dir, "whole", "run", 20);
    tmpdir_remove(dir);
}

Test(loop, one_folder_takes_one_run_at_a_time)
{
    char *dir = trainrun_new("", "");
    struct rundir other;
    struct glm_error err = {0};
    cr_assert(rundir_open(&other, tmpdir_path(dir, "run"), false, &err) == GLM_OK, "%s",
        err.text);
    refused(dir, "run", GO(), GLM_EUSAGE, "one run at a time");
    rundir_close(&other);
    trainrun_good(dir, "run", GO(.stop_at = 5));
    refused(dir, "run", GO(), GLM_EUSAGE, "--resume");
    tmpdir_remove(dir);
}

Test(loop, one_folder_of_metrics_takes_one_run_at_a_time)
{
    char *dir = trainrun_new("", ""), home[1024], save[1100], own[1100];
    struct rundir other;
    struct train_report report;
    struct glm_error err = {0};
    snprintf(home, sizeof home, "%s/home", dir);
    snprintf(save, sizeof save, "  save: %s/mine\n", dir);
    snprintf(own, sizeof own, "  run_dir: %s\n", home);
    trainrun_write(dir, save, own);
    cr_assert(rundir_open(&other, home, false, &err) == GLM_OK, "%s", err.text);
    struct recipe *r = trainrun_recipe(dir);
    train_run(r, &GO(.stop_at = 1), NULL, NULL, &report, &err);
    cr_assert_eq(err.code, GLM_EUSAGE, "code %d: %s", err.code, err.text);
    cr_assert(strstr(err.text, "home: one run at a time") != NULL, "%s", err.text);
    cr_assert(access(tmpdir_path(dir, "home/metrics.jsonl"), F_OK) != 0);
    rundir_close(&other);
    err = (struct glm_error){0};
    train_run(r, &GO(.stop_at = 1), NULL, NULL, &report, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    cr_assert(trainrun_there(dir, "mine", 1));
    cr_assert(access(tmpdir_path(dir, "home/metrics.jsonl"), F_OK) == 0);
    recipe_free(r);
    tmpdir_remove(dir);
}

Test(loop, a_run_goes_on_with_what_it_began_with)
{
    static const struct {
        const char *args, *glm, *words;
    } cases[] = {
        {"  seed: 8\n", "", "seed 7"},
        {"  mtp_loss_scaling_factor: 0.2\n", "", "mtp_loss_scaling_factor"},
        {"  bf16: true\n", "", "dtype F32"},
        {"  optimizer: muon\n", "", "'optimizer adam', this run has 'optimizer muon'"},
        {"  adam_beta2: 0.9\n", "", "adam_beta2"},
        {"  clip_grad: 2\n", "", "clip_grad"},
        {"  lr_warmup_init: 1e-5\n", "", "lr"},
        {"  split: \"70,30,0\"\n", "", "dataset"},
        {"  moe_router_bias_update_rate: 0.01\n", "", "moe_router_bias_update_rate"},
        {"", "  indexer_trainable: false\n", "indexer_loss"},
    };
    char *dir = trainrun_new("", "");
    trainrun_good(dir, "run", GO(.stop_at = 5));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trainrun_write(dir, cases[i].args, cases[i].glm);
        refused(dir, "run", GO(.resume = true), GLM_EUSAGE, cases[i].words);
    }
    tmpdir_remove(dir);
}

Test(loop, a_checkpoint_of_another_model_is_refused)
{
    char *dir = trainrun_new("", ""), *other = trainrun_new("", "");
    size_t size;
    trainrun_good(dir, "run", GO(.stop_at = 5));
    char *config = tmpdir_read(tmpdir_path(dir, "config.json"), &size);
    char *at = strstr(config, "\"routed_scaling_factor\": 2.5");
    at[strlen("\"routed_scaling_factor\": 2.")] = '0';
    tmpdir_write(tmpdir_path(dir, "config.json"), config, size);
    refused(dir, "run", GO(.resume = true), GLM_EUSAGE, "another model");
    free(config);
    tmpdir_remove(dir);
    tmpdir_remove(other);
}

Test(loop, what_a_killed_save_left_is_swept_and_no_checkpoint)
{
    char *dir = trainrun_new("", "");
    trainrun_good(dir, "run", GO(.stop_at = 5));
    tmpdir_write(tmpdir_path(dir, "run/metrics.jsonl.x"), "", 0);
    cr_assert(mkdir(tmpdir_path(dir, "run/step-000000010.partial"), 0777) == 0);
    tmpdir_write(tmpdir_path(dir, "run/step-000000010.partial/index.h5"), "half", 4);
    cr_assert(mkdir(tmpdir_path(dir, "run/step-000000003.removed"), 0777) == 0);
    const struct train_report r =
        trainrun_good(dir, "run", GO(.resume = true, .stop_at = 6));
    cr_assert_eq(r.first, 5);
    cr_assert(access(tmpdir_path(dir, "run/step-000000010.partial"), F_OK) != 0);
    cr_assert(access(tmpdir_path(dir, "run/step-000000003.removed"), F_OK) != 0);
    tmpdir_remove(dir);
}

Test(loop, a_checkpoint_under_another_steps_name_is_refused)
{
    char *dir = trainrun_new("", "");
    trainrun_good(dir, "run", GO(.stop_at = 5));
    cr_assert(rename(tmpdir_path(dir, "run/step-000000005"),
                  tmpdir_path(dir, "run/step-000000007"))
        == 0);
    refused(dir, "run", GO(.resume = true), GLM_EFORMAT, "holds step 5");
    tmpdir_remove(dir);
}
