/* parity FILE...: the model against golden files, as lines of a Markdown table. */
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
out:
    if (err.code != GLM_OK)
        fprintf(stderr, "parity: %s\n", err.text);
    return glm_exit_status(&err);
}
