/* toy: writes a toy model as a Hugging Face directory, or lists its tensors (--list). */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/toy.h"

static const char usage[] =
    "usage: toy --config FILE (--out DIR | --list) [options]\n"
    "  --files N        safetensors files (default 1; more come with an index)\n"
    "  --dtype T        bf16 (default), f16, f32\n"
    "  --fp8 R,C        E4M3 weights, F32 weight_scale_inv per block of R x C\n"
    "  --mx e8m0|u8     E4M3 weights, weight_scale per 32 inputs, stored as F8_E8M0 or "
    "U8\n"
    "  --fused          experts as gate_up_proj and down_proj stacks\n"
    "  --no-mtp         without the MTP layers' tensors\n"
    "  --gauss          values like trained weights (normal, std 0.02) instead of mixed "
    "bits\n"
    "  --sparse         headers only, the data is a hole\n"
    "  --no-sides       no tokenizer, license and so on\n"
    "  --seed S         other values (default 0)\n"
    "  --threads N      files written at the same time (default 2)\n";

enum {
    O_CONFIG = 256,
    O_OUT,
    O_LIST,
    O_FILES,
    O_DTYPE,
    O_FP8,
    O_MX,
    O_FUSED,
    O_NO_MTP,
    O_GAUSS,
    O_SPARSE,
    O_NO_SIDES,
    O_SEED,
    O_THREADS,
    O_HELP
};

static const struct option options[] = {
    {"config", 1, NULL, O_CONFIG},
    {"out", 1, NULL, O_OUT},
    {"list", 0, NULL, O_LIST},
    {"files", 1, NULL, O_FILES},
    {"dtype", 1, NULL, O_DTYPE},
    {"fp8", 1, NULL, O_FP8},
    {"mx", 1, NULL, O_MX},
    {"fused", 0, NULL, O_FUSED},
    {"no-mtp", 0, NULL, O_NO_MTP},
    {"gauss", 0, NULL, O_GAUSS},
    {"sparse", 0, NULL, O_SPARSE},
    {"no-sides", 0, NULL, O_NO_SIDES},
    {"seed", 1, NULL, O_SEED},
    {"threads", 1, NULL, O_THREADS},
    {"help", 0, NULL, O_HELP},
    {0},
};

static int list(const struct toy_options *o)
{
    struct toy_model m;
    if (toy_model_new(&m, o) != 0)
        return 1;
    for (int64_t i = 0; i < m.count; i++) {
        const struct toy_tensor *t = &m.tensors[i];
        printf("%s\t%s\t", t->name, toy_type_name(t->type));
        for (int d = 0; d < t->rank; d++)
            printf("%s%lld", d ? "," : "", (long long)t->shape[d]);
        printf("\n");
    }
    fprintf(stderr, "%lld tensors, %lld elements, %llu bytes\n", (long long)m.count,
        (long long)m.elements, (unsigned long long)m.bytes);
    toy_model_clear(&m);
    return 0;
}

static int set_dtype(struct toy_options *o, const char *name)
{
    o->dtype = strcmp(name, "f32") == 0 ? TOY_F32
        : strcmp(name, "f16") == 0      ? TOY_F16
                                        : TOY_BF16;
    return o->dtype != TOY_BF16 || strcmp(name, "bf16") == 0 ? 0 : -1;
}

static int set_blocks(struct toy_options *o, const char *text)
{
    long long r = 0, c = 0;
    o->form = TOY_FP8;
    const int n = sscanf(text, "%lld,%lld", &r, &c);
    o->block[0] = r;
    o->block[1] = c;
    return n == 2 && r > 0 && c > 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct toy_options o = {0};
    const char *out = NULL;
    int bad = 0, listing = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case O_CONFIG:
            o.config = optarg;
            break;
        case O_OUT:
            out = optarg;
            break;
        case O_LIST:
            listing = 1;
            break;
        case O_FILES:
            o.files = atoi(optarg);
            break;
        case O_DTYPE:
            bad |= set_dtype(&o, optarg);
            break;
        case O_FP8:
            bad |= set_blocks(&o, optarg);
            break;
        case O_MX:
            o.form = strcmp(optarg, "u8") == 0 ? TOY_MX_U8 : TOY_MX_E8M0;
            break;
        case O_FUSED:
            o.fused = true;
            break;
        case O_NO_MTP:
            o.no_mtp = true;
            break;
        case O_GAUSS:
            o.gauss = true;
            break;
        case O_SPARSE:
            o.sparse = true;
            break;
        case O_NO_SIDES:
            o.no_sides = true;
            break;
        case O_SEED:
            o.seed = strtoull(optarg, NULL, 0);
            break;
        case O_THREADS:
            o.threads = atoi(optarg);
            break;
        case O_HELP:
            fputs(usage, stdout);
            return 0;
        default:
            bad = 1;
        }
    if (bad || !o.config || (!out && !listing) || optind != argc) {
        fputs(usage, stderr);
        return 2;
    }
    if (listing ? list(&o) : toy_write(out, &o)) {
        fprintf(stderr, "toy: %s\n", toy_error());
        return 1;
    }
    return 0;
}
