/* Fuzzes the reader of recipes. What is accepted has a canonical text that is accepted again and
 * gives the same text.
 *
 * Covers: train/yamltree.c train/recipe.c train/recipe_values.c train/recipe_model.c train/recipe_check.c
 *
 * Input: a byte of options (1: allow unbuilt keys; 2: the first line is a --set, 4: the next one an
 * --ignore-key), then the recipe. Recipes that name files to read a configuration from are left
 * alone, but for the repository's own small configurations. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "train/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whether the text may have the key of a file to read, "load:" or "model=", other than of fixtures/. */
static bool reads_files(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"load", "model"};
    for (size_t k = 0; k < 2; k++) {
        const size_t n = strlen(keys[k]);
        const uint8_t *at = data, *const end = data + size;
        while ((at = memmem(at, (size_t)(end - at), keys[k], n)) != NULL) {
            const bool inside = at > data && at[-1] == '_';
            for (at += n; at < end && (*at == '\'' || *at == '"' || *at == ' '); at++)
                ;
            if (inside || at == end || (*at != ':' && *at != '='))
                continue;
            for (at++; at < end && (*at == ' ' || *at == '\'' || *at == '"'); at++)
                ;
            if ((size_t)(end - at) < 17 || memcmp(at, "fixtures/configs/", 17) != 0)
                return true;
        }
    }
    return false;
}

/* Takes a line off the text. */
static char *line(const char **text, size_t *size)
{
    const char *const end = memchr(*text, '\n', *size);
    const size_t n = end ? (size_t)(end - *text) : *size;
    char *const out = strndup(*text, n);
    *text += n + (end != NULL);
    *size -= n + (end != NULL);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct glm_error err = {0};
    struct recipe *r, *again;
    char *set = NULL, *ignore = NULL;
    if (size < 1 || reads_files(data, size))
        return 0;
    const char *text = (const char *)data + 1;
    size_t length = size - 1;
    if (data[0] & 2)
        set = line(&text, &length);
    if (data[0] & 4)
        ignore = line(&text, &length);
    const struct recipe_options o = {.allow_unbuilt = data[0] & 1,
        .set = (const char *const *)&set,
        .sets = set != NULL,
        .ignore = (const char *const *)&ignore,
        .ignores = ignore != NULL};
    char *const exact = malloc(length + 1);
    memcpy(exact, text, length);
    const int code = recipe_parse(&r, "recipe", exact, length, &o, &err);
    free(exact);
    free(set);
    free(ignore);
    if (code != (int)err.code || (code != 0) != (err.text[0] != '\0')
        || (code != 0) != (r == NULL))
        abort();
    if (code != 0)
        return 0;
    const struct recipe_options same = {.allow_unbuilt = o.allow_unbuilt};
    if (recipe_parse(&again, "recipe", r->text, r->text_size, &same, &err) != 0
        || strcmp(again->text, r->text) != 0)
        abort();
    recipe_free(again);
    recipe_free(r);
    return 0;
}
