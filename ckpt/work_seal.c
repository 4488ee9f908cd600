/* NAME.sealed: the mark beside NAME.partial that says, while a commit is under way, that its work is
 * whole and of which plan it is. It lies beside the folder because the last step of the commit, the
 * rename, must find the folder as it will stay.
 *
 * A power cut may bring a seal back that the end of a commit had removed. So it is removed, durably,
 * before a partial folder is made or begun anew: a seal speaks of the folder beside it, always. */
#include "ckpt/work_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/dio.h"

static char *seal_path(const struct work *w)
{
    char *path = NULL;
    return asprintf(&path, "%s.sealed", w->target) < 0 ? NULL : path;
}

int work_write_seal(const struct work *w, struct glm_error *err)
{
    char *path = seal_path(w);
    const int fd = path == NULL
        ? -1
        : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);

    if (fd < 0 || !work_write_all(fd, w->plan_hex, DIGEST_HEX - 1) || fsync(fd) != 0)
        glm_fail_errno(err, "%s.sealed: write", w->target);
    else
        dio_sync_folder(w->parent, err);
    if (fd >= 0)
        close(fd);
    free(path);
    return (int)err->code;
}

void work_remove_seal(const struct work *w)
{
    char *path = seal_path(w);
    if (path != NULL)
        unlink(path);
    free(path);
}

/* A seal, or what a power cut left of one: digits, or zeros in their place. */
static bool looks_sealed(const char *path)
{
    struct glm_error unread = {0};
    void *text = NULL;
    size_t size = 0;
    bool is = dio_slurp(path, DIGEST_HEX - 1, &text, &size, &unread) == GLM_OK;

    for (size_t i = 0; is && i < size; i++) {
        const char c = ((const char *)text)[i];
        is = c == '\0' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    }
    free(text);
    return is;
}

int work_void_seal(const struct work *w, struct glm_error *err)
{
    char *path = seal_path(w);

    if (path == NULL)
        glm_fail(err, GLM_ENOMEM, "%s: no memory", w->target);
    else if (access(path, F_OK) == 0 && !looks_sealed(path))
        glm_fail(err, GLM_EUSAGE,
            "%s: is in the way of a mark of this name, and is none; move it, or give the "
            "output another name",
            path);
    else if (unlink(path) == 0)
        dio_sync_folder(w->parent, err);
    else if (errno != ENOENT)
        glm_fail_errno(err, "%s: remove", path);
    free(path);
    return (int)err->code;
}

bool work_is_sealed(const struct work *w)
{
    struct glm_error unread = {0};
    char *path = seal_path(w);
    void *text = NULL;
    size_t size;
    const bool sealed = path != NULL && access(w->partial, F_OK) == 0
        && access(path, F_OK) == 0
        && dio_slurp(path, DIGEST_HEX, &text, &size, &unread) == GLM_OK
        && size == DIGEST_HEX - 1 && memcmp(text, w->plan_hex, size) == 0;
    free(text);
    free(path);
    return sealed;
}
