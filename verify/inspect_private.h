/* What the files behind inspect.h share. */
#ifndef VERIFY_INSPECT_PRIVATE_H
#define VERIFY_INSPECT_PRIVATE_H

#include "verify/inspect.h"
#include "verify/side.h"

struct inspect {
    struct side side;
};

/* Members that Hugging Face counts apart. */
static inline int64_t inspect_members(const struct side_row *r)
{
    return r->stack ? r->shape[0] : 1;
}

#endif
