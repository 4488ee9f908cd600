/* What work.c and work_lease.c share. Private. */
#ifndef CKPT_WORK_INSIDE_H
#define CKPT_WORK_INSIDE_H

#include "ckpt/digest.h"
#include "ckpt/work.h"

struct work {
    char *target, *partial, *parent;
    char plan_hex[DIGEST_HEX];
    int journal; /* append descriptor */
    int folder;  /* NAME.partial, locked from before the lease until after the rename */
    bool replace, owner, seal;
};

char *work_joined(const char *folder, const char *name); /* NULL: no memory */

/* The kernel may take a part only: at the end of a disk, or at a signal. */
bool work_write_all(int fd, const char *data, size_t size);

int work_write_seal(const struct work *w, struct glm_error *err); /* durable on return */
void work_remove_seal(const struct work *w);
int work_void_seal(const struct work *w, struct glm_error *err); /* durably removed */
bool work_is_sealed(const struct work *w); /* for this plan, and the folder is there */

/* Locks NAME.partial, which exists, against other processes; GLM_EUSAGE if one is at work there. */
int work_lock_folder(struct work *w, struct glm_error *err);
int work_take_lease(struct work *w, bool take_foreign, struct glm_error *err);
void work_drop_lease(struct work *w);
/* Removes leases that a killed process left half made. */
void work_sweep_leases(const struct work *w);

#endif
