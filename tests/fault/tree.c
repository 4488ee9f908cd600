/* Used inside the shim, where unlink and rmdir are the shim's own. */
#include "tests/fault/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void tree_remove(int dir, const char *name)
{
    if (syscall(SYS_unlinkat, dir, name, 0) == 0)
        return;
    const int fd = (int)syscall(
        SYS_openat, dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    DIR *d = fdopendir(fd);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            tree_remove(fd, e->d_name);
    if (d)
        closedir(d);
    syscall(SYS_unlinkat, dir, name, AT_REMOVEDIR);
}
