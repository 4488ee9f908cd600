/* Of which commit an unfinished checkpoint is. A branch that moves between a run and its rerun makes
 * another plan, and only the commit leads back to the old one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/flow.h"
#include "convert/hub.h"

#define SIGN "from "

static int find_sign(void *ctx, char *line, struct glm_error *err)
{
    bool *found = ctx;
    (void)err;
    *found = *found || strncmp(line, SIGN, strlen(SIGN)) == 0;
    return GLM_OK;
}

int hub_sign(const struct hub *h, const struct flow_sink *sink, struct glm_error *err)
{
    bool found = false;
    char *line = NULL;

    if (sink->recall(sink->ctx, find_sign, &found, err) != GLM_OK || found)
        return (int)err->code;
    if (asprintf(&line, SIGN "%s@%s\n", hub_name(h), hub_commit(h)) < 0)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", hub_name(h));
    sink->journal(sink->ctx, line, err);
    free(line);
    return (int)err->code;
}

/* The commit that a line of the journal names, of this repository; NULL: none. */
static char *commit_of(const struct hub *h, char *line)
{
    const size_t n = strlen(hub_name(h));
    char *p = line + strlen(SIGN);

    if (strncmp(line, SIGN, strlen(SIGN)) != 0 || strncmp(p, hub_name(h), n) != 0
        || p[n] != '@')
        return NULL;
    p += n + 1;
    p[strspn(p, "0123456789abcdef")] = '\0';
    return p;
}

void hub_moved(const struct hub *h, const char *out, struct glm_error *err)
{
    char line[512], *path = NULL, *old = NULL;
    FILE *f = NULL;

    if (err->code != GLM_EUSAGE || asprintf(&path, "%s.partial/journal", out) < 0)
        return;
    f = fopen(path, "re");
    for (int i = 0; f != NULL && old == NULL && i < 8; i++) /* it stands near the top */
        old = fgets(line, sizeof line, f) != NULL ? commit_of(h, line) : NULL;
    if (old != NULL && strcmp(old, hub_commit(h)) != 0) {
        glm_error_clear(err);
        glm_fail(err, GLM_EUSAGE,
            "%s.partial: holds unfinished work of another commit of %s: the revision has "
            "moved "
            "to %s. Import %s@%s to finish it, or give --restart to discard it",
            out, hub_name(h), hub_commit(h), hub_name(h), old);
    }
    if (f != NULL)
        fclose(f);
    free(path);
}
