/* parity FILE...: the model against golden files, as lines of two Markdown tables: F32, BF16. */
#include <stdio.h>
#include <string.h>

#include "tests/support/parity.h"
#include "verify/golden.h"

static void line(const char *path, const char *what, const struct parity *p)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    printf("| %.*s | %s | %.1e | %.1e | %.1e | %.1e | %lld | %lld | %lld | %lld | %.1e | "
           "%.1e | %s |\n",
        (int)strcspn(name, "."), name, what, p->logits, p->loss, p->mtp, p->kl,
        (long long)p->index_wrong, (long long)p->expert_wrong, (long long)p->gradients,
        (long long)p->elements, p->cosine, p->gradient, p->worst);
}

/* transformers by one of its attention functions beside another. */
static void itself(const char *path, const char *name, struct glm_error *err)
{
    struct golden *g = NULL;
    int64_t n = 0;

    if (golden_open(&g, path, err) == GLM_OK) {
        const double *const x = golden_f64(g, "bf16.sdpa", &n);
        if (x != NULL && n == 3)
            printf(
                "| %.*s | transformers' sdpa beside its eager | %.1e | %.0f | %.0f |\n",
                (int)strcspn(name, "."), name, x[0], x[1], x[2]);
    }
    golden_close(g);
}

/* In BF16 near ties fall otherwise, so the comparison is made with transformers' sets; beside it, what
 * comes of choosing. */
static int low(int files, char **file, struct glm_error *err)
{
    printf("\n| model | sets | 1 - cosine of the logits | index rows that differ | "
           "expert rows "
           "that differ |\n|---|---|---|---|---|\n");
    for (int i = 0; i < files; i++)
        for (int choose = 0; choose < 2; choose++) {
            const struct parity_options o = {
                .dtype = GLM_BF16, .choose = choose, .threads = 2};
            const char *const slash = strrchr(file[i], '/');
            const char *const name = slash ? slash + 1 : file[i];
            struct parity p;
            if (parity_run(&p, file[i], &o, err) != GLM_OK)
                return (int)err->code;
            if (!choose)
                itself(file[i], name, err);
            printf("| %.*s | %s | %.1e | %lld | %lld |\n", (int)strcspn(name, "."), name,
                choose ? "its own" : "transformers'", 1 - p.bf16_cosine,
                (long long)p.index_wrong, (long long)p.expert_wrong);
        }
    return GLM_OK;
}

int main(int argc, char **argv)
{
    struct glm_error err = {0};
    printf(
        "| model | against | logits | loss | MTP | KL | index rows wrong | expert rows "
        "wrong | "
        "gradients | elements | 1 - cosine | max\\|d\\| / max\\|ref\\| | worst tensor |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 1; i < argc; i++) {
        struct parity p;
        struct golden *g = NULL;
        int64_t n;
        if (golden_open(&g, argv[i], &err) != 0)
            break;
        const int both = golden_f64(g, "mtp", &n) != NULL;
        golden_close(g);
        for (int absorbed = 0; absorbed < 2; absorbed++)
            for (int k = 0; k <= both; k++) {
                const struct parity_options o = {
                    .both = k, .absorbed = absorbed, .dtype = GLM_F32, .threads = 2};
                if (parity_run(&p, argv[i], &o, &err) != 0)
                    goto out;
                line(argv[i],
                    k ? (absorbed ? "float64, absorbed" : "float64")
                      : (absorbed ? "transformers, absorbed" : "transformers"),
                    &p);
            }
    }
    if (err.code == GLM_OK)
        low(argc - 1, argv + 1, &err);
out:
    if (err.code != GLM_OK)
        fprintf(stderr, "parity: %s\n", err.text);
    return glm_exit_status(&err);
}
