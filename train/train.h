/* The door of train/: what a training run is made of. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include "train/curves.h"
#include "train/dataset.h"
#include "train/flops.h"
#include "train/metrics.h"
#include "train/model.h"
#include "train/modelparams.h"
#include "train/optimizer.h"
#include "train/params.h"
#include "train/recipe.h"
#include "train/run.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/tensors.h"
#include "train/tokens.h"
#include "train/tokens_build.h"

#endif
