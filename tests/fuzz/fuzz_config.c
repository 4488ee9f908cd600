/* Fuzzes the reader of config.json; of small models the table is built too.
 *
 * Covers: ckpt/config.c ckpt/glm52_config.c
 *
 * Input: the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct glm_error err = {0};
    struct model_config c;
    char *text = malloc(size + 1);
    if (size)
        memcpy(text, data, size);
    const int code = config_parse(&c, "config.json", text, size, &err);
    free(text);
    if (code != (int)err.code || (code != 0) != (err.text[0] != '\0'))
        abort();
    if (code == 0 && c.num_hidden_layers <= 8 && c.num_mtp_layers <= 2) {
        struct table *t;
        if (table_build(&t, &c, false, &err) == 0) {
            int64_t member;
            for (int64_t i = 0; i < t->count; i++)
                if (table_find(t, t->entries[i].name, strlen(t->entries[i].name), &member)
                    != &t->entries[i])
                    abort();
            table_free(t);
        }
    }
    config_clear(&c);
    return 0;
}
