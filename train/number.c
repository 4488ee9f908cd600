#include "train/number.h"

#include <stdio.h>
#include <stdlib.h>

const char *number_print(double x, char *buf, size_t size)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, size, "%.*g", digits, x);
        const double back = strtod(buf, NULL);
        if (!(back < x) && !(back > x))
            break;
    }
    return buf;
}
