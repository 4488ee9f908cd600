/* Operations that do nothing: a step that runs on them, with dry arenas, finds its own size. */
#ifndef TRAIN_DRY_H
#define TRAIN_DRY_H

#include "kernels/kernels.h"

extern const struct kernels dry_kernels;

#endif
