/* A token dataset opened for reading: documents of token ids, and possibly a loss mask.
 *
 * Two formats: our own HDF5 file (man glm-dataset.5; "GLMDATA 1" in its user block) and Megatron's
 * pair .idx and .bin, read as it is. Both are read with plain reads; every number in a header is held
 * against the lengths of the files before it is used, so a hostile file gives a sentence. In memory
 * is one offset for each document, nothing that grows with the tokens. */
#ifndef TRAIN_TOKENS_H
#define TRAIN_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/events.h"

enum tokens_format { TOKENS_GLM, TOKENS_MEGATRON };

struct tokens {
    enum tokens_format format;
    struct dio file;      /* the file with the ids; file.path is for sentences */
    uint64_t base;        /* byte of the first id */
    uint64_t mask_base;   /* byte of the first mask element; 0: there is no mask */
    enum glm_dtype dtype; /* of the ids as stored */
    int64_t documents, count, empty, shortest, longest;
    int64_t largest; /* the largest id; -1 where the format does not say */
    int64_t *start;  /* [documents + 1], in tokens */
    /* SHA-256: of our user block, which holds the digest of every part; of Megatron's whole .idx and
     * the length of its .bin, whose content has no digest. */
    unsigned char fingerprint[DIGEST_SIZE];
};

/* path: our file; or Megatron's prefix, .idx or .bin. On failure *t is as if closed. */
int tokens_open(struct tokens *t, const char *path, struct glm_error *err);
void tokens_close(struct tokens *t); /* harmless on a zeroed or failed one */
const char *tokens_format_name(enum tokens_format format);

static inline int64_t tokens_length(const struct tokens *t, int64_t document)
{
    return t->start[document + 1] - t->start[document];
}

/* Reads ids [first, first + n) of a document. An id outside [0, vocab) is GLM_EFORMAT, named by file,
 * document and position. mask may be NULL; without a stored mask it is all 1. */
int tokens_read(const struct tokens *t, int64_t document, int64_t first, int64_t n,
    int64_t vocab, int32_t *out, uint8_t *mask, struct glm_error *err);

/* Reads everything: ids against vocab (0: any id that an int32 holds), mask elements, and in our
 * format every digest. What is not as it should be is GLM_EMISMATCH. *largest: the largest id. */
int tokens_check(const struct tokens *t, int64_t vocab, int64_t *largest,
    const struct glm_events *events, struct glm_error *err);

#endif
