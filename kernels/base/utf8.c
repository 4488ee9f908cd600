#include "kernels/base/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

size_t utf8_sequence(const unsigned char *p, size_t left)
{
    const unsigned c = p[0];
    if (c < 0x80)
        return 1;
    const size_t n = c >= 0xc2 && c <= 0xdf ? 2
        : (c & 0xf0) == 0xe0                ? 3
        : c >= 0xf0 && c <= 0xf4            ? 4
                                            : 0;
    if (n == 0 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    const bool overlong = (c == 0xe0 && p[1] < 0xa0) || (c == 0xf0 && p[1] < 0x90);
    const bool beyond = (c == 0xed && p[1] >= 0xa0) || (c == 0xf4 && p[1] >= 0x90);
    return overlong || beyond ? 0 : n;
}

char *utf8_mended(const char *text)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t left = strlen(text);
    char *const out = malloc(3 * left + 1), *to = out;
    while (out != NULL && left > 0) {
        const size_t n = utf8_sequence((const unsigned char *)text, left);
        const size_t taken = n > 0 ? n : 1, put = n > 0 ? n : sizeof replacement - 1;
        memcpy(to, n > 0 ? text : replacement, put);
        to += put;
        text += taken;
        left -= taken;
    }
    if (out != NULL)
        *to = '\0';
    return out;
}
