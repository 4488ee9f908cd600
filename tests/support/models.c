#include "tests/support/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/tmpdir.h"

static void need(const struct glm_error *err)
{
    if (err->code == GLM_OK)
        return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

char *models_config(const char *name)
{
    char path[256];
    size_t size;
    snprintf(path, sizeof path, "fixtures/configs/%s.json", name);
    return tmpdir_read(path, &size);
}

struct table *models_table(const char *name, bool drop_mtp)
{
    struct glm_error err = {0};
    struct model_config config;
    struct table *t = NULL;
    char *text = models_config(name);
    config_parse(&config, name, text, strlen(text), &err);
    free(text);
    need(&err);
    table_build(&t, &config, drop_mtp, &err);
    need(&err);
    return t;
}

struct placement *models_placement(const struct table *t, struct topology topo)
{
    struct glm_error err = {0};
    struct placement *p = NULL;
    placement_init(&p, t, &topo, &err);
    need(&err);
    return p;
}
