#include "cli/watch.h"

#include "cli/signals.h"

void watch_begin(struct watch *w, const char *name, const struct common_options *common)
{
    w->progress =
        progress_new(&(struct progress_options){.name = name, .quiet = common->quiet});
    w->events = progress_events(w->progress, signals_catch());
}

void watch_end(struct watch *w, bool succeeded)
{
    progress_end(w->progress, succeeded);
    progress_free(w->progress);
    *w = (struct watch){0};
}
