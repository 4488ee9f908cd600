/* The manifest as text: one canonical form, so that equal checkpoints have equal bytes and `id`,
 * the SHA-256 of the text, names this layout and history. The grammar is in glm-checkpoint(5). */
#include "ckpt/manifest_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/digest.h"
#include "ckpt/shard.h"

/* ---- words ---------------------------------------------------------------------------------- */

bool manifest_path_ok(const char *path, size_t length)
{
    size_t part = 0;
    if (length == 0 || length > 1000)
        return false;
    for (size_t i = 0; i <= length; i++) {
        const unsigned char c = i < length ? (unsigned char)path[i] : '/';
        if (c < 0x20 || c == 0x7F || c == '\\' || c == ':')
            return false;
        if (c != '/')
            continue;
        const size_t n = i - part;
        if (n == 0 || (n == 1 && path[part] == '.')
            || (n == 2 && path[part] == '.' && path[part + 1] == '.'))
            return false;
        part = i + 1;
    }
    return true;
}

static bool text_word(const char *s, size_t n, size_t most, bool upper)
{
    if (n == 0 || n > most)
        return false;
    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_'
                || c == '-' || (upper && c >= 'A' && c <= 'Z')))
            return false;
    }
    return true;
}

bool manifest_train_name_ok(const char *name, size_t length)
{
    return text_word(name, length, 200, true) && !(length == 1 && name[0] == '.')
        && !(length == 2 && name[0] == '.' && name[1] == '.');
}

bool manifest_key_ok(const char *key, size_t length)
{
    return text_word(key, length, 100, false);
}

static bool text_plain(unsigned char c)
{
    return c >= 0x20 && c != 0x7F && c != '%';
}

char *manifest_escape(const char *text)
{
    char *const out = malloc(3 * strlen(text) + 1);
    char *w = out;
    for (const unsigned char *s = (const unsigned char *)text; out && *s; s++)
        if (text_plain(*s))
            *w++ = (char)*s;
        else
            w += sprintf(w, "%%%02X", *s);
    if (out)
        *w = '\0';
    return out;
}

static int text_hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool manifest_unescape(const char *field, size_t length, char **out, bool *no_memory)
{
    char *const text = malloc(length + 1);
    size_t w = 0;
    *out = NULL;
    *no_memory = !text;
    for (size_t i = 0; text && i < length; i++) {
        unsigned char c = (unsigned char)field[i];
        bool fine = text_plain(c);
        if (c == '%' && length - i > 2) {
            const int high = text_hex(field[i + 1]), low = text_hex(field[i + 2]);
            c = (unsigned char)(high * 16 + low);
            fine = high >= 0 && low >= 0 && c != 0 && !text_plain(c);
            i += 2;
        }
        if (!fine) {
            free(text);
            return false;
        }
        text[w++] = (char)c;
    }
    if (text)
        text[w] = '\0';
    *out = text;
    return text != NULL;
}

/* ---- lines ---------------------------------------------------------------------------------- */

static void print_numbers(FILE *f, const int64_t *n, int count)
{
    for (int i = 0; i < count; i++)
        fprintf(f, i == 0 ? "%" PRId64 : ",%" PRId64, n[i]);
    if (count == 0)
        fputc('-', f);
}

static void print_head(FILE *f, const struct manifest *m)
{
    char hex[DIGEST_HEX];
    const struct topology *const t = placement_topology(m->placement);
    digest_hex(m->table->config.sha256, hex);
    fprintf(f, "glm-manifest 1\nmodel\t%s\t%s\tmtp\t%s\n", m->table->config.model_type,
        hex, m->without_mtp ? "no" : "yes");
    fprintf(f, "topology\ttp\t%d\tpp\t%d\tvpp\t%d\tep\t%d\tetp\t%d\tlayout\t%s\n",
        t->tp ? t->tp : 1, t->pp ? t->pp : 1, t->vpp ? t->vpp : 1, t->ep ? t->ep : 1,
        t->etp ? t->etp : 1, t->layout);
    for (int64_t i = 0; i < m->shard_count; i++) {
        digest_hex(m->shards[i].skeleton, hex);
        fprintf(f, "shard\t%" PRId64 "\t%s\t%" PRIu64 "\t%s\n", i, m->shards[i].file,
            m->shards[i].bytes, hex);
    }
}

static void print_piece(FILE *f, const struct ckpt_tensor *t, const struct ckpt_piece *p)
{
    int64_t lo[3], n[3];
    const int axes = shard_axes(t, &p->at, lo, n);
    fprintf(f, "piece\t%" PRId64 "\t", p->shard);
    print_numbers(f, lo, axes);
    fputc('\t', f);
    print_numbers(f, n, axes);
    if (p->encoding == ENC_PLAIN)
        fprintf(f, "\tplain\t%" PRIu64 "\t%" PRIu64 "\n", p->offset, p->bytes);
    else
        fprintf(f, "\tzstd\t%" PRId64 "\t%" PRId64 "\t%" PRIu64 "\n", p->first_chunk,
            p->chunks, p->bytes);
}

static void print_tensor(FILE *f, const struct manifest *m, const struct ckpt_tensor *t)
{
    char hex[DIGEST_HEX];
    digest_hex(t->fingerprint, hex);
    fprintf(f, "tensor\t%s\t%s\t%s\t", section_name(t->section), t->name,
        glm_dtype_name(t->dtype));
    print_numbers(f, t->shape, t->rank);
    fprintf(f, "\t%s\t%" PRId64, hex, t->first_tile);
    if (t->derived)
        fputs("\tderived master", f);
    else if (t->block[0] * t->block[1] > 1)
        fprintf(f, "\tblock %" PRId64 ",%" PRId64, t->block[0], t->block[1]);
    else if (t->scale_rule[0])
        fprintf(f, "\tscale_rule %s", t->scale_rule);
    fputc('\n', f);
    for (int64_t i = 0; i < t->pieces; i++)
        print_piece(f, t, &m->pieces[t->first_piece + i]);
}

/* ---- the sorted rest ------------------------------------------------------------------------ */

struct print_lines {
    char **lines;
    size_t count;
};

static char *print_file_line(const struct ckpt_file *f)
{
    char hex[DIGEST_HEX], *line = NULL, *const path = manifest_escape(f->path);
    digest_hex(f->sha256, hex);
    if (!path
        || asprintf(&line, "%s\t%s\t%" PRIu64 "\t%s\t%" PRIu64,
               f->header ? "source" : "file", path, f->bytes, hex, f->offset)
            < 0)
        line = NULL;
    free(path);
    return line;
}

static char *print_prov_line(const struct ckpt_prov *p)
{
    char *line = NULL, *const value = manifest_escape(p->value);
    if (!value || asprintf(&line, "prov\t%s\t%s", p->key, value) < 0)
        line = NULL;
    free(value);
    return line;
}

static bool print_add(struct print_lines *l, char *line)
{
    if (line)
        l->lines[l->count++] = line;
    return line != NULL;
}

static bool print_digest_lines(struct print_lines *l, const struct manifest *m)
{
    char hex[DIGEST_HEX], *line = NULL;
    for (int s = 0; s < SECTION_COUNT; s++) {
        if (!m->section_present[s])
            continue;
        digest_hex(m->section_digest[s], hex);
        if (asprintf(&line, "section\t%s\t%s", section_name((enum ckpt_section)s), hex)
                < 0
            || !print_add(l, line))
            return false;
    }
    digest_hex(m->fingerprint, hex);
    return asprintf(&line, "fingerprint\t%s", hex) >= 0 && print_add(l, line);
}

static int print_by_bytes(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static int print_rest(FILE *f, const struct manifest *m, struct glm_error *err)
{
    struct print_lines l = {0};
    const size_t room = (size_t)(m->file_count + m->prov_count) + SECTION_COUNT + 1;
    bool fine = (l.lines = calloc(room, sizeof *l.lines)) != NULL;
    for (int64_t i = 0; fine && i < m->file_count; i++)
        fine = print_add(&l, print_file_line(&m->files[i]));
    for (int64_t i = 0; fine && i < m->prov_count; i++)
        fine = print_add(&l, print_prov_line(&m->prov[i]));
    fine = fine && print_digest_lines(&l, m);
    if (!fine)
        glm_fail(err, GLM_ENOMEM, "manifest: out of memory");
    else
        qsort(l.lines, l.count, sizeof *l.lines, print_by_bytes);
    for (size_t i = 0; i < l.count; i++) {
        if (fine)
            fprintf(f, "%s\n", l.lines[i]);
        free(l.lines[i]);
    }
    free(l.lines);
    return err->code;
}

/* What the parser would refuse is refused here, with the name of the culprit. */
static int print_allowed(const struct manifest *m, struct glm_error *err)
{
    for (int64_t i = 0; i < m->file_count; i++)
        if (!manifest_path_ok(m->files[i].path, strlen(m->files[i].path)))
            return glm_fail(err, GLM_EFORMAT,
                "side file '%s': a path must stay inside its folder"
                " (relative, no '..', no ':', no backslash)",
                m->files[i].path);
    for (int64_t i = 0; i < m->prov_count; i++)
        if (!manifest_key_ok(m->prov[i].key, strlen(m->prov[i].key)))
            return glm_fail(err, GLM_EFORMAT,
                "provenance key '%s': only lower-case letters, digits,"
                " '.', '_' and '-'",
                m->prov[i].key);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const struct ckpt_tensor *const t = &m->tensors[i];
        if (t->section == SECTION_TRAIN
            && !manifest_train_name_ok(t->name, strlen(t->name)))
            return glm_fail(err, GLM_EFORMAT,
                "tensor '%s' of section train: only letters, digits,"
                " '.', '_' and '-'",
                t->name);
    }
    return 0;
}

int manifest_print(
    const struct manifest *m, char **text, size_t *size, struct glm_error *err)
{
    *text = NULL;
    *size = 0;
    if (print_allowed(m, err) != 0)
        return err->code;
    FILE *const f = open_memstream(text, size);
    if (!f)
        return glm_fail_errno(err, "manifest");
    print_head(f, m);
    for (int64_t i = 0; i < m->tensor_count; i++)
        print_tensor(f, m, &m->tensors[i]);
    print_rest(f, m, err);
    if (ferror(f) | fclose(f))
        glm_fail(err, GLM_ENOMEM, "manifest: out of memory");
    if (err->code != GLM_OK) {
        free(*text);
        *text = NULL;
        *size = 0;
    }
    return err->code;
}
