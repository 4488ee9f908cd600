/* What the tests of hfdir share: the T1 toy in a folder of its own, made wrong through `edit`,
 * then opened, or refused with a sentence. */
#ifndef TESTS_CONVERT_HFCASE_H
#define TESTS_CONVERT_HFCASE_H

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "convert/hfdir.h"
#include "tests/support/hfedit.h"
#include "tests/support/tmpdir.h"
#include "tests/support/toy.h"

#define INDEX "model.safetensors.index.json"

static char *dir;
static struct hfedit edit;

/* The T1 toy, headers only, in four files. */
static inline void make_form(enum toy_form form)
{
    const struct toy_options o = {.config = "fixtures/configs/t1.json",
        .files = 4,
        .form = form,
        .block = {16, 16},
        .sparse = true};
    dir = tmpdir_new();
    cr_assert_eq(toy_write(dir, &o), 0, "%s", toy_error());
    hfedit_load(&edit, dir);
}

static inline void make(void)
{
    make_form(TOY_PLAIN);
}

static inline void done(void)
{
    hfedit_clear(&edit);
    tmpdir_remove(dir);
}

static inline struct hf_source *open_with(const struct hf_options *o)
{
    struct hf_source *s;
    struct glm_error err = {0};
    cr_assert_eq(hfdir_open(&s, dir, o, &err), 0, "%s", err.text);
    return s;
}

static inline struct hf_source *opens(void)
{
    return open_with(&(struct hf_options){.threads = 2});
}

static inline void fails_with(
    const struct hf_options *o, enum glm_code code, const char *a, const char *b)
{
    struct hf_source *s;
    struct glm_error err = {0};
    cr_assert_eq(
        (int)hfdir_open(&s, dir, o, &err), (int)code, "code %d: %s", err.code, err.text);
    cr_assert_null(s);
    cr_assert(strstr(err.text, a), "wanted '%s', got '%s'", a, err.text);
    cr_assert(strstr(err.text, b), "wanted '%s', got '%s'", b, err.text);
}

static inline void refused(const char *a, const char *b)
{
    fails_with(&(struct hf_options){.threads = 2}, GLM_EFORMAT, a, b);
}

static inline void unusable(const int *layers, int layer_count, const int *experts,
    int expert_count, const char *sentence)
{
    fails_with(
        &(struct hf_options){.subset = {layers, layer_count, experts, expert_count}},
        GLM_EUSAGE, sentence, "");
}

static inline const char *file_of(const struct hfedit *h, const char *name)
{
    return h->files[h->tensors[hfedit_find(h, name)].file];
}

/* A file other than the tensor's. */
static inline const char *other_than(const struct hfedit *h, const char *name)
{
    return h->files[(h->tensors[hfedit_find(h, name)].file + 1) % h->file_count];
}

/* The place of a tensor by its own name in the source's headers. */
static inline void at_name(
    const struct hf_source *s, const struct hf_place *p, const char *name, uint64_t plus)
{
    cr_assert_geq(p->file, 0, "%s has no place", name);
    const struct st_header *h = &s->files[p->file].header;
    const struct st_tensor *t = st_find(h, name, strlen(name));
    cr_assert_not_null(t, "%s is not in %s", name, s->files[p->file].name);
    cr_assert_eq(p->offset, h->data_start + t->begin + plus, "%s", name);
    cr_assert_eq(p->dtype, t->dtype);
}

static inline bool warned(const struct hf_source *s, const char *sentence)
{
    for (int i = 0; i < s->warning_count; i++)
        if (strstr(s->warnings[i], sentence))
            return true;
    return false;
}

#define EXPERT "model.layers.1.mlp.experts.10.down_proj.weight"
#define KV_A "model.layers.2.self_attn.kv_a_proj_with_mqa.weight"

#endif
