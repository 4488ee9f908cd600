/* The door of ckpt/: the checkpoint, from the parameter table to the bytes on disk. */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include "ckpt/config.h"
#include "ckpt/digest.h"
#include "ckpt/dio.h"
#include "ckpt/index.h"
#include "ckpt/ledger.h"
#include "ckpt/manifest.h"
#include "ckpt/packed.h"
#include "ckpt/reader.h"
#include "ckpt/rect.h"
#include "ckpt/region.h"
#include "ckpt/shard.h"
#include "ckpt/table.h"
#include "ckpt/tile.h"
#include "ckpt/topology.h"
#include "ckpt/userblock.h"
#include "ckpt/volumes.h"
#include "ckpt/work.h"
#include "ckpt/writer.h"

#endif
