/* A training run for tests: a model of 60,000 parameters on ragged documents, in a folder of its
 * own. A step takes a hundredth of a second. */
#ifndef TESTS_SUPPORT_TRAINRUN_H
#define TESTS_SUPPORT_TRAINRUN_H

#include "train/run.h"

/* Makes a folder with config.json, data.h5 and recipe.yaml; tmpdir_remove it. args and glm are lines
 * of the recipe, each indented by two spaces and ended, added to
 *     20 steps of 4 samples of 32 rows in micro-batches of 4, a save every 5, all kept; packed
 *     documents; seed 7; indexer and MTP losses on
 * whose keys they may overrule. */
char *trainrun_new(const char *args, const char *glm);
/* Writes recipe.yaml again; paths in it begin with the folder. */
void trainrun_write(const char *dir, const char *args, const char *glm);
/* Aborts with the sentence if it is refused. */
struct recipe *trainrun_recipe(const char *dir);

/* Reads the recipe and trains in dir/run, until stop_at if that is not 0. Returns the code. */
int trainrun_go(const char *dir, const char *run, struct train_options o,
    const struct train_watch *watch, const struct glm_events *events,
    struct train_report *report, struct glm_error *err);
/* The same; a failure fails the test with its sentence. */
struct train_report trainrun_good(
    const char *dir, const char *run, struct train_options o);

/* Fingerprint of dir/run/step-…, as hex in one of a few rotating buffers; "" if it is not there. */
const char *trainrun_print(const char *dir, const char *run, int64_t step);
bool trainrun_there(const char *dir, const char *run, int64_t step);

#endif
