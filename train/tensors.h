/* What a training state is made of: named arrays by checkpoint section, with their memory.
 *
 * params_state and optimizer_state list theirs, other owners add their small arrays; a state writer
 * stores the list bit for bit, a reader fills the same memory again. */
#ifndef TRAIN_TENSORS_H
#define TRAIN_TENSORS_H

#include "ckpt/ckpt.h"
#include "train/home.h"

struct train_tensor {
    enum ckpt_section section;
    const char *name; /* lives as long as its owner */
    enum glm_dtype dtype;
    int rank;
    int64_t shape[3];
    bool stack;
    const struct table_entry *entry; /* NULL in section train */
    bool derived;            /* a weight equal to its master rounded to nearest even */
    void *data;              /* row-major, no padding */
    const struct home *home; /* where data lies; NULL: the host */
};

struct train_tensors {
    struct train_tensor *list;
    int64_t count, room;
};

int tensors_add(
    struct train_tensors *t, const struct train_tensor *one, struct glm_error *err);
/* A tensor of the table, its shape from the entry; home is borrowed. */
int tensors_add_entry(struct train_tensors *t, enum ckpt_section section,
    const struct table_entry *entry, enum glm_dtype dtype, void *data,
    const struct home *home, bool derived, struct glm_error *err);
void tensors_clear(struct train_tensors *t); /* the list, not the data */
int64_t tensors_elements(const struct train_tensor *t);

/* Fills t->data from a checkpoint, every tile verified. GLM_EFORMAT names what differs: the tensor
 * is not there, its shape, its type. cast: another floating-point type is converted (rounded to
 * nearest even); otherwise types must be equal and bits are kept. */
int tensors_read(
    const struct train_tensor *t, struct reader *r, bool cast, struct glm_error *err);
/* All of a list, by several threads (below 1: 1). */
int tensors_read_all(const struct train_tensors *t, struct reader *r, bool cast,
    int threads, struct glm_error *err);
/* Whether the checkpoint has it. */
bool tensors_there(const struct reader *r, enum ckpt_section section, const char *name);

/* Elements of one floating-point type (BF16, F16, F32, F64) to another. */
void tensors_cast(void *to, enum glm_dtype to_type, const void *from,
    enum glm_dtype from_type, int64_t n);

#endif
