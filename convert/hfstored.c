/* Where each tensor lay in the files it was imported from, out of the stored headers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hfstored.h"

static int take_header(struct hf_stored *s, const struct index *ix,
    const struct ckpt_file *f, struct glm_error *err)
{
    struct hf_file *file = &s->source.files[s->source.file_count];

    file->name = strdup(f->path);
    if (file->name == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", f->path);
    s->source.file_count++;
    if (index_file(ix, f, &file->header_bytes, err) != GLM_OK)
        return (int)err->code;
    return st_parse(&file->header, f->path, file->header_bytes, (size_t)f->bytes,
        ST_SIZE_UNKNOWN, err);
}

int hf_stored_open(struct hf_stored *s, const struct index *ix, struct glm_error *err)
{
    const struct manifest *m = ix->manifest;

    *s = (struct hf_stored){.source.dir = ix->path};
    s->source.files = calloc((size_t)m->file_count + 1, sizeof *s->source.files);
    if (s->source.files == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", ix->path);
    for (int64_t i = 0; i < m->file_count; i++)
        if (m->files[i].header && take_header(s, ix, &m->files[i], err) != GLM_OK)
            return (int)err->code;
    if (s->source.file_count == 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: holds no source headers (a subset, converted or trained since, or not "
            "imported "
            "from safetensors): "
            "--same-files is not possible",
            ix->path);
    s->match.s = &s->source;
    s->match.table = m->table;
    if (hfdir_match(&s->match, err) != GLM_OK)
        return (int)err->code;
    if (s->match.extra.count > 0)
        return glm_fail(err, GLM_EUSAGE,
            "%s: the original files hold %" PRId64
            " tensors that this checkpoint does not (%s): "
            "--same-files is not possible",
            ix->path, s->match.extra.count, s->match.extra.text);
    return GLM_OK;
}

void hf_stored_close(struct hf_stored *s)
{
    for (int64_t i = 0; s->source.files != NULL && i < s->source.file_count; i++) {
        free(s->source.files[i].name);
        free(s->source.files[i].header_bytes);
        st_clear(&s->source.files[i].header);
    }
    free(s->source.files);
    hfdir_match_clear(&s->match);
    *s = (struct hf_stored){0};
}

const struct hf_place *hf_stored_place(
    const struct hf_stored *s, const struct table_entry *e, int64_t member, bool scale)
{
    const int64_t unit = s->match.first[e - s->match.table->entries] + member;
    return &s->match.places[2 * unit + (scale ? 1 : 0)];
}
