/* Switches that break a module on purpose: a test of parity that passes with one of them on proves
 * nothing (tests/mutants/parity.sh). Each is compiled in by -D<name>, never in a build that is
 * shipped; those of single operations are in kernels/cpu/mutate.h.
 *
 * MUTATE_EPS_SWAPPED        model.c    block norms with 1e-6, latent norms with the block's eps
 * MUTATE_KNORM_RMS          indexer.c  the indexer's key norm as an RMSNorm without bias
 * MUTATE_INDEXER_ROPE_LAST  indexer.c  the indexer's rope dims at the end of a head
 * MUTATE_INDEX_RECOMPUTED   layer.c    a shared layer chooses its own keys
 * MUTATE_SHARED_SCALED      moe.c      the routed factor on the shared expert too
 * MUTATE_MTP_ORDER          mtp.c      [hidden ; embedding] before eh_proj
 * MUTATE_MTP_RAW_HIDDEN     model.c    MTP reads the hidden state before the final norm */
#ifndef TRAIN_MUTATE_H
#define TRAIN_MUTATE_H

#if defined(MUTATE_EPS_SWAPPED)
#define MUTATED_EPS 1
#else
#define MUTATED_EPS 0
#endif

#endif
