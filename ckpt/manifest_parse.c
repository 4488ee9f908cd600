/* The manifest's text, read as hostile input.
 *
 * Only the canonical form is accepted: fixed order, decimal without leading zeros, nothing twice, so
 * a manifest that parses prints back to the same bytes. Memory is bounded by the text's size (arrays
 * are counted before they are made) and time by n log n. What a number claims about a file is checked
 * against the length the same text gives for that file; the readers check the length itself. */
#include "ckpt/manifest_parse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"

/* ---- head ----------------------------------------------------------------------------------- */

static int parse_mtp(struct parse *p, bool *without)
{
    if (!parse_field_is(&p->f[3], "mtp")
        || (!parse_field_is(&p->f[4], "yes") && !parse_field_is(&p->f[4], "no")))
        return parse_fail(p, "model: expected 'mtp yes' or 'mtp no'");
    *without = parse_field_is(&p->f[4], "no");
    return 0;
}

static int parse_version(struct parse *p)
{
    if (!parse_next(p) || !parse_field_is(&p->f[0], "glm-manifest 1") || p->fields != 1)
        return parse_fail(p, "expected 'glm-manifest 1'");
    parse_next(p);
    return parse_line_of(p, "model", 5);
}

static int parse_model(struct parse *p)
{
    unsigned char sha[DIGEST_SIZE];
    if (parse_version(p) != 0 || parse_digest(p, 2, sha) != 0
        || parse_mtp(p, &p->m->without_mtp) != 0)
        return p->err->code;
    if (!parse_field_is(&p->f[1], p->table->config.model_type))
        return parse_fail(p, "model '%.*s', but config.json says '%s'",
            (int)(p->f[1].length < 60 ? p->f[1].length : 60), p->f[1].text,
            p->table->config.model_type);
    if (memcmp(sha, p->table->config.sha256, DIGEST_SIZE) != 0)
        return parse_fail(p, "model: the SHA-256 of config.json is another");
    return 0;
}

static int parse_axis(struct parse *p, int i, const char *name, int *out)
{
    int64_t v = 0;
    if (!parse_field_is(&p->f[i], name))
        return parse_fail(p, "topology: expected '%s'", name);
    if (parse_i64(p, i + 1, name, &v) != 0)
        return p->err->code;
    if (v < 1 || v > 65536)
        return parse_fail(p, "topology: %s %" PRId64 ", expected 1 to 65536", name, v);
    *out = (int)v;
    return 0;
}

static int parse_topology(struct parse *p)
{
    struct topology t = {0};
    parse_next(p);
    if (parse_line_of(p, "topology", 13) != 0 || parse_axis(p, 1, "tp", &t.tp) != 0
        || parse_axis(p, 3, "pp", &t.pp) != 0 || parse_axis(p, 5, "vpp", &t.vpp) != 0
        || parse_axis(p, 7, "ep", &t.ep) != 0 || parse_axis(p, 9, "etp", &t.etp) != 0)
        return p->err->code;
    if (!parse_field_is(&p->f[11], "layout") || p->f[12].length >= sizeof t.layout
        || memchr(p->f[12].text, '\0', p->f[12].length))
        return parse_fail(p, "topology: expected 'layout' and its string");
    memcpy(t.layout, p->f[12].text, p->f[12].length);
    if (placement_init(&p->m->placement, p->table, &t, p->err) != 0) {
        if (p->err->code == GLM_EUSAGE) /* asked for by a file, not by the command line */
            p->err->code = GLM_EFORMAT;
        return glm_within(p->err, "%s: manifest, line %" PRId64, p->path, p->line);
    }
    if (strcmp(placement_topology(p->m->placement)->layout, t.layout) != 0)
        return parse_fail(p, "topology: layout '%s', the canonical form is '%s'",
            t.layout, placement_topology(p->m->placement)->layout);
    return 0;
}

/* ---- shards --------------------------------------------------------------------------------- */

/* Three or more digits after a letter: "p012". Moves *s. */
static bool name_number(const char **s, char letter, int digits, int *out)
{
    const char *c = *s;
    int64_t v = 0;
    int n = 0;
    if (letter && *c++ != letter)
        return false;
    for (; *c >= '0' && *c <= '9' && n < 9; c++, n++)
        v = v * 10 + (*c - '0');
    if (n < digits || (n > digits && (*s)[letter ? 1 : 0] == '0'))
        return false;
    *out = (int)v;
    *s = c;
    return true;
}

/* "shard-p000-t000-0000.h5" or "shard-p000-e000-t000-0000.h5" -> cell and volume. */
static bool parse_shard_name(const char *name, struct cell *c, int *volume)
{
    memset(c, 0, sizeof *c);
    if (strncmp(name, "shard-", 6) != 0)
        return false;
    name += 6;
    if (!name_number(&name, 'p', 3, &c->pp) || *name++ != '-')
        return false;
    c->expert = *name == 'e';
    if (c->expert && (!name_number(&name, 'e', 3, &c->ep) || *name++ != '-'))
        return false;
    if (!name_number(&name, 't', 3, c->expert ? &c->etp : &c->tp) || *name++ != '-'
        || !name_number(&name, '\0', 4, volume))
        return false;
    return strcmp(name, ".h5") == 0;
}

static int parse_shard_cell(struct parse *p, struct ckpt_shard *s, int *volume)
{
    const struct topology *const t = placement_topology(p->m->placement);
    struct cell c;
    if (!parse_shard_name(s->file, &c, volume))
        return parse_fail(p,
            "shard '%s': expected shard-pPPP-tTTT-VVVV.h5 or"
            " shard-pPPP-eEEE-tTTT-VVVV.h5",
            s->file);
    if (c.pp >= t->pp || c.ep >= t->ep || c.etp >= t->etp || c.tp >= t->tp)
        return parse_fail(
            p, "shard '%s' is of a cell that the topology does not have", s->file);
    s->cell = placement_cell_index(p->m->placement, &c);
    return 0;
}

static int parse_shard(struct parse *p)
{
    struct manifest *const m = p->m;
    struct ckpt_shard *const s = &m->shards[m->shard_count];
    int64_t no = 0;
    if (parse_line_of(p, "shard", 5) != 0 || parse_i64(p, 1, "shard number", &no) != 0)
        return p->err->code;
    if (no != m->shard_count)
        return parse_fail(p, "shard %" PRId64 ", expected %" PRId64, no, m->shard_count);
    if (p->f[2].length >= sizeof s->file || memchr(p->f[2].text, '\0', p->f[2].length))
        return parse_fail(p, "shard %" PRId64 ": its file name is too long", no);
    memcpy(s->file, p->f[2].text, p->f[2].length);
    if (parse_shard_cell(p, s, &p->shard_volume[no]) != 0
        || parse_u64(p, 3, "shard bytes", &s->bytes) != 0
        || parse_digest(p, 4, s->skeleton) != 0)
        return p->err->code;
    if (s->bytes > INT64_MAX)
        return parse_fail(p, "shard %" PRId64 ": %" PRIu64 " bytes", no, s->bytes);
    m->shard_count++;
    return 0;
}

struct volume_key {
    int cell, volume;
};

static int volume_order(const void *a, const void *b)
{
    const struct volume_key *const x = a, *const y = b;
    return x->cell != y->cell ? (x->cell < y->cell ? -1 : 1)
                              : (x->volume > y->volume) - (x->volume < y->volume);
}

/* No file twice, no gap in a cell's volumes. */
static int parse_volumes(struct parse *p)
{
    const int64_t n = p->m->shard_count;
    struct volume_key *const k = malloc((size_t)(n + 1) * sizeof *k);
    if (!k)
        return parse_no_memory(p);
    for (int64_t i = 0; i < n; i++)
        k[i] = (struct volume_key){p->m->shards[i].cell, p->shard_volume[i]};
    qsort(k, (size_t)n, sizeof *k, volume_order);
    for (int64_t i = 0; i < n; i++)
        if (k[i].volume
            != (i > 0 && k[i - 1].cell == k[i].cell ? k[i - 1].volume + 1 : 0)) {
            parse_fail(p, "the shards of a cell are not numbered 0, 1, 2…");
            break;
        }
    free(k);
    return p->err->code;
}

/* ---- the sorted rest ------------------------------------------------------------------------ */

static int parse_file(struct parse *p, bool header)
{
    struct manifest *const m = p->m;
    char *path = NULL;
    bool no_memory = false;
    uint64_t bytes = 0, offset = 0;
    unsigned char sha[DIGEST_SIZE];
    if (parse_line_of(p, header ? "source" : "file", 5) != 0
        || parse_u64(p, 2, "bytes", &bytes) != 0 || parse_digest(p, 3, sha) != 0
        || parse_u64(p, 4, "offset", &offset) != 0)
        return p->err->code;
    if (!manifest_unescape(p->f[1].text, p->f[1].length, &path, &no_memory))
        return no_memory ? parse_no_memory(p)
                         : parse_fail(p, "a path that is not escaped as it must");
    const struct ckpt_file *const last =
        m->file_count > 0 ? &m->files[m->file_count - 1] : NULL;
    if (!manifest_path_ok(path, strlen(path)))
        parse_fail(p, "path '%s' leaves its folder or is not portable", path);
    else if (last && last->header == header && strcmp(last->path, path) == 0)
        parse_fail(p, "'%s' is listed twice", path);
    if (p->err->code == GLM_OK) {
        struct ckpt_file *const f = manifest_add_file(m, path, header, NULL, bytes);
        if (f) {
            f->bytes = bytes;
            f->offset = offset;
            memcpy(f->sha256, sha, DIGEST_SIZE);
        } else {
            parse_no_memory(p);
        }
    }
    free(path);
    return p->err->code;
}

static int parse_prov(struct parse *p)
{
    struct manifest *const m = p->m;
    char *value = NULL, key[128];
    bool no_memory = false;
    if (parse_line_of(p, "prov", 3) != 0)
        return p->err->code;
    if (!manifest_key_ok(p->f[1].text, p->f[1].length))
        return parse_fail(p, "no provenance key");
    memcpy(key, p->f[1].text, p->f[1].length);
    key[p->f[1].length] = '\0';
    if (m->prov_count > 0 && strcmp(m->prov[m->prov_count - 1].key, key) == 0)
        return parse_fail(p, "provenance '%s' is given twice", key);
    if (!manifest_unescape(p->f[2].text, p->f[2].length, &value, &no_memory))
        return no_memory
            ? parse_no_memory(p)
            : parse_fail(p, "provenance '%s' is not escaped as it must", key);
    if (manifest_add_prov(m, key, value) != 0)
        parse_no_memory(p);
    free(value);
    return p->err->code;
}

static int parse_section(struct parse *p)
{
    enum ckpt_section s;
    if (parse_line_of(p, "section", 3) != 0)
        return p->err->code;
    if (!section_find(p->f[1].text, p->f[1].length, &s) || p->m->section_present[s])
        return parse_fail(p, "no section, or one given twice");
    p->m->section_present[s] = true;
    return parse_digest(p, 2, p->m->section_digest[s]);
}

static int parse_fingerprint(struct parse *p, bool *seen)
{
    if (parse_line_of(p, "fingerprint", 2) != 0)
        return p->err->code;
    if (*seen)
        return parse_fail(p, "a second fingerprint");
    *seen = true;
    return parse_digest(p, 1, p->m->fingerprint);
}

static int parse_rest_line(struct parse *p, bool *fingerprint)
{
    if (parse_line_is(p, "file"))
        return parse_file(p, false);
    if (parse_line_is(p, "fingerprint"))
        return parse_fingerprint(p, fingerprint);
    if (parse_line_is(p, "prov"))
        return parse_prov(p);
    if (parse_line_is(p, "section"))
        return parse_section(p);
    if (parse_line_is(p, "source"))
        return parse_file(p, true);
    return parse_fail(p, "a line that is not known or not in its place");
}

/* Lines ascend by their bytes, which also puts the kinds in order and keeps out doubles. */
static int parse_rest(struct parse *p, bool more)
{
    bool fingerprint = false;
    const char *last = NULL;
    size_t last_length = 0;
    for (; more; more = parse_next(p)) {
        if (parse_rest_line(p, &fingerprint) != 0)
            return p->err->code;
        if (last) {
            const size_t n =
                last_length < p->start_length ? last_length : p->start_length;
            const int order = memcmp(last, p->start, n);
            if (order > 0 || (order == 0 && last_length >= p->start_length))
                return parse_fail(p, "not in the order of the lines' bytes");
        }
        last = p->start;
        last_length = p->start_length;
    }
    if (p->err->code == GLM_OK && !fingerprint)
        parse_fail(p, "there is no fingerprint");
    return p->err->code;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Every row of the table is in section weight, sections are as recorded, config.json is there. */
static int parse_complete(struct parse *p)
{
    const struct manifest *const m = p->m;
    int64_t weights = 0;
    bool present[SECTION_COUNT] = {false}, config = false;
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct ckpt_tensor *const t = &m->tensors[i];
        present[t->section] = true;
        weights += t->section == SECTION_WEIGHT && t->block[0] == 1 && t->block[1] == 1;
        if (!t->derived)
            continue;
        const int64_t master = manifest_find(m, SECTION_MASTER, t->name);
        if (master < 0 || m->tensors[master].dtype != GLM_F32)
            return parse_fail(
                p, "tensor '%s' is derived, but there is no F32 master", t->name);
    }
    if (weights != p->table->count)
        return parse_fail(p,
            "section weight holds %" PRId64 " tensors, config.json gives %" PRId64,
            weights, p->table->count);
    for (int s = 0; s < SECTION_COUNT; s++)
        if (present[s] != m->section_present[s])
            return parse_fail(p, "section %s: its digest is missing or has no tensors",
                section_name((enum ckpt_section)s));
    for (int64_t i = 0; i < m->file_count; i++)
        config |= !m->files[i].header && strcmp(m->files[i].path, "config.json") == 0
            && memcmp(m->files[i].sha256, p->table->config.sha256, DIGEST_SIZE) == 0;
    return config ? 0
                  : parse_fail(p, "config.json is not among the files, or is another");
}

/* Lines that begin with a word, so that arrays have their size before they are filled. */
static int64_t parse_count(const char *text, size_t size, const char *word)
{
    const size_t n = strlen(word);
    const char *const end = text + size;
    int64_t count = 0;
    for (const char *s = text; s;) {
        count += (size_t)(end - s) >= n && memcmp(s, word, n) == 0;
        s = memchr(s, '\n', (size_t)(end - s));
        if (s)
            s++;
    }
    return count;
}

static int parse_make_room(struct parse *p, const char *text, size_t size)
{
    const size_t shards = (size_t)parse_count(text, size, "shard\t") + 1;
    const size_t pieces = (size_t)parse_count(text, size, "piece\t") + 1;
    p->m = manifest_new(p->table);
    p->shard_end = calloc(shards, sizeof *p->shard_end);
    p->shard_tensor = malloc(shards * sizeof *p->shard_tensor);
    p->shard_volume = calloc(shards, sizeof *p->shard_volume);
    if (!p->m || !p->shard_end || !p->shard_tensor || !p->shard_volume)
        return parse_no_memory(p);
    for (size_t i = 0; i < shards; i++)
        p->shard_tensor[i] = -1;
    p->m->shards = calloc(shards, sizeof *p->m->shards);
    p->m->pieces = calloc(pieces, sizeof *p->m->pieces);
    return p->m->shards && p->m->pieces ? 0 : parse_no_memory(p);
}

static int parse_all(struct parse *p)
{
    bool more;
    if (parse_model(p) != 0 || parse_topology(p) != 0)
        return p->err->code;
    while ((more = parse_next(p)) && parse_line_is(p, "shard"))
        if (parse_shard(p) != 0)
            return p->err->code;
    if (parse_volumes(p) != 0)
        return p->err->code;
    while (more && parse_line_is(p, "tensor"))
        if (parse_tensor(p, &more) != 0)
            return p->err->code;
    if (p->err->code != GLM_OK || parse_rest(p, more) != 0)
        return p->err->code;
    if (manifest_index(p->m, p->err) != 0)
        return glm_within(p->err, "%s: manifest", p->path);
    return parse_complete(p);
}

int manifest_parse(struct manifest **out, const struct table *t, const char *path,
    const char *text, size_t size, struct glm_error *err)
{
    struct parse p = {
        .path = path, .at = text, .end = text + size, .table = t, .err = err};
    *out = NULL;
    if (parse_make_room(&p, text, size) == 0 && parse_all(&p) == 0) {
        digest_of(text, size, p.m->id);
        *out = p.m;
        p.m = NULL;
    }
    manifest_free(p.m);
    free(p.shard_end);
    free(p.shard_tensor);
    free(p.shard_volume);
    return err->code;
}

int manifest_peek(struct manifest_peek *out, const char *path, const char *text,
    size_t size, struct glm_error *err)
{
    struct parse p = {.path = path, .at = text, .end = text + size, .err = err};
    memset(out, 0, sizeof *out);
    if (parse_version(&p) != 0 || parse_mtp(&p, &out->without_mtp) != 0)
        return err->code;
    while (parse_next(&p))
        if (parse_line_is(&p, "file") && p.fields == 5
            && parse_field_is(&p.f[1], "config.json")) {
            if (parse_u64(&p, 2, "bytes", &out->config_bytes) == 0
                && parse_digest(&p, 3, out->config_sha256) == 0)
                parse_u64(&p, 4, "offset", &out->config_offset);
            return err->code;
        }
    return parse_fail(&p, "config.json is not among the files");
}

void manifest_each_file(const char *text, size_t size,
    int (*fn)(void *ctx, const struct ckpt_file *f), void *ctx)
{
    struct glm_error err = {0};
    struct parse p = {.path = "", .at = text, .end = text + size, .err = &err};
    while (parse_next(&p)) {
        struct ckpt_file f = {.header = parse_line_is(&p, "source")};
        bool no_memory = false;
        if (p.fields != 5 || (!f.header && !parse_line_is(&p, "file"))
            || parse_u64(&p, 2, "bytes", &f.bytes) != 0
            || parse_digest(&p, 3, f.sha256) != 0
            || parse_u64(&p, 4, "offset", &f.offset) != 0
            || !manifest_unescape(p.f[1].text, p.f[1].length, &f.path, &no_memory)) {
            glm_error_clear(&err);
            continue;
        }
        const int stop = fn(ctx, &f);
        free(f.path);
        if (stop)
            return;
    }
}
