/* The training state: all that the next step depends on, as a checkpoint, bit for bit.
 *
 * Sections (spec/training.md 10): weights; masters and moments; and in `train`
 *
 *     step, samples, tokens   I64   counted since the run's first step
 *     data_position           I64   number of the next sample
 *     data_fingerprint        U8    SHA-256 of what sample i depends on
 *     seed                    U64   of initial weights and data order
 *     schedule                F64   train/schedule.h
 *     features                U8    lines "name value": what the model computes; must be equal
 *     build                   U8    lines "name value": who computed; another one is allowed, with a
 *                                   note, because then bits may differ
 *     optimizer, optimizer_steps    train/optimizer.h
 *
 * A BF16 weight that equals its rounded master is `derived master`. In F32 the weights are the
 * masters. Gradients and token counts are zero between steps and are not stored. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include "kernels/base/events.h"
#include "train/optimizer.h"
#include "train/origin.h"
#include "train/params.h"
#include "train/schedule.h"

struct state {
    struct params *params; /* borrowed, as optimizer is */
    struct optimizer *optimizer;
    int64_t step, samples, tokens, position;
    uint64_t seed;
    unsigned char data[DIGEST_SIZE];
    struct schedule plan; /* packed into `schedule` by state_init */
    double schedule[SCHEDULE_NUMBERS];
    char *features, *build; /* owned */
    size_t features_size, build_size;
    struct train_tensors tensors; /* the whole list, in the order of a checkpoint */
};

/* The counters, seed, data, plan and texts are the caller's to fill before; features and build
 * are taken over. The state must not move afterwards: the list points into it. */
int state_init(struct state *s, struct glm_error *err);
void state_clear(struct state *s); /* harmless on a zeroed one */

struct state_save {
    const char *path;
    const struct topology *topology;
    uint64_t shard_size; /* 0: 4 GiB */
    const struct origin *origin;
    bool without_mtp;
    int threads; /* that hash and write; below 1: 1 */
};
/* Whole or absent. A failure leaves a partial that nothing goes on from. */
int state_save(struct state *s, const struct state_save *o, struct glm_error *err);

/* GLM_EMISMATCH names the first weight, master or moment that is infinite or not a number. */
int state_check(const struct state *s, struct glm_error *err);

/* Reads it into the same memory. GLM_EUSAGE names the first feature, schedule or optimizer option,
 * seed or dataset that is another than the checkpoint's. */
int state_load(struct state *s, struct reader *r, const struct glm_events *events,
    struct glm_error *err);

/* Digests of a tensor's canonical tiles, in their order, as a checkpoint of the state would have. */
int64_t state_tiles(const struct train_tensor *t);
struct tile_grid state_grid(const struct train_tensor *t);
int state_hash(
    const struct train_tensor *t, unsigned char *digests, struct glm_error *err);
/* Of all tensors, one behind the other. */
int state_hash_all(const struct state *s, unsigned char *digests, struct glm_error *err);

/* Rows of tiles lie one behind the other in memory: a band is a rectangle as wide as the tensor. */
int64_t state_bands(const struct tile_grid *g);
struct rect state_band(const struct tile_grid *g, int64_t band);
/* Where the host can see it: the array itself, or a copy in buf. NULL with a sentence: the device
 * did not give it. */
const unsigned char *state_band_data(const struct train_tensor *t,
    const struct tile_grid *g, const struct rect *band, void *buf, struct glm_error *err);
/* Bytes of the copy of the largest band. */
size_t state_band_room(const struct train_tensor *t, const struct tile_grid *g);

#endif
