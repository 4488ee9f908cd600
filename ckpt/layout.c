/* Pipeline layouts.
 *
 * A stage must start on a layer that computes its own index set ("full"): a shared layer needs the
 * set of a layer below it, which another stage would have to send. So the starts are a choice among
 * full layers, both when a string gives them and when the default is computed. */
#include "ckpt/layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 8, REPEAT_MAX = 100000, LETTERS_MAX = 1 << 16 };

/* ---- the string, letter by letter ---------------------------------------------------------- */

struct reader {
    const char *text, *p;
    char *letters; /* expanded: E t m L | */
    size_t count;
    int depth;
    struct glm_error *err;
};

static int bad(struct reader *r, const char *what)
{
    return glm_fail(r->err, GLM_EUSAGE, "layout '%s': character %td: %s", r->text,
        r->p - r->text + 1, what);
}

static int put(struct reader *r, char letter)
{
    if (r->count == LETTERS_MAX)
        return bad(r, "more than 65536 letters after repetition");
    r->letters[r->count++] = letter;
    return 0;
}

static void skip(struct reader *r)
{
    while (*r->p == ' ' || *r->p == ',')
        r->p++;
}

/* "*N" behind the letters from `from` on: appends them N - 1 more times. */
static int repeat(struct reader *r, size_t from)
{
    skip(r);
    if (*r->p != '*')
        return 0;
    r->p++;
    skip(r);
    long n = 0;
    const char *digits = r->p;
    while (*r->p >= '0' && *r->p <= '9' && n < REPEAT_MAX)
        n = n * 10 + (*r->p++ - '0');
    if (r->p == digits || n < 1 || n >= REPEAT_MAX)
        return bad(r, "expected a count from 1 to 99999 after '*'");
    const size_t length = r->count - from;
    for (long k = 1; k < n; k++)
        for (size_t i = 0; i < length; i++)
            if (put(r, r->letters[from + i]) != 0)
                return r->err->code;
    return 0;
}

static int sequence(struct reader *r)
{
    for (skip(r); *r->p && *r->p != ')'; skip(r)) {
        const size_t from = r->count;
        if (*r->p == '(') {
            if (++r->depth > DEPTH_MAX)
                return bad(r, "parentheses too deep");
            r->p++;
            if (sequence(r) != 0)
                return r->err->code;
            if (*r->p != ')')
                return bad(r, "expected ')'");
            r->depth--;
        } else if (!strchr("EtmL|", *r->p)) {
            return bad(r,
                "unknown letter; known are E (embedding), t (layer), m (MTP), L (head), "
                "'|', '*N' and parentheses");
        } else if (put(r, *r->p) != 0) {
            return r->err->code;
        }
        r->p++;
        if (repeat(r, from) != 0)
            return r->err->code;
    }
    if (*r->p == ')' && r->depth == 0)
        return bad(r, "')' without '('");
    return 0;
}

/* ---- what the letters mean ------------------------------------------------------------------ */

/* Appends to a list in buf, cutting it with "..." when full. */
static void append(char *buf, size_t size, const char *fmt, ...) GLM_PRINTF(3, 4);
static void append(char *buf, size_t size, const char *fmt, ...)
{
    const size_t used = strlen(buf);
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(buf + used, size - used, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= size - used)
        snprintf(buf + (used < size - 4 ? used : size - 4), 4, "...");
}

static int check_starts(const struct layout *l, const char *text,
    const struct model_config *c, struct glm_error *err)
{
    for (int s = 0; s < l->stages; s++) {
        const int at = l->start[s];
        if (at == l->start[s + 1] || c->layer_owns_indexer[at])
            continue;
        char valid[512] = "";
        for (int64_t i = 0; i < c->num_hidden_layers; i++)
            if (c->layer_owns_indexer[i])
                append(valid, sizeof valid, "%s%lld", i ? ", " : "", (long long)i);
        return glm_fail(err, GLM_EUSAGE,
            "layout '%s': stage %d starts on layer %d, which shares "
            "the index set of a layer below it; valid starts are %s",
            text, s, at, valid);
    }
    return 0;
}

static int alloc(struct layout *l, int stages, struct glm_error *err)
{
    *l = (struct layout){.stages = stages, .mtp = stages - 1};
    l->start = calloc((size_t)stages + 1, sizeof *l->start);
    return l->start ? 0 : glm_fail(err, GLM_ENOMEM, "no memory for %d stages", stages);
}

/* Fills starts and the MTP's stage; letters are known ones and there are l->stages stages. */
static int place(struct layout *l, const struct reader *r, const struct model_config *c)
{
    int stage = 0, layers = 0, E = 0, L = 0, mtp = -1;
    for (size_t i = 0; i < r->count; i++) {
        switch (r->letters[i]) {
        case '|':
            l->start[++stage] = layers;
            break;
        case 't':
            if (mtp >= 0 || L > 0)
                return glm_fail(
                    r->err, GLM_EUSAGE, "layout '%s': a layer t follows m or L", r->text);
            layers++;
            break;
        case 'm':
            if ((mtp >= 0 && mtp != stage) || L > 0)
                return glm_fail(r->err, GLM_EUSAGE,
                    "layout '%s': m must stand in one stage, "
                    "before L",
                    r->text);
            mtp = stage;
            break;
        case 'E':
            if (i != 0)
                return glm_fail(
                    r->err, GLM_EUSAGE, "layout '%s': E must come first, once", r->text);
            E++;
            break;
        default:
            if (i + 1 != r->count)
                return glm_fail(
                    r->err, GLM_EUSAGE, "layout '%s': L must come last, once", r->text);
            L++;
        }
    }
    l->start[l->stages] = layers;
    if (E != 1 || L != 1)
        return glm_fail(r->err, GLM_EUSAGE,
            "layout '%s': it must start with E and end with L", r->text);
    if (layers != c->num_hidden_layers)
        return glm_fail(r->err, GLM_EUSAGE,
            "layout '%s' has %d layers, the model has %lld", r->text, layers,
            (long long)c->num_hidden_layers);
    if (mtp >= 0)
        l->mtp = mtp;
    return 0;
}

int layout_parse(struct layout *out, const char *text, const struct model_config *c,
    int stages, struct glm_error *err)
{
    struct reader r = {.text = text, .p = text, .err = err};
    int bars = 0;
    *out = (struct layout){.stages = 0};
    r.letters = malloc(LETTERS_MAX);
    if (!r.letters)
        return glm_fail(err, GLM_ENOMEM, "no memory for a layout");
    if (sequence(&r) != 0)
        goto out;
    for (size_t i = 0; i < r.count; i++)
        bars += r.letters[i] == '|';
    if (bars + 1 != stages) {
        glm_fail(err, GLM_EUSAGE, "layout '%s' has %d stages, pp * vpp is %d", text,
            bars + 1, stages);
        goto out;
    }
    if (alloc(out, stages, err) == 0 && place(out, &r, c) == 0)
        check_starts(out, text, c, err);
out:
    free(r.letters);
    if (err->code != GLM_OK)
        layout_clear(out);
    return err->code;
}

/* ---- the default ---------------------------------------------------------------------------- */

struct plan {
    const int *full; /* full layers, ascending; full[0] = 0 */
    int n, layers, stages;
    /* [n]: least sum of squares from full[i] to the end in k, k-1 stages */
    int64_t *cost, *below;
    /* [stages][n]: index of the following start, the smallest that is best */
    uint16_t *next;
};

/* Row k from row k - 1. A stage longer than its fair share only gets worse once its own square and
 * an ideal rest exceed the best, so the loop over ends is short. */
static void plan_row(const struct plan *p, int k)
{
    for (int i = 0; i + k <= p->n; i++) {
        const int64_t rest = p->layers - p->full[i];
        int64_t best = INT64_MAX;
        int choice = i + 1;
        for (int j = i + 1; j + k - 1 <= p->n; j++) {
            const int64_t size = p->full[j] - p->full[i], left = rest - size;
            if (size * k > rest && size * size + left * left / (k - 1) > best)
                break;
            if (size * size + p->below[j] < best) {
                best = size * size + p->below[j];
                choice = j;
            }
        }
        p->cost[i] = best;
        p->next[(size_t)k * (size_t)p->n + (size_t)i] = (uint16_t)choice;
    }
}

static void plan_run(struct plan *p, struct layout *l)
{
    for (int i = 0; i < p->n; i++)
        p->cost[i] = (int64_t)(p->layers - p->full[i]) * (p->layers - p->full[i]);
    for (int k = 2; k <= p->stages; k++) {
        int64_t *swap = p->below;
        p->below = p->cost;
        p->cost = swap;
        plan_row(p, k);
    }
    int at = 0;
    for (int s = 0; s < p->stages; s++) {
        l->start[s] = p->full[at];
        if (s + 1 < p->stages)
            at = p->next[(size_t)(p->stages - s) * (size_t)p->n + (size_t)at];
    }
    l->start[p->stages] = p->layers;
}

int layout_default(
    struct layout *out, const struct model_config *c, int stages, struct glm_error *err)
{
    const size_t L = (size_t)c->num_hidden_layers;
    struct plan p = {.layers = (int)L, .stages = stages};
    *out = (struct layout){.stages = 0};
    int *full = calloc(L, sizeof *full);
    p.cost = calloc(L, sizeof *p.cost);
    p.below = calloc(L, sizeof *p.below);
    for (size_t i = 0; full && i < L; i++)
        if (c->layer_owns_indexer[i])
            full[p.n++] = (int)i;
    if (full && stages > p.n) {
        glm_fail(err, GLM_EUSAGE,
            "%d pipeline stages (pp * vpp), but only %d layers compute an "
            "index set and may start one: at most %d stages",
            stages, p.n, p.n);
        goto out;
    }
    p.full = full;
    p.next = full ? calloc((size_t)(stages + 1) * (size_t)p.n, sizeof *p.next) : NULL;
    if (!full || !p.cost || !p.below || !p.next)
        glm_fail(err, GLM_ENOMEM, "no memory for %d stages", stages);
    else if (alloc(out, stages, err) == 0)
        plan_run(&p, out);
out:
    free(full);
    free(p.cost);
    free(p.below);
    free(p.next);
    return err->code;
}

void layout_clear(struct layout *l)
{
    free(l->start);
    *l = (struct layout){.stages = 0};
}

static size_t print(char *buf, size_t size, size_t at, const char *letter, int64_t n)
{
    char word[32] = "";
    if (n == 1)
        snprintf(word, sizeof word, "%s", letter);
    else if (n > 1)
        snprintf(word, sizeof word, "%s*%lld", letter, (long long)n);
    return at
        + (size_t)snprintf(
            at < size ? buf + at : NULL, at < size ? size - at : 0, "%s", word);
}

int layout_print(
    const struct layout *l, const struct model_config *c, char *buf, size_t size)
{
    size_t at = print(buf, size, 0, "E", 1);
    for (int s = 0; s < l->stages; s++) {
        if (s > 0)
            at = print(buf, size, at, "|", 1);
        at = print(buf, size, at, "t", l->start[s + 1] - l->start[s]);
        if (s == l->mtp)
            at = print(buf, size, at, "m", c->num_mtp_layers);
    }
    return (int)print(buf, size, at, "L", 1);
}
