/* What import, export, convert and reshard say on stdout when they are done. */
#ifndef CLI_OUTCOME_H
#define CLI_OUTCOME_H

#include "cli/watch.h"
#include "convert/convert.h"

struct outcome {
    const char *command;        /* "glm-import" */
    const char *input, *output; /* as given */
    bool json;
    const struct convert_report *report;
};

/* A few lines for people, or one JSON object whose keys are always the same. */
int outcome_print(const struct outcome *o, struct glm_error *err);
/* The same after a call that was watched, if it succeeded; the progress line has ended before. */
void outcome_end(const struct outcome *o, struct watch *watch, struct glm_error *err);

#endif
