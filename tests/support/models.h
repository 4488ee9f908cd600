/* Tables of the configurations in fixtures/configs, for tests; run from the root of the tree. */
#ifndef TESTS_SUPPORT_MODELS_H
#define TESTS_SUPPORT_MODELS_H

#include "ckpt/table.h"
#include "ckpt/topology.h"

/* The text of fixtures/configs/<name>.json, zero-terminated; free it. Aborts if it cannot. */
char *models_config(const char *name);
/* Its table; table_free it. Aborts with the sentence on stderr if it is refused. */
struct table *models_table(const char *name, bool drop_mtp);
/* The placement of a topology; aborts if it is refused. */
struct placement *models_placement(const struct table *t, struct topology topo);

#endif
