/* Token datasets from text, from JSON lines of ids, and from raw token files.
 *
 *   bytes   every byte is a token (0 to 255); a file is a document, or a line that is equal to
 *           `separator` ends one ("": blank lines). Separator lines are not kept, nor are documents
 *           without a byte between them.
 *   jsonl   a line is a document: a list of ids, or an object with "ids" and possibly "mask" (as long
 *           as ids: 1 where the token's loss counts, as a label). Other members are passed over.
 *   raw     ids, little-endian; a file is a document, or the id `document_end` ends one and stays in
 *           it.
 *
 * Files are read once, in pieces; the longest line of JSON is TOKENS_LINE. */
#ifndef TRAIN_TOKENS_BUILD_H
#define TRAIN_TOKENS_BUILD_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/events.h"

enum tokens_from { TOKENS_BYTES, TOKENS_JSONL, TOKENS_RAW };
enum { TOKENS_LINE = 16 << 20, TOKENS_SEPARATOR = 255 };

struct tokens_build_options {
    enum tokens_from from;
    enum glm_dtype dtype;     /* as stored: GLM_U16 or GLM_I32 */
    enum glm_dtype raw_dtype; /* of raw files: GLM_U16, GLM_I32 or GLM_I64 */
    const char *separator;    /* bytes; NULL: none */
    int64_t document_end;     /* raw; -1: none */
    int64_t append_eos;       /* an id that ends every document; -1: none */
    int64_t vocab;            /* ids must be below; 0: what dtype holds */
    bool replace;
    const struct glm_events *events;
};

struct tokens_build_report {
    /* masked: tokens whose loss does not count */
    int64_t documents, empty, tokens, masked;
};

int tokens_build(const char *out, char *const *sources, int count,
    const struct tokens_build_options *o, struct tokens_build_report *report,
    struct glm_error *err);

#endif
