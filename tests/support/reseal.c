/* The reshard's own path with a source that lies about one bit. */
#include "tests/support/reseal.h"

#include <stdio.h>
#include <string.h>

#include "convert/build.h"
#include "tests/support/tmpdir.h"

struct liar {
    struct flow_source truth;
    int64_t tensor, element;
    int bit;
};

static int read_changed(void *ctx, int64_t tensor, const struct rect *at,
    struct dio_buffer *buf, unsigned char **data, unsigned char *digests, bool *known,
    struct flow_thread *thread, struct glm_error *err)
{
    const struct liar *l = ctx;

    if (l->truth.read(l->truth.ctx, tensor, at, buf, data, digests, known, thread, err)
            != GLM_OK
        || tensor != l->tensor)
        return (int)err->code;
    const struct ckpt_tensor *t = &l->truth.m->tensors[tensor];
    const int64_t *d = t->grid.dims;
    const int64_t c = l->element % d[2], r = l->element / d[2] % d[1],
                  e = l->element / d[2] / d[1];
    *known = false;
    if (e < at->lo[0] || e >= at->hi[0] || r < at->lo[1] || r >= at->hi[1]
        || c < at->lo[2] || c >= at->hi[2])
        return GLM_OK;
    const int64_t i =
        ((e - at->lo[0]) * rect_len(at, 1) + r - at->lo[1]) * rect_len(at, 2) + c
        - at->lo[2];
    (*data)[(size_t)i * glm_dtype_size(t->dtype) + (size_t)l->bit / 8] ^=
        (unsigned char)(1 << l->bit % 8);
    return GLM_OK;
}

int reseal_flip(const char *ckpt, enum ckpt_section section, const char *tensor,
    int64_t element, int bit, struct glm_error *err)
{
    char out[1024];
    struct ckpt_source c = {.verify = true};
    struct build b = {0};
    struct convert_report report = {0};
    const struct target_form same = {.same = true};

    snprintf(out, sizeof out, "%s.changed", ckpt);
    if (reader_open(&c.reader, ckpt, err) != GLM_OK)
        return (int)err->code;
    const struct manifest *m = reader_manifest(c.reader);
    struct liar l = {.truth = ckpt_flow_source(&c),
        .tensor = manifest_find(m, section, tensor),
        .element = element,
        .bit = bit};
    if (l.tensor < 0) {
        glm_fail(
            err, GLM_EUSAGE, "%s: has no %s/%s", ckpt, section_name(section), tensor);
        goto out;
    }
    const struct flow_source source = {.m = m, .ctx = &l, .read = read_changed};
    const struct build_run run = {.out = out, .verb = "reseal", .threads = 1};
    if (build_config(&b, c.reader, err) != GLM_OK
        || build_begin(&b, "reseal", err) != GLM_OK
        || build_table(&b, ckpt, m->without_mtp, err) != GLM_OK
        || target_manifest(&b.m, m, b.table, &same, false, err) != GLM_OK
        || build_inherit(&b, c.reader, true, err) != GLM_OK
        || build_place(&b, placement_topology(m->placement), ENC_PLAIN, 0, err) != GLM_OK
        || build_run(&b, &source, &run, &report, NULL, NULL, err) != GLM_OK)
        goto out;
    tmpdir_remove(strdup(ckpt));
    if (rename(out, ckpt) != 0)
        glm_fail_errno(err, "%s: rename to %s", out, ckpt);
out:
    build_clear(&b);
    reader_close(c.reader);
    return (int)err->code;
}
