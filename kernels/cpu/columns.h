/* Sums over rows, per column: gradients of norm weights.
 *
 * Rows are added in ascending order within leaves of 64, the leaves in ascending order, and the
 * total once onto what is there. Threads share columns, so their number does not show. */
#ifndef KERNELS_CPU_COLUMNS_H
#define KERNELS_CPU_COLUMNS_H

#include "kernels/cpu/lanes.h"

enum { COLUMN_TILE = 64, COLUMN_LEAF = 64 };

/* to[d] += sum over t in [0,T) of TERM, for d in [begin, end); TERM names `t` and `d`. */
#define COLUMN_SUMS(to, begin, end, T, TERM)                                             \
    for (int64_t at_ = (begin); at_ < (end); at_ += COLUMN_TILE) {                       \
        const int64_t n_ = (end)-at_ < COLUMN_TILE ? (end)-at_ : COLUMN_TILE;            \
        real total_[COLUMN_TILE] = {0};                                                  \
        for (int64_t leaf_ = 0; leaf_ < (T); leaf_ += COLUMN_LEAF) {                     \
            const int64_t stop_ = (T)-leaf_ < COLUMN_LEAF ? (T) : leaf_ + COLUMN_LEAF;   \
            real sum_[COLUMN_TILE] = {0};                                                \
            for (int64_t t = leaf_; t < stop_; t++) {                                    \
                for (int64_t i_ = 0; i_ < n_; i_++) {                                    \
                    const int64_t d = at_ + i_;                                          \
                    sum_[i_] += (TERM);                                                  \
                }                                                                        \
            }                                                                            \
            for (int64_t i_ = 0; i_ < n_; i_++)                                          \
                total_[i_] += sum_[i_];                                                  \
        }                                                                                \
        for (int64_t i_ = 0; i_ < n_; i_++)                                              \
            (to)[at_ + i_] += total_[i_];                                                \
    }

#endif
