/* The training state as a checkpoint: stored bit for bit, whole or absent, refused by name. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "tests/support/reseal.h"
#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"
#include "tests/support/trainrun.h"
#include "train/trainer.h"

/* Every byte of the state gets a value of its own: numbers where a type cannot hold all bits. */
static void scramble(struct trainer *t, uint64_t seed)
{
    struct state *const s = &t->state;
    struct glm_error err = {0};
    for (int64_t i = 0; i < s->tensors.count; i++) {
        const struct train_tensor *const x = &s->tensors.list[i];
        if (x->section == SECTION_TRAIN || x->derived)
            continue;
        for (int64_t k = 0; k < tensors_elements(x); k++) {
            const uint32_t bits = (uint32_t)rng_mix(seed++) & 0xBF7FFFFF;
            memcpy((char *)x->data + k * 4, &bits, sizeof bits);
        }
    }
    for (int64_t i = 0; i < t->params->count; i++)
        params_round(t->params, i, &err);
    s->step = 12345;
    s->samples = 49380;
    s->tokens = INT64_C(1) << 40;
    s->position = 49380;
}

static size_t bytes_of(const struct train_tensor *x)
{
    return (size_t)tensors_elements(x) * glm_dtype_size(x->dtype);
}

static void open_trainer(struct trainer *t, struct recipe *r)
{
    struct glm_error err = {0};
    trainer_open(t, r, &(struct trainer_options){.threads = 1, .train = true}, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
}

static void save_by(
    struct trainer *t, const char *path, struct topology topology, int threads)
{
    struct glm_error err = {0};
    const struct state_save o = {
        .path = path, .topology = &topology, .origin = &t->origin, .threads = threads};
    state_save(&t->state, &o, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
}

static void save_at(struct trainer *t, const char *path, struct topology topology)
{
    save_by(t, path, topology, 2);
}

static void round_trip(const char *args, struct topology topology)
{
    char *dir = trainrun_new(args, "");
    struct recipe *r = trainrun_recipe(dir);
    struct trainer a, b;
    struct glm_error err = {0};
    open_trainer(&a, r);
    open_trainer(&b, r);
    cr_assert(trainer_start(&a, &err) == GLM_OK, "%s", err.text);
    scramble(&a, 1);
    save_at(&a, tmpdir_path(dir, "ckpt"), topology);
    scramble(&b, 1000000);
    b.state.step = 1;
    cr_assert(trainer_resume(&b, tmpdir_path(dir, "ckpt"), NULL, &err) == GLM_OK, "%s",
        err.text);
    cr_assert_eq(a.state.tensors.count, b.state.tensors.count);
    for (int64_t i = 0; i < a.state.tensors.count; i++) {
        const struct train_tensor *const x = &a.state.tensors.list[i],
                                         *const y = &b.state.tensors.list[i];
        cr_assert_str_eq(x->name, y->name);
        if (strcmp(x->name, "optimizer_steps") != 0)
            cr_assert(memcmp(x->data, y->data, bytes_of(x)) == 0, "%s/%s differs",
                section_name(x->section), x->name);
    }
    trainer_close(&a);
    trainer_close(&b);
    recipe_free(r);
    tmpdir_remove(dir);
}

Test(state, comes_back_bit_for_bit)
{
    round_trip("  optimizer: muon\n", (struct topology){0});
    round_trip("  optimizer: muon\n  bf16: true\n", (struct topology){0});
    round_trip("  bf16: true\n", (struct topology){.tp = 2, .pp = 2, .ep = 2});
    round_trip("  optimizer: muon\n", (struct topology){.tp = 2, .pp = 3, .ep = 4});
}

Test(state, has_the_same_files_from_any_number_of_threads)
{
    char *dir = trainrun_new("  optimizer: muon\n  bf16: true\n", "");
    struct recipe *r = trainrun_recipe(dir);
    const struct topology topology = {.tp = 2, .pp = 2, .ep = 2};
    struct glm_error err = {0};
    struct trainer t;
    open_trainer(&t, r);
    cr_assert(trainer_start(&t, &err) == GLM_OK, "%s", err.text);
    scramble(&t, 1);
    save_by(&t, tmpdir_path(dir, "one"), topology, 1);
    save_by(&t, tmpdir_path(dir, "four"), topology, 4);
    cr_expect_eq(tmpdir_differ(tmpdir_path(dir, "one"), tmpdir_path(dir, "four")), 0);
    trainer_close(&t);
    recipe_free(r);
    tmpdir_remove(dir);
}

/* One bit of a master weight on the disk; its digest is not told. */
static void damage(const char *ckpt)
{
    struct glm_error err = {0};
    struct reader *r;
    char path[512];
    unsigned char byte;
    cr_assert(reader_open(&r, ckpt, &err) == GLM_OK, "%s", err.text);
    const struct manifest *const m = reader_manifest(r);
    const int64_t i = manifest_find(m, SECTION_MASTER, "model.embed_tokens.weight");
    cr_assert_geq(i, 0);
    const struct ckpt_piece *const p = &m->pieces[m->tensors[i].first_piece];
    snprintf(path, sizeof path, "%s/%s", ckpt, m->shards[p->shard].file);
    const int fd = open(path, O_RDWR);
    cr_assert_eq(pread(fd, &byte, 1, (off_t)p->offset), 1);
    byte ^= 1;
    cr_assert_eq(pwrite(fd, &byte, 1, (off_t)p->offset), 1);
    close(fd);
    reader_close(r);
}

Test(state, is_verified_as_it_is_loaded_unless_the_recipe_says_no)
{
    static const char *const said[] = {
        "", "  verify_load: true\n", "  verify_load: false\n"};
    char *dir = trainrun_new("  bf16: true\n", "");
    trainrun_good(dir, "run", (struct train_options){.stop_at = 5});
    damage(tmpdir_path(dir, "run/step-000000005"));
    for (int i = 0; i < 3; i++) {
        struct glm_error err = {0};
        trainrun_write(dir, "  bf16: true\n", said[i]);
        struct recipe *r = trainrun_recipe(dir);
        struct trainer t;
        open_trainer(&t, r);
        const int code =
            trainer_resume(&t, tmpdir_path(dir, "run/step-000000005"), NULL, &err);
        cr_expect_eq(code, i < 2 ? GLM_EFORMAT : GLM_OK, "%s: %s", said[i], err.text);
        cr_expect(
            i == 2 || strstr(err.text, "'model.embed_tokens.weight' (master), tile 0"),
            "%s", err.text);
        trainer_close(&t);
        recipe_free(r);
    }
    tmpdir_remove(dir);
}

/* What else a checkpoint says of itself. */
Test(state, carries_configuration_recipe_and_provenance)
{
    char *dir = trainrun_new("  bf16: true\n", "");
    trainrun_good(dir, "run", (struct train_options){.stop_at = 5});
    struct glm_error err = {0};
    struct reader *r;
    cr_assert(reader_open(&r, tmpdir_path(dir, "run/step-000000005"), &err) == 0, "%s",
        err.text);
    const struct index *ix = reader_index(r);
    struct recipe *recipe = trainrun_recipe(dir);
    char hex[DIGEST_HEX];
    void *text;
    cr_assert(
        index_file(ix, index_find_file(ix, "recipe.yaml", false), &text, &err) == GLM_OK);
    cr_assert_str_eq(text, recipe->text);
    free(text);
    cr_assert(
        index_file(ix, index_find_file(ix, "config.json", false), &text, &err) == GLM_OK);
    cr_assert_str_eq(text, recipe->config_text);
    free(text);
    digest_hex(recipe->sha256, hex);
    bool said = false;
    for (int64_t i = 0; i < ix->manifest->prov_count; i++)
        said |= strcmp(ix->manifest->prov[i].key, "recipe-sha256") == 0
            && strcmp(ix->manifest->prov[i].value, hex) == 0;
    cr_assert(said);
    int64_t derived = 0;
    for (int64_t i = 0; i < ix->manifest->tensor_count; i++) {
        const struct ckpt_tensor *t = &ix->manifest->tensors[i];
        if (t->section == SECTION_WEIGHT && t->dtype == GLM_BF16)
            cr_assert(t->derived, "%s is stored beside its master", t->name);
        derived += t->derived;
        if (t->entry != NULL && t->entry->optimizer == OPT_ROUTER_BIAS)
            cr_assert_eq(t->dtype, GLM_F32);
    }
    cr_assert(derived > 50);
    reader_close(r);
    recipe_free(recipe);
    tmpdir_remove(dir);
}

/* A run from a checkpoint passes on its files and names it as the parent, over any restarts. */
Test(state, of_a_run_names_the_checkpoint_it_began_with)
{
    char *dir = trainrun_new("", ""), glm[1200];
    trainrun_good(dir, "first", (struct train_options){.stop_at = 5});
    snprintf(glm, sizeof glm, "  load: %s/first/step-000000005\n", dir);
    size_t size;
    trainrun_write(dir, "", glm);
    char *text = tmpdir_read(tmpdir_path(dir, "recipe.yaml"), &size);
    char *model = strstr(text, "  model:");
    memmove(model, strchr(model, '\n') + 1, strlen(strchr(model, '\n') + 1) + 1);
    tmpdir_write(tmpdir_path(dir, "recipe.yaml"), text, strlen(text));
    free(text);
    trainrun_good(dir, "whole", (struct train_options){.stop_at = 10});
    trainrun_good(dir, "cut", (struct train_options){.stop_at = 5});
    trainrun_good(dir, "cut", (struct train_options){.stop_at = 10, .resume = true});
    cr_assert_eq(tmpdir_differ(tmpdir_path(dir, "whole/step-000000010"),
                     tmpdir_path(dir, "cut/step-000000010")),
        0);
    struct glm_error err = {0};
    struct reader *parent, *child;
    char hex[DIGEST_HEX];
    reader_open(&parent, tmpdir_path(dir, "first/step-000000005"), &err);
    reader_open(&child, tmpdir_path(dir, "cut/step-000000010"), &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    digest_hex(reader_manifest(parent)->id, hex);
    bool said = false;
    for (int64_t i = 0; i < reader_manifest(child)->prov_count; i++)
        said |= strcmp(reader_manifest(child)->prov[i].key, "parent-id") == 0
            && strcmp(reader_manifest(child)->prov[i].value, hex) == 0;
    cr_assert(said);
    reader_close(parent);
    reader_close(child);
    tmpdir_remove(dir);
}

Test(state, digests_are_those_of_the_checkpoint)
{
    char *dir = trainrun_new("  bf16: true\n  optimizer: muon\n", "");
    struct recipe *r = trainrun_recipe(dir);
    struct trainer t;
    struct glm_error err = {0};
    open_trainer(&t, r);
    cr_assert(trainer_start(&t, &err) == GLM_OK, "%s", err.text);
    scramble(&t, 5);
    save_at(&t, tmpdir_path(dir, "ckpt"), (struct topology){.tp = 2});
    struct index *ix;
    cr_assert(index_open(&ix, tmpdir_path(dir, "ckpt"), &err) == GLM_OK, "%s", err.text);
    for (int64_t i = 0; i < t.state.tensors.count; i++) {
        const struct train_tensor *const x = &t.state.tensors.list[i];
        const int64_t n = state_tiles(x),
                      at = manifest_find(ix->manifest, x->section, x->name);
        unsigned char *digests = malloc((size_t)n * DIGEST_SIZE + 1);
        cr_assert_eq(state_hash(x, digests, &err), GLM_OK);
        cr_assert(memcmp(digests,
                      ix->tiles + ix->manifest->tensors[at].first_tile * DIGEST_SIZE,
                      (size_t)n * DIGEST_SIZE)
                == 0,
            "%s/%s", section_name(x->section), x->name);
        free(digests);
    }
    index_close(ix);
    trainer_close(&t);
    recipe_free(r);
    tmpdir_remove(dir);
}

Test(state, of_other_features_is_refused_by_their_line)
{
    char *dir = trainrun_new("", "");
    struct recipe *r = trainrun_recipe(dir);
    struct trainer t;
    struct glm_error err = {0};
    trainrun_good(dir, "run", (struct train_options){.stop_at = 5});
    open_trainer(&t, r);
    reseal_flip(
        tmpdir_path(dir, "run/step-000000005"), SECTION_TRAIN, "features", 2, 0, &err);
    cr_assert(err.code == GLM_OK, "%s", err.text);
    trainer_resume(&t, tmpdir_path(dir, "run/step-000000005"), NULL, &err);
    cr_assert_eq(err.code, GLM_EUSAGE);
    cr_assert(strstr(err.text, "was trained with"), "%s", err.text);
    trainer_close(&t);
    recipe_free(r);
    tmpdir_remove(dir);
}
