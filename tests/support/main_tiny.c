/* tiny FIXTURE DIR: writes a recorded transformers checkpoint again (tests/support/tiny.h). */
#include <stdio.h>

#include "tests/support/tiny.h"

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: tiny fixtures/NAME DIR\n");
        return 2;
    }
    if (tiny_write(argv[2], argv[1], &err) != 0)
        fprintf(stderr, "tiny: %s\n", err.text);
    return glm_exit_status(&err);
}
