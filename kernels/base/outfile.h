/* A file that a command writes beside its work, where the user said: a report, a picture.
 *
 * It may be a device or a pipe, which are written to and stay. It may not be one of the files that
 * the command works on: whoever types the wrong name would lose a checkpoint for a picture. */
#ifndef KERNELS_BASE_OUTFILE_H
#define KERNELS_BASE_OUTFILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "kernels/base/error.h"

struct outfile {
    FILE *out;
    bool regular; /* neither device nor pipe */
};

/* Opens without waiting (a pipe that nobody reads is GLM_EUSAGE) and without touching what is in
 * the file. On failure there is nothing to close. */
int outfile_open(struct outfile *o, const char *path, struct glm_error *err);
/* Empties a regular file; then o->out is written to. */
int outfile_begin(struct outfile *o, const char *path, struct glm_error *err);
/* Also reports what could not be written. Harmless on one that is not open. */
int outfile_close(struct outfile *o, const char *path, struct glm_error *err);

/* Whether path is the folder or lies in it, links followed; real: where path leads. Neither has to
 * exist. False also where that cannot be told: opening it will say why. */
bool outfile_inside(const char *path, const char *folder, char real[PATH_MAX]);

#endif
