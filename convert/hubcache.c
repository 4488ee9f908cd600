/* CACHE/models--OWNER--NAME: refs/<revision> names a commit, snapshots/<commit>/<path> the files,
 * blobs/<digest> their bytes. */
#include "convert/hubcache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/ckpt.h"
#include "convert/hub.h"
#include "convert/hubsum.h"

char *hubcache_folder(const struct hubenv *env, const struct hubspec *s)
{
    char *out = NULL;
    return env->cache == NULL
            || asprintf(&out, "%s/models--%s--%s", env->cache, s->owner, s->name) < 0
        ? NULL
        : out;
}

static bool has_size(const char *path, uint64_t size)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size;
}

char *hubcache_find(const char *folder, const char *commit, const struct hubtree_file *f)
{
    char *path = NULL;
    if (folder == NULL)
        return NULL;
    if (asprintf(&path, "%s/snapshots/%s/%s", folder, commit, f->path) >= 0) {
        if (has_size(path, f->size))
            return path;
        free(path);
    }
    if (f->digest[0] != '\0' && asprintf(&path, "%s/blobs/%s", folder, f->digest) >= 0) {
        if (has_size(path, f->size))
            return path;
        free(path);
    }
    return NULL;
}

/* refs/<revision> holds the commit; a commit names itself. */
static int cached_commit(const char *folder, const struct hubspec *s,
    char commit[HUBTREE_COMMIT], struct glm_error *err)
{
    struct glm_error unread = {0};
    void *text = NULL;
    size_t size;
    char *path = NULL;

    if (hubsum_kind_of(s->revision) == HUBSUM_GIT) {
        memcpy(commit, s->revision, strlen(s->revision) + 1);
        return GLM_OK;
    }
    if (asprintf(&path, "%s/refs/%s", folder, s->revision) < 0)
        return glm_fail(err, GLM_ENOMEM, "no memory");
    if (dio_slurp(path, 256, &text, &size, &unread) == GLM_OK)
        snprintf(commit, HUBTREE_COMMIT, "%.*s", size < 40 ? (int)size : 40,
            (const char *)text);
    if (hubsum_kind_of(commit) != HUBSUM_GIT)
        glm_fail(err, GLM_EFORMAT,
            "hf://%s/%s@%s: not in the cache (%s), and HF_HUB_OFFLINE forbids to fetch "
            "it",
            s->owner, s->name, s->revision, folder);
    free(text);
    free(path);
    return (int)err->code;
}

int hub_offline(const char *spec, char **folder, struct glm_error *err)
{
    struct hubenv env;
    struct hubspec s;
    struct stat st;
    char commit[HUBTREE_COMMIT] = "", *repo = NULL;

    *folder = NULL;
    if (hubspec_parse(&s, spec, err) != GLM_OK)
        return (int)err->code;
    if (hubenv_read(&env, err) == GLM_OK && env.offline) {
        repo = hubcache_folder(&env, &s);
        if (repo == NULL)
            glm_fail(err, GLM_EUSAGE,
                "HF_HUB_OFFLINE is set and nothing says where the cache is: set HF_HOME");
        else if (cached_commit(repo, &s, commit, err) == GLM_OK
            && asprintf(folder, "%s/snapshots/%s", repo, commit) < 0) {
            *folder = NULL;
            glm_fail(err, GLM_ENOMEM, "no memory");
        }
        if (*folder != NULL && (stat(*folder, &st) != 0 || !S_ISDIR(st.st_mode)))
            glm_fail(err, GLM_EFORMAT,
                "%s: not in the cache (%s), and HF_HUB_OFFLINE forbids to fetch it", spec,
                *folder);
        if (err->code != GLM_OK) {
            free(*folder);
            *folder = NULL;
        }
    }
    free(repo);
    hubenv_clear(&env);
    return (int)err->code;
}
