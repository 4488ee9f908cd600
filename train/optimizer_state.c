/* The optimizer in a checkpoint: moments, step counts, and the options they were made with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/optimizer_inside.h"

enum { MAX_TEXT = 1 << 20 };

/* ---- options as text -------------------------------------------------------------------------- */

static void layout_lines(FILE *f, const struct optimizer_options *o)
{
    static const char *const policies[] = {"each", "gathered", "adamw"};

    for (int i = 0; i < o->layouts; i++) {
        const struct muon_layout *l = &o->layout[i];
        fprintf(f, "muon_layout %s", l->pattern);
        for (int k = 0; k < l->parts; k++)
            fprintf(f, " %lld %s", (long long)l->rows[k], policies[l->policy[k]]);
        if (l->parts == 0)
            fprintf(f, " %s", l->policy[0] == MUON_ADAMW ? "adamw" : "whole");
        fprintf(f, "\n");
    }
    for (int i = 0; i < o->no_decays; i++)
        fprintf(f, "no_decay %s\n", o->no_decay[i]);
}

char *optimizer_text(const struct optimizer_options *o, size_t *size)
{
    static const char *const sets[] = {"quintic", "simple", "deepseekv4"};
    static const char *const scales[] = {"spectral", "shape_scaling", "unit_rms"};
    double unused[MUON_STEPS][3];
    char *text = NULL;
    FILE *f = open_memstream(&text, size);

    if (f == NULL)
        return NULL;
    fprintf(f, "muon_momentum %.17g\nmuon_momentum_form ema\nmuon_nesterov %d\n",
        o->muon_momentum, o->muon_nesterov);
    fprintf(f, "muon_coefficient_type %s\nmuon_num_ns_steps %d\nmuon_scale_mode %s\n",
        sets[o->muon_coefficients], muon_coefficient_list(o, unused),
        scales[o->muon_scale]);
    fprintf(f, "muon_extra_scale_factor %.17g\nmuon_low_precision %d\n",
        o->muon_extra_scale, o->muon_low_precision);
    fprintf(f, "adam_beta1 %.17g\nadam_beta2 %.17g\nadam_eps %.17g\n", o->adam_beta1,
        o->adam_beta2, o->adam_eps);
    fprintf(f, "decay_vectors %d\nclip_grad %.17g\nmtp_detach_heads %d\n",
        o->decay_vectors, o->clip, o->mtp_apart);
    fprintf(f, "moe_router_bias_update_rate %.17g\nbias_fp32_count %d\n", o->bias_rate,
        o->bias_fp32_count);
    layout_lines(f, o);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static int line_length(const char *text, size_t size)
{
    const char *end = memchr(text, '\n', size);
    return (int)(end != NULL ? end - text : (int64_t)size);
}

/* Names the first line that differs. */
static int compare_text(
    const struct optimizer *o, const char *stored, size_t size, struct glm_error *err)
{
    const char *own = o->text;
    size_t left = o->text_size;

    while (left > 0 || size > 0) {
        const int a = line_length(stored, size), b = line_length(own, left);
        if (a != b || memcmp(stored, own, (size_t)a) != 0)
            return glm_fail(err, GLM_EUSAGE,
                "optimizer: '%.*s' in the checkpoint, '%.*s' here; a run goes on with "
                "the options "
                "it began with",
                a > 200 ? 200 : a, stored, b > 200 ? 200 : b, own);
        const size_t step_a = (size_t)a + ((size_t)a < size),
                     step_b = (size_t)b + ((size_t)b < left);
        stored += step_a;
        size -= step_a;
        own += step_b;
        left -= step_b;
    }
    return 0;
}

/* ---- tensors ---------------------------------------------------------------------------------- */

static int add_section(struct optimizer *o, enum ckpt_section s, struct train_tensors *t,
    struct glm_error *err)
{
    for (int64_t i = 0; i < o->p->count; i++) {
        const bool here = o->group[i] >= 0 && o->plan[i].muon == (s == SECTION_MOMENTUM);
        void *data = s == SECTION_V ? o->moments[i].v : o->moments[i].m;
        if (here
            && tensors_add_entry(
                   t, s, o->p->p[i].entry, o->p->acc, data, &o->p->home, false, err)
                != 0)
            return err->code;
    }
    return 0;
}

static struct train_tensor steps_tensor(const struct optimizer *o)
{
    return (struct train_tensor){.section = SECTION_TRAIN,
        .name = "optimizer_steps",
        .dtype = GLM_I64,
        .rank = 1,
        .shape = {o->p->count},
        .data = o->steps};
}

static struct train_tensor text_tensor(char *text, size_t size)
{
    return (struct train_tensor){.section = SECTION_TRAIN,
        .name = "optimizer",
        .dtype = GLM_U8,
        .rank = 1,
        .shape = {(int64_t)size},
        .data = text};
}

int optimizer_state(struct optimizer *o, struct train_tensors *t, struct glm_error *err)
{
    const struct train_tensor text = text_tensor(o->text, o->text_size),
                              steps = steps_tensor(o);

    if (add_section(o, SECTION_M, t, err) != 0 || add_section(o, SECTION_V, t, err) != 0
        || add_section(o, SECTION_MOMENTUM, t, err) != 0
        || tensors_add(t, &text, err) != 0)
        return err->code;
    return tensors_add(t, &steps, err);
}

static int check_text(const struct optimizer *o, struct reader *r, struct glm_error *err)
{
    const struct manifest *m = reader_manifest(r);
    const int64_t at = manifest_find(m, SECTION_TRAIN, "optimizer");
    char *stored = NULL;

    if (at < 0)
        return glm_fail(err, GLM_EFORMAT,
            "train/optimizer: not in the checkpoint, which has no optimizer state of "
            "this program");
    const struct ckpt_tensor *c = &m->tensors[at];
    if (c->rank != 1 || c->shape[0] > MAX_TEXT)
        return glm_fail(err, GLM_EFORMAT,
            "train/optimizer: %d dimensions, expected a text of at "
            "most %d bytes",
            c->rank, MAX_TEXT);
    if ((stored = malloc((size_t)c->shape[0] + 1)) == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory to read train/optimizer");
    const struct train_tensor t = text_tensor(stored, (size_t)c->shape[0]);
    if (tensors_read(&t, r, false, err) == 0)
        compare_text(o, stored, (size_t)c->shape[0], err);
    free(stored);
    return err->code;
}

/* A tensor's moments join the list, or are zeros if the checkpoint's run did not train it. */
static int load_one(struct optimizer *o, struct reader *r, const struct train_tensor *t,
    int64_t i, struct train_tensors *there, struct glm_error *err)
{
    if (tensors_there(r, t->section, t->name))
        return tensors_add(there, t, err);
    if (o->steps[i] != 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s/%s: not in the checkpoint although it has had %lld updates",
            section_name(t->section), t->name, (long long)o->steps[i]);
    return home_zero(
        t->home, t->data, (size_t)tensors_elements(t) * glm_dtype_size(t->dtype), err);
}

int optimizer_load(struct optimizer *o, struct reader *r, struct glm_error *err)
{
    const struct train_tensor steps = steps_tensor(o);
    struct train_tensors t = {0}, there = {0};

    if (check_text(o, r, err) != 0 || tensors_read(&steps, r, false, err) != 0)
        return err->code;
    for (int64_t i = 0; i < o->p->count; i++) {
        if (o->steps[i] < 0)
            return glm_fail(err, GLM_EFORMAT, "train/optimizer_steps: %lld for %s",
                (long long)o->steps[i], o->p->p[i].entry->name);
        if (o->group[i] < 0)
            o->steps[i] = 0; /* frozen: its moments end here */
    }
    if (optimizer_state(o, &t, err) == 0)
        for (int64_t k = 0; err->code == GLM_OK && k < t.count; k++)
            if (t.list[k].entry != NULL)
                load_one(o, r, &t.list[k], t.list[k].entry - o->p->table->entries, &there,
                    err);
    if (err->code == GLM_OK)
        tensors_read_all(&there, r, false, o->p->options.threads, err);
    tensors_clear(&there);
    tensors_clear(&t);
    return err->code;
}
