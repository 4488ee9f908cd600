/* The list of model families. */
#include "ckpt/family.h"

#include <string.h>

const struct table_family *family_find(const char *model_type)
{
    static const struct table_family *const families[] = {&glm52_family};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(families[i]->model_type, model_type) == 0)
            return families[i];
    return NULL;
}
