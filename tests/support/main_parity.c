/* parity [--device cpu|cuda] FILE...: the model against golden files, as lines of two Markdown tables:
 * F32, BF16. What is beyond its bound (verify/numerics.h) is said and makes the exit status 5. */
#include <stdio.h>
#include <string.h>

#include "tests/support/parity.h"
#include "verify/golden.h"

static const char *device;
static int beyond;

static const char *name_of(const char *path, int *length)
{
    const char *const slash = strrchr(path, '/');
    const char *const name = slash ? slash + 1 : path;

    *length = (int)strcspn(name, ".");
    return name;
}

static void judge(const char *path, const char *what, const struct parity *p)
{
    if (p->beyond[0] == '\0')
        return;
    fprintf(stderr, "parity: %s, %s: %s\n", path, what, p->beyond);
    beyond++;
}

static void line(const char *path, const char *what, const struct parity *p)
{
    int n;
    const char *const name = name_of(path, &n);

    printf("| %.*s | %s | %.1e | %.1e | %.1e | %.1e | %lld | %lld | %lld | %lld | %.1e | "
           "%.1e | %s |\n",
        n, name, what, p->logits, p->loss, p->mtp, p->kl, (long long)p->index_wrong,
        (long long)p->expert_wrong, (long long)p->gradients, (long long)p->elements,
        p->cosine, p->gradient, p->worst);
    judge(path, what, p);
}

/* transformers by one of its attention functions beside another. */
static void itself(const char *path, struct glm_error *err)
{
    struct golden *g = NULL;
    int64_t n = 0;
    int length;
    const char *const name = name_of(path, &length);

    if (golden_open(&g, path, err) == GLM_OK) {
        const double *const x = golden_f64(g, "bf16.sdpa", &n);
        if (x != NULL && n == 3)
            printf("| %.*s | transformers' sdpa beside its eager | %.1e | | %.0f | %.0f "
                   "|\n",
                length, name, x[0], x[1], x[2]);
    }
    golden_close(g);
}

static int high(const char *path, struct glm_error *err)
{
    struct golden *g = NULL;
    struct parity p;
    int64_t n;

    if (golden_open(&g, path, err) != GLM_OK)
        return (int)err->code;
    const int both = golden_f64(g, "mtp", &n) != NULL;
    golden_close(g);
    for (int absorbed = 0; absorbed < 2; absorbed++)
        for (int k = 0; k <= both; k++) {
            const struct parity_options o = {.both = k,
                .absorbed = absorbed,
                .dtype = GLM_F32,
                .threads = 2,
                .device = device};
            if (parity_run(&p, path, &o, err) != GLM_OK)
                return (int)err->code;
            line(path,
                k ? (absorbed ? "float64, absorbed" : "float64")
                  : (absorbed ? "transformers, absorbed" : "transformers"),
                &p);
        }
    return GLM_OK;
}

/* In BF16 near ties fall otherwise, so the comparison is made with transformers' sets; beside it, what
 * comes of choosing. */
static int low(const char *path, struct glm_error *err)
{
    for (int choose = 0; choose < 2; choose++) {
        const struct parity_options o = {
            .dtype = GLM_BF16, .choose = choose, .threads = 2, .device = device};
        struct parity p;
        int length;
        const char *const name = name_of(path, &length);
        if (parity_run(&p, path, &o, err) != GLM_OK)
            return (int)err->code;
        if (!choose)
            itself(path, err);
        printf("| %.*s | %s | %.1e | ", length, name,
            choose ? "its own" : "transformers'", 1 - p.bf16_cosine);
        if (p.bf16_gradient > 0)
            printf("%.1e ", p.bf16_gradient);
        printf("| %lld | %lld |\n", (long long)p.index_wrong, (long long)p.expert_wrong);
        if (!choose)
            judge(path, "BF16", &p);
    }
    return (int)err->code;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    int first = 1;

    setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured stays if it is stopped */
    if (argc > 2 && strcmp(argv[1], "--device") == 0) {
        device = argv[2];
        first = 3;
    }
    printf(
        "| model | against | logits | loss | MTP | KL | index rows wrong | expert rows "
        "wrong | "
        "gradients | elements | 1 - cosine | max\\|d\\| / max\\|ref\\| | worst tensor |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = first; i < argc && err.code == GLM_OK; i++)
        high(argv[i], &err);
    printf("\n| model | sets | 1 - cosine of the logits | of the worst gradient | index "
           "rows "
           "that differ | expert rows that differ |\n|---|---|---|---|---|---|\n");
    for (int i = first; i < argc && err.code == GLM_OK; i++)
        low(argv[i], &err);
    if (err.code != GLM_OK)
        fprintf(stderr, "parity: %s\n", err.text);
    return err.code != GLM_OK ? glm_exit_status(&err) : beyond > 0 ? 5 : 0;
}
