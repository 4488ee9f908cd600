/* One long library call, watched: progress on stderr and signals as a stop flag. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "cli/opt.h"
#include "cli/progress.h"
#include "kernels/base/events.h"

struct watch {
    struct progress *progress;
    struct glm_events events; /* for the call */
};

void watch_begin(struct watch *w, const char *name, const struct common_options *common);
/* Leaves the summary line if the call succeeded. Harmless on a zeroed one. */
void watch_end(struct watch *w, bool succeeded);

#endif
