/* reseal CKPT SECTION TENSOR ELEMENT BIT: flips one bit and makes every digest true again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/reseal.h"

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    enum ckpt_section section;

    if (argc != 6 || !section_find(argv[2], strlen(argv[2]), &section)) {
        fprintf(stderr, "usage: reseal CKPT SECTION TENSOR ELEMENT BIT\n");
        return 2;
    }
    reseal_flip(argv[1], section, argv[3], atoll(argv[4]), atoi(argv[5]), &err);
    if (err.code != GLM_OK)
        fprintf(stderr, "reseal: %s\n", err.text);
    return glm_exit_status(&err);
}
