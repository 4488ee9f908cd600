/* Fuzzes what is read of a hub's JSON: pages of a list of files, and the answer about a revision.
 *
 * Covers: convert/hubtree.c
 *
 * Input: pages, parted by a byte 0; a first byte of '?' means an answer about a revision. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "convert/hubtree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void check_commit(const char *text, size_t size)
{
    char commit[HUBTREE_COMMIT] = "";
    struct glm_error err = {0};
    const int code = hubtree_commit("fuzz", text, size, commit, &err);
    must(code == (int)err.code && (code == 0) == (err.text[0] == '\0'));
    const size_t n = strspn(commit, "0123456789abcdef");
    must(code != 0 || ((n == 40 || n == 64) && commit[n] == '\0'));
}

/* Whether a part between slashes is "..". */
static bool climbs(const char *path)
{
    for (const char *p = path;; p++) {
        const size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return true;
        p += n;
        if (*p == '\0')
            return false;
    }
}

/* A list that was accepted: sorted, each path once, none leading anywhere. */
static void check_list(const struct hubtree *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        const char *path = t->files[i].path;
        must(path[0] != '\0' && path[0] != '/' && !climbs(path));
        must(strchr(path, '\\') == NULL && strchr(path, '\n') == NULL);
        must(i == 0 || strcmp(t->files[i - 1].path, path) < 0);
        must(hubtree_find(t, path) == &t->files[i]);
    }
    must(hubtree_find(t, "no//path") == NULL); /* never accepted */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hubtree t = {0};
    struct glm_error err = {0};
    if (size > 0 && data[0] == '?') {
        check_commit((const char *)data + 1, size - 1);
        return 0;
    }
    while (err.code == GLM_OK) {
        const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
        const size_t n = end != NULL ? (size_t)(end - data) : size;
        char *page = malloc(n + 1), *exact = n > 0 ? realloc(page, n) : page;
        if (n > 0)
            memcpy(exact, data, n);
        const int code = hubtree_page(&t, "fuzz", exact, n, &err);
        must(code == (int)err.code && (code == 0) == (err.text[0] == '\0'));
        free(exact);
        if (end == NULL)
            break;
        data = end + 1;
        size -= n + 1;
    }
    if (err.code == GLM_OK && hubtree_check(&t, "fuzz", &err) == GLM_OK)
        check_list(&t);
    hubtree_clear(&t);
    return 0;
}
