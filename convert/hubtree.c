/* The hub's lists, with every name and number checked before anything rests on it.
 *
 * Memory is bounded by the size of a page (HUBTREE_PAGE), the number of files (HUBTREE_FILES) and
 * the length of all names (HUBTREE_PATHS); depth by the JSON library's own limit. */
#include "convert/hubtree.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "convert/hfdir.h"
#include "convert/hubsum.h"
#include "convert/jsonin.h"

static json_t *load(
    const char *what, const char *text, size_t size, struct glm_error *err)
{
    json_error_t e;
    size_t at = 0;
    if (size > HUBTREE_PAGE) {
        glm_fail(err, GLM_EFORMAT,
            "%s: an answer of %zu bytes, at most %d are accepted here", what, size,
            HUBTREE_PAGE);
        return NULL;
    }
    while (at < size && strchr(" \r\n\t", text[at]) && text[at] != '\0')
        at++;
    if (at < size && text[at] == '<') {
        glm_fail(err, GLM_EFORMAT,
            "%s: the answer is a page of HTML, not JSON: a proxy, a login page or a "
            "mirror that is none",
            what);
        return NULL;
    }
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    if (root == NULL) {
        const char *near = strstr(e.text, " near "); /* would show bytes of the answer */
        glm_fail(err, GLM_EFORMAT, "%s: byte %d: the answer is not JSON: %.*s", what,
            e.position, (int)(near != NULL ? near - e.text : (ptrdiff_t)strlen(e.text)),
            e.text);
    }
    return root;
}

static const char *hex_text(const json_t *v)
{
    const char *text = json_string_value(v);
    return text != NULL && hubsum_kind_of(text) != HUBSUM_NONE ? text : NULL;
}

static int take_entry(struct hubtree *t, const char *what, int64_t number,
    const json_t *entry, struct glm_error *err)
{
    char shown[JSONIN_SHOWN];
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *path = json_object_get(entry, "path"),
                 *size = json_object_get(entry, "size"),
                 *lfs = json_object_get(entry, "lfs");
    if (!json_is_string(path))
        return glm_fail(err, GLM_EFORMAT,
            "%s: entry %" PRId64 " of the list of files has no path", what, number);
    if (type != NULL && strcmp(type, "file") != 0)
        return GLM_OK;
    jsonin_shown(json_string_value(path), json_string_length(path), shown);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: the list of files gives '%s' no size, or one that is no whole number",
            what, shown);
    if (t->count >= HUBTREE_FILES)
        return glm_fail(
            err, GLM_EFORMAT, "%s: more than %d files: not a model", what, HUBTREE_FILES);
    const size_t length = json_string_length(path);
    t->path_bytes += length;
    if (t->path_bytes > HUBTREE_PATHS)
        return glm_fail(err, GLM_EFORMAT,
            "%s: the names in the list of files are over the limit of %d bytes", what,
            HUBTREE_PATHS);
    if (t->count == t->room) {
        const int64_t room = t->room * 2 + 64;
        struct hubtree_file *more = realloc(t->files, (size_t)room * sizeof *more);
        if (more == NULL)
            return glm_fail(err, GLM_ENOMEM, "%s: no memory for its list of files", what);
        t->files = more;
        t->room = room;
    }
    struct hubtree_file f = {.size = (uint64_t)json_integer_value(size)};
    /* Of a large file "oid" is that of its pointer. */
    const char *digest = json_is_object(lfs) ? hex_text(json_object_get(lfs, "oid"))
                                             : hex_text(json_object_get(entry, "oid"));
    if (digest != NULL)
        memcpy(f.digest, digest, strlen(digest) + 1);
    f.path = strdup(json_string_value(path));
    if (f.path == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for its list of files", what);
    t->files[t->count++] = f;
    return GLM_OK;
}

int hubtree_page(struct hubtree *t, const char *what, const char *text, size_t size,
    struct glm_error *err)
{
    json_t *root = load(what, text, size, err), *entry;
    size_t i;
    if (root == NULL)
        return (int)err->code;
    if (!json_is_array(root))
        glm_fail(err, GLM_EFORMAT, "%s: the list of files is not a JSON array", what);
    else
        json_array_foreach(root, i, entry)
        {
            if (take_entry(t, what, (int64_t)i, entry, err) != GLM_OK)
                break;
        }
    json_decref(root);
    return (int)err->code;
}

/* What is wrong with a path, folder by folder; NULL: nothing. */
static const char *path_trouble(const char *path)
{
    if (path[0] == '/')
        return "is absolute";
    for (const char *p = path;; p++) {
        const size_t n = strcspn(p, "/");
        if (n == 0)
            return "has an empty part";
        if ((n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return "leads out of the folder by '..' or '.'";
        const char *trouble = hfdir_name_trouble(p, n);
        if (trouble != NULL)
            return trouble;
        p += n;
        if (*p == '\0')
            return NULL;
    }
}

static int by_path(const void *a, const void *b)
{
    return strcmp(
        ((const struct hubtree_file *)a)->path, ((const struct hubtree_file *)b)->path);
}

static int by_folded(const void *a, const void *b)
{
    return strcasecmp(
        ((const struct hubtree_file *)a)->path, ((const struct hubtree_file *)b)->path);
}

int hubtree_check(struct hubtree *t, const char *what, struct glm_error *err)
{
    char a[JSONIN_SHOWN], b[JSONIN_SHOWN];
    for (int64_t i = 0; i < t->count; i++) {
        const char *path = t->files[i].path, *trouble = path_trouble(path);
        if (trouble != NULL)
            return glm_fail(err, GLM_EFORMAT,
                "%s: the file name '%s' %s; nothing is taken from such a repository",
                what, jsonin_shown(path, strlen(path), a), trouble);
    }
    if (t->count > 1)
        qsort(t->files, (size_t)t->count, sizeof *t->files, by_folded);
    for (int64_t i = 1; i < t->count; i++)
        if (by_folded(&t->files[i - 1], &t->files[i]) == 0) {
            const char *x = t->files[i - 1].path, *y = t->files[i].path;
            return glm_fail(err, GLM_EFORMAT,
                "%s: the list of files names '%s' and '%s': the same file twice on some "
                "systems",
                what, jsonin_shown(x, strlen(x), a), jsonin_shown(y, strlen(y), b));
        }
    if (t->count > 1)
        qsort(t->files, (size_t)t->count, sizeof *t->files, by_path);
    return GLM_OK;
}

void hubtree_clear(struct hubtree *t)
{
    for (int64_t i = 0; i < t->count; i++)
        free(t->files[i].path);
    free(t->files);
    *t = (struct hubtree){0};
}

const struct hubtree_file *hubtree_find(const struct hubtree *t, const char *path)
{
    const struct hubtree_file key = {.path = (char *)(uintptr_t)path};
    return t->count == 0 ? NULL
                         : bsearch(&key, t->files, (size_t)t->count, sizeof key, by_path);
}

int hubtree_commit(const char *what, const char *text, size_t size,
    char commit[HUBTREE_COMMIT], struct glm_error *err)
{
    json_t *root = load(what, text, size, err);
    if (root == NULL)
        return (int)err->code;
    const char *sha = hex_text(json_object_get(root, "sha"));
    if (sha == NULL)
        glm_fail(err, GLM_EFORMAT,
            "%s: the answer about the revision names no commit (\"sha\" of 40 digits)",
            what);
    else
        memcpy(commit, sha, strlen(sha) + 1);
    json_decref(root);
    return (int)err->code;
}
