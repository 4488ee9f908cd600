/* Fingerprints: from tile digests to tensors, sections and the checkpoint (spec/format.md C).
 *
 * They depend on content, table and nothing else: not on topology, encoding or file layout. The
 * digest of a stack is made of its members' fingerprints, which are those of the Hugging Face
 * tensors, so a checkpoint and a directory of safetensors files compare by digests alone. */
#include "ckpt/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"

static void seal_header(struct digest *d, const struct ckpt_tensor *t, int first_axis)
{
    char line[32];
    const char *const dtype = glm_dtype_name(t->dtype);
    digest_begin(d);
    digest_update(d, "glm.tensor.1\n", 13);
    digest_update(d, dtype, strlen(dtype));
    digest_update(d, "\n", 1);
    for (int i = first_axis; i < t->rank; i++) {
        const int n = snprintf(
            line, sizeof line, i == first_axis ? "%" PRId64 : " %" PRId64, t->shape[i]);
        digest_update(d, line, (size_t)n);
    }
    digest_update(d, "\n", 1);
}

/* tiles: the tensor's own rows. */
static void seal_tensor(struct digest *d, struct digest *member,
    const struct ckpt_tensor *t, const unsigned char *tiles,
    unsigned char out[DIGEST_SIZE])
{
    if (!t->stack) {
        seal_header(d, t, 0);
        digest_update(d, tiles, (size_t)tile_count(&t->grid) * DIGEST_SIZE);
        digest_end(d, out);
        return;
    }
    char line[32];
    unsigned char one[DIGEST_SIZE];
    const size_t bytes = (size_t)(t->grid.count[1] * t->grid.count[2]) * DIGEST_SIZE;
    const int n = snprintf(line, sizeof line, "%" PRId64 "\n", t->shape[0]);
    digest_begin(d);
    digest_update(d, "glm.stack.1\n", 12);
    digest_update(d, line, (size_t)n);
    for (int64_t e = 0; e < t->shape[0]; e++) {
        seal_header(member, t, 1);
        digest_update(member, tiles + (size_t)e * bytes, bytes);
        digest_end(member, one);
        digest_update(d, one, sizeof one);
    }
    digest_end(d, out);
}

static int seal_by_name(const void *a, const void *b)
{
    const struct ckpt_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Lines "name TAB hex LF" sorted by bytes. TAB is below every byte of a name, so sorting names sorts
 * lines. list: room for all tensors. fingerprints: one per tensor of m. */
static bool seal_section(struct digest *d, const struct manifest *m, enum ckpt_section s,
    const unsigned char (*fingerprints)[DIGEST_SIZE], const struct ckpt_tensor **list,
    unsigned char out[DIGEST_SIZE])
{
    int64_t n = 0;
    for (int64_t i = 0; i < m->tensor_count; i++)
        if (m->tensors[i].section == s)
            list[n++] = &m->tensors[i];
    if (n == 0)
        return false;
    qsort(list, (size_t)n, sizeof *list, seal_by_name);
    digest_begin(d);
    for (int64_t i = 0; i < n; i++) {
        char hex[DIGEST_HEX];
        digest_hex(fingerprints[list[i] - m->tensors], hex);
        digest_update(d, list[i]->name, strlen(list[i]->name));
        digest_update(d, "\t", 1);
        digest_update(d, hex, DIGEST_HEX - 1);
        digest_update(d, "\n", 1);
    }
    digest_end(d, out);
    return true;
}

/* The sections in the order of their lines' bytes. */
static const enum ckpt_section seal_order[SECTION_COUNT] = {SECTION_MASTER, SECTION_M,
    SECTION_MOMENTUM, SECTION_V, SECTION_TRAIN, SECTION_WEIGHT};

struct seal {
    unsigned char (*tensors)[DIGEST_SIZE];
    unsigned char sections[SECTION_COUNT][DIGEST_SIZE];
    bool present[SECTION_COUNT];
    unsigned char all[DIGEST_SIZE];
};

static void seal_all(struct seal *out, struct digest *d)
{
    digest_begin(d);
    for (int i = 0; i < SECTION_COUNT; i++) {
        const enum ckpt_section s = seal_order[i];
        char hex[DIGEST_HEX];
        if (!out->present[s])
            continue;
        digest_hex(out->sections[s], hex);
        digest_update(d, section_name(s), strlen(section_name(s)));
        digest_update(d, "\t", 1);
        digest_update(d, hex, DIGEST_HEX - 1);
        digest_update(d, "\n", 1);
    }
    digest_end(d, out->all);
}

bool manifest_trained(const struct manifest *m)
{
    bool any = false;
    for (int s = 0; s < SECTION_COUNT; s++)
        any = any || (s != SECTION_WEIGHT && m->section_present[s]);
    return any;
}

void manifest_weights_fingerprint(
    const struct manifest *m, unsigned char out[DIGEST_SIZE])
{
    char hex[DIGEST_HEX],
        line[DIGEST_HEX + 32]; /* the one line that seal_all would have */
    digest_hex(m->section_digest[SECTION_WEIGHT], hex);
    const int n =
        snprintf(line, sizeof line, "%s\t%s\n", section_name(SECTION_WEIGHT), hex);
    digest_of(line, (size_t)n, out);
}

/* Computes everything into *out; out->tensors is malloc'd. */
static int seal_compute(struct seal *out, const struct manifest *m,
    const unsigned char *tiles, struct glm_error *err)
{
    struct digest *const d = digest_new(), *const member = digest_new();
    const size_t n = (size_t)m->tensor_count;
    const struct ckpt_tensor **const list = malloc((n + 1) * sizeof(*list));
    memset(out, 0, sizeof *out);
    out->tensors = malloc((n + 1) * sizeof(*out->tensors));
    if (!d || !member || !list || !out->tensors) {
        glm_fail(err, GLM_ENOMEM, "out of memory for the fingerprints of %zu tensors", n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        const struct ckpt_tensor *const t = &m->tensors[i];
        seal_tensor(
            d, member, t, tiles + (size_t)t->first_tile * DIGEST_SIZE, out->tensors[i]);
    }
    for (int s = 0; s < SECTION_COUNT; s++)
        out->present[s] = seal_section(d, m, (enum ckpt_section)s,
            (const unsigned char(*)[DIGEST_SIZE])out->tensors, list, out->sections[s]);
    seal_all(out, d);
out:
    free(list);
    digest_free(d);
    digest_free(member);
    return err->code;
}

int manifest_seal(struct manifest *m, const unsigned char *tiles, struct glm_error *err)
{
    struct seal s;
    if (seal_compute(&s, m, tiles, err) == 0) {
        for (int64_t i = 0; i < m->tensor_count; i++)
            memcpy(m->tensors[i].fingerprint, s.tensors[i], DIGEST_SIZE);
        memcpy(m->section_digest, s.sections, sizeof s.sections);
        memcpy(m->section_present, s.present, sizeof s.present);
        memcpy(m->fingerprint, s.all, DIGEST_SIZE);
    }
    free(s.tensors);
    return err->code;
}

int manifest_check(
    const struct manifest *m, const unsigned char *tiles, struct glm_error *err)
{
    struct seal s;
    if (seal_compute(&s, m, tiles, err) != 0)
        goto out;
    for (int64_t i = 0; i < m->tensor_count; i++)
        if (memcmp(m->tensors[i].fingerprint, s.tensors[i], DIGEST_SIZE) != 0) {
            glm_fail(err, GLM_EFORMAT,
                "tile table: tensor '%s' of section %s: its tile digests do"
                " not give the fingerprint that the manifest records",
                m->tensors[i].name, section_name(m->tensors[i].section));
            goto out;
        }
    for (int i = 0; i < SECTION_COUNT; i++)
        if (s.present[i] != m->section_present[i]
            || (s.present[i]
                && memcmp(m->section_digest[i], s.sections[i], DIGEST_SIZE) != 0)) {
            glm_fail(err, GLM_EFORMAT,
                "manifest: the digest of section %s is not that of its"
                " tensors",
                section_name((enum ckpt_section)i));
            goto out;
        }
    if (memcmp(m->fingerprint, s.all, DIGEST_SIZE) != 0)
        glm_fail(
            err, GLM_EFORMAT, "manifest: the fingerprint is not that of its sections");
out:
    free(s.tensors);
    return err->code;
}
