/* What is asked of a hub, and what the environment says about it: as users of the hub's own client
 * expect. */
#ifndef CONVERT_HUBENV_H
#define CONVERT_HUBENV_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/error.h"

enum { HUBENV_ORIGIN = 512 };

struct hubspec { /* hf://OWNER/NAME[@REVISION] */
    char owner[128], name[128];
    char revision[256]; /* "main" unless said */
};

#define HUBSPEC_SCHEME "hf://"

bool hubspec_is(const char *text); /* begins with hf:// */
int hubspec_parse(struct hubspec *s, const char *text, struct glm_error *err);

struct hubenv {
    char *endpoint; /* HF_ENDPOINT, without a slash at its end */
    char origin[HUBENV_ORIGIN];
    bool loopback;           /* the endpoint is http on this machine */
    char *token;             /* NULL: none. Never in any output. */
    char *cache;             /* of the hub's client; NULL: there can be none */
    bool offline;            /* HF_HUB_OFFLINE */
    char *ca_file, *ca_path; /* NULL: libcurl's own */
};

int hubenv_read(struct hubenv *e, struct glm_error *err);
void hubenv_clear(struct hubenv *e);

/* "https://host:443" of an address; false if it is none that may be fetched from: https, or http
 * on loopback where loopback is allowed, without user or password in it. Also false, with errno
 * ENOMEM, if there is no memory. */
bool hubenv_origin(const char *url, bool loopback, char out[HUBENV_ORIGIN]);

#endif
