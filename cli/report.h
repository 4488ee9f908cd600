/* The end of a command: its error as one sentence on stderr, its exit status. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdio.h>

#include "kernels/base/error.h"

/* Flushes stdout (a result that could not be written is an error of its own: exit 4), prints
 * "glm-import: <sentence>" on stderr if err holds one, and returns the exit status for main. */
int cli_report(const char *name, struct glm_error *err);

enum { CLI_SHOWN = 8192 };

/* A text from outside as a terminal may get it: names of files may hold what a terminal obeys, and
 * what does, new lines and marks that turn the order of letters about among it, is shown as \x0a.
 * Cut to what the buffer holds; returns the buffer. */
const char *cli_shown(const char *text, char shown[CLI_SHOWN]);

/* "<name>: <text>" as one line, the text as cli_shown gives it. */
void cli_sentence(FILE *out, const char *name, const char *text);

#endif
