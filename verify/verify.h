/* The door of verify/: proofs about checkpoints and runs, and what is inside them. Answers are data; printing
 * them is the commands' part. */
#ifndef VERIFY_VERIFY_H
#define VERIFY_VERIFY_H

#include "verify/diff.h"
#include "verify/findings.h"
#include "verify/inspect.h"
#include "verify/integrity.h"
#include "verify/numerics.h"
#include "verify/resume.h"

#endif
