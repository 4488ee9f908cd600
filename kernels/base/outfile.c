#include "kernels/base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opening a pipe for writing waits for its reader, and a signal handler that only sets a flag does
 * not end that wait. With O_NONBLOCK it fails instead; the writing after it may wait again. */
int outfile_open(struct outfile *o, const char *path, struct glm_error *err)
{
    struct stat st;
    *o = (struct outfile){0};
    const int fd =
        open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    if (fd < 0 && errno == ENXIO && stat(path, &st) == 0 && S_ISFIFO(st.st_mode))
        return glm_fail(err, GLM_EUSAGE, "%s: a pipe that nobody reads", path);
    if (fd < 0)
        return glm_fail_errno(err, "%s: open", path);
    const int flags = fcntl(fd, F_GETFL);
    if (fstat(fd, &st) == 0 && flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0)
        o->out = fdopen(fd, "w");
    if (o->out == NULL) {
        glm_fail_errno(err, "%s: open", path);
        close(fd);
        return err->code;
    }
    o->regular = S_ISREG(st.st_mode);
    return GLM_OK;
}

int outfile_begin(struct outfile *o, const char *path, struct glm_error *err)
{
    if (o->regular && ftruncate(fileno(o->out), 0) != 0)
        return glm_fail_errno(err, "%s: write", path);
    return GLM_OK;
}

int outfile_close(struct outfile *o, const char *path, struct glm_error *err)
{
    FILE *const out = o->out;
    *o = (struct outfile){0};
    if (out == NULL)
        return GLM_OK;
    const bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad)
        return glm_fail_errno(err, "%s: write", path);
    return GLM_OK;
}

/* The path without links. Of one that is not there yet, its folder's and its name. */
static bool resolve(const char *path, char real[PATH_MAX])
{
    char text[PATH_MAX], above[PATH_MAX];
    if (realpath(path, real) != NULL)
        return true;
    if (snprintf(text, sizeof text, "%s", path) >= PATH_MAX)
        return false;
    for (size_t n = strlen(text); n > 1 && text[n - 1] == '/';)
        text[--n] = '\0';
    char *const slash = strrchr(text, '/');
    const char *const name = slash != NULL ? slash + 1 : text;
    if (slash != NULL)
        *slash = '\0';
    const char *const folder = slash == NULL ? "." : slash == text ? "/" : text;
    if (realpath(folder, above) == NULL)
        return false;
    const char *const head = strcmp(above, "/") == 0 ? "" : above;
    return snprintf(real, PATH_MAX, "%s/%s", head, name) < PATH_MAX;
}

bool outfile_inside(const char *path, const char *folder, char real[PATH_MAX])
{
    char around[PATH_MAX];
    if (!resolve(path, real) || !resolve(folder, around))
        return false;
    const size_t n = strcmp(around, "/") == 0 ? 0 : strlen(around);
    return strncmp(real, around, n) == 0 && (real[n] == '/' || real[n] == '\0');
}
