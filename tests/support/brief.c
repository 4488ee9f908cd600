#include "tests/support/brief.h"

#include <stdlib.h>
#include <string.h>

bool brief(void)
{
    const char *const s = getenv("TESTS_BRIEF");

    return s != NULL && strcmp(s, "1") == 0;
}
