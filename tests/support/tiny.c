/* The rules of fixtures/make_tiny.py in C: which mean and deviation a tensor's elements have, and
 * how they lie in the files whose headers are recorded. */
#include "tests/support/tiny.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/random.h"

struct tiny {
    const char *fixture, *dir;
    uint32_t seed;
    bool small_latents;
};

static int ends(const char *name, const char *tail)
{
    const size_t n = strlen(name), t = strlen(tail);
    return n >= t && strcmp(name + n - t, tail) == 0;
}

/* ---- whole files ---- */

static int slurp(
    const char *path, unsigned char **data, size_t *size, struct glm_error *err)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    *data = NULL;
    if (!f || fstat(fileno(f), &st) != 0) {
        glm_fail_errno(err, "%s: open", path);
        goto out;
    }
    *size = (size_t)st.st_size;
    *data = malloc(*size + 1);
    if (!*data || fread(*data, 1, *size, f) != *size) {
        glm_fail_errno(err, "%s: read", path);
        goto out;
    }
    (*data)[*size] = 0;
out:
    if (f)
        fclose(f);
    return err->code;
}

static int write_checked(const struct tiny *t, const char *name, const char *hex,
    const unsigned char *data, size_t size, struct glm_error *err)
{
    char path[1024], found[2 * SHA256_DIGEST_LENGTH + 1];
    unsigned char d[SHA256_DIGEST_LENGTH];
    SHA256(data, size, d);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        snprintf(found + 2 * i, 3, "%02x", d[i]);
    if (strncmp(found, hex, 2 * SHA256_DIGEST_LENGTH) != 0)
        return glm_fail(err, GLM_EMISMATCH,
            "%s/%s: made again, it has SHA-256 %s instead of %.64s; run "
            "fixtures/make_tiny.py "
            "--record if the rules changed",
            t->fixture, name, found, hex);
    snprintf(path, sizeof path, "%s/%s", t->dir, name);
    FILE *f = fopen(path, "wb");
    const size_t n = f ? fwrite(data, 1, size, f) : 0;
    if (!f || fclose(f) != 0 || n != size)
        return glm_fail_errno(err, "%s: write", path);
    return 0;
}

/* ---- weights ---- */

struct part { /* a run of elements that one Hugging Face name owns */
    const char *name;
    int64_t count, inputs;
    unsigned char *out;
    int is_float;
};

void tiny_values(uint32_t seed, bool small_latents, const char *name, int64_t inputs,
    int64_t first, int64_t count, float *out)
{
    double mean = 0.0, std;
    if (ends(name, "norm.weight")) {
        mean = 1.0;
        std = 0.2;
    } else if (ends(name, "k_norm.bias"))
        std = 0.2;
    else if (ends(name, "e_score_correction_bias"))
        std = 0.1;
    else {
        std = 1.0 / sqrt((double)inputs);
        if (small_latents
            && (ends(name, "q_a_proj.weight") || ends(name, "kv_a_proj_with_mqa.weight")))
            std = std * 0.01;
    }
    const struct random_stream s = random_open(seed, "tiny", name);
    random_normal_f32(&s, (uint64_t)first, (uint64_t)count, mean, std, out);
}

static void put_values(const struct tiny *t, const struct part *p)
{
    enum { RUN = 1024 };
    float run[RUN];
    for (int64_t i = 0; i < p->count; i++) {
        uint32_t u;
        if (i % RUN == 0)
            tiny_values(t->seed, t->small_latents, p->name, p->inputs, i,
                p->count - i < RUN ? p->count - i : RUN, run);
        memcpy(&u, &run[i % RUN], 4);
        if (p->is_float)
            memcpy(p->out + 4 * i, &u, 4);
        else { /* to BF16, nearest, ties to even; values are finite */
            const uint16_t w = (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
            memcpy(p->out + 2 * i, &w, 2);
        }
    }
}

static void put_stack(const struct tiny *t, const char *name, const int64_t *shape,
    int is_float, unsigned char *out)
{
    const char *kind = strrchr(name, '.') + 1;
    const int64_t halves = strcmp(kind, "gate_up_proj") == 0 ? 2 : 1;
    const int64_t count = shape[1] / halves * shape[2];
    for (int64_t i = 0; i < shape[0] * halves; i++) {
        char member[256];
        snprintf(member, sizeof member, "%.*s%lld.%s.weight", (int)(kind - name), name,
            (long long)(i / halves),
            halves == 1 ? kind
                : i % 2 ? "up_proj"
                        : "gate_proj");
        put_values(t,
            &(struct part){.name = member,
                .count = count,
                .inputs = shape[2],
                .out = out,
                .is_float = is_float});
        out += count * (is_float ? 4 : 2);
    }
}

static int put_tensor(const struct tiny *t, const char *name, const json_t *line,
    unsigned char *data, size_t room, struct glm_error *err)
{
    const json_t *dims = json_object_get(line, "shape");
    const json_t *at = json_object_get(line, "data_offsets");
    const char *dtype = json_string_value(json_object_get(line, "dtype"));
    const size_t begin = (size_t)json_integer_value(json_array_get(at, 0));
    const size_t end = (size_t)json_integer_value(json_array_get(at, 1));
    const size_t rank = json_array_size(dims);
    int64_t shape[3] = {1, 1, 1}, count = 1;
    for (size_t i = 0; i < rank && i < 3; i++)
        count *= shape[i] = json_integer_value(json_array_get(dims, i));
    const int is_float = dtype && strcmp(dtype, "F32") == 0;
    if (rank > 3 || end > room || begin > end
        || end - begin != (size_t)count * (is_float ? 4 : 2))
        return glm_fail(err, GLM_EFORMAT, "%s: tensor '%s' does not fit its header line",
            t->fixture, name);
    if (rank == 3)
        put_stack(t, name, shape, is_float, data + begin);
    else
        put_values(t,
            &(struct part){.name = name,
                .count = count,
                .inputs = shape[rank ? rank - 1 : 0],
                .out = data + begin,
                .is_float = is_float});
    return 0;
}

static size_t data_size(json_t *header)
{
    size_t size = 0;
    const char *name;
    json_t *line;
    json_object_foreach(header, name, line)
    {
        const json_t *at = json_object_get(line, "data_offsets");
        const size_t end = (size_t)json_integer_value(json_array_get(at, 1));
        size = end > size ? end : size;
    }
    return size;
}

static int write_weights(
    const struct tiny *t, const char *name, const char *hex, struct glm_error *err)
{
    char path[1024];
    unsigned char *head = NULL, *file = NULL;
    json_t *header = NULL, *line;
    const char *tensor;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/%s.header", t->fixture, name);
    if (slurp(path, &head, &size, err) != 0)
        goto out;
    header = size > 8 ? json_loadb((const char *)head + 8, size - 8, 0, NULL) : NULL;
    if (!header) {
        glm_fail(err, GLM_EFORMAT, "%s: not a recorded safetensors header", path);
        goto out;
    }
    const size_t data = data_size(header);
    file = malloc(size + data);
    if (!file) {
        glm_fail(err, GLM_ENOMEM, "%s: no memory for %zu bytes", path, size + data);
        goto out;
    }
    memcpy(file, head, size);
    json_object_foreach(header, tensor, line) if (strcmp(tensor, "__metadata__") != 0
        && put_tensor(t, tensor, line, file + size, data, err) != 0) goto out;
    write_checked(t, name, hex, file, size + data, err);
out:
    json_decref(header);
    free(head);
    free(file);
    return err->code;
}

/* ---- the folder ---- */

static int read_rules(struct tiny *t, struct glm_error *err)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tiny.json", t->fixture);
    json_t *root = json_load_file(path, 0, NULL);
    if (!root)
        return glm_fail(
            err, GLM_EFORMAT, "%s: expected {\"seed\": N, \"small_latents\": B}", path);
    t->seed = (uint32_t)json_integer_value(json_object_get(root, "seed"));
    t->small_latents = json_is_true(json_object_get(root, "small_latents"));
    json_decref(root);
    return 0;
}

int tiny_write(const char *dir, const char *fixture, struct glm_error *err)
{
    struct tiny t = {.fixture = fixture, .dir = dir};
    char path[1024];
    unsigned char *sums = NULL, *data = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/SHA256SUMS", fixture);
    if (read_rules(&t, err) != 0 || slurp(path, &sums, &size, err) != 0)
        goto out;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        glm_fail_errno(err, "%s: mkdir", dir);
        goto out;
    }
    char *rest = NULL;
    for (char *l = strtok_r((char *)sums, "\n", &rest); l;
         l = strtok_r(NULL, "\n", &rest)) {
        const char *name = l + 66; /* 64 digits, two spaces */
        if (strlen(l) < 67) {
            glm_fail(
                err, GLM_EFORMAT, "%s: line '%s' is not '<digest>  <name>'", path, l);
            goto out;
        }
        if (ends(name, ".safetensors")) {
            if (write_weights(&t, name, l, err) != 0)
                goto out;
            continue;
        }
        char side[1024];
        snprintf(side, sizeof side, "%s/%s", fixture, name);
        free(data);
        if (slurp(side, &data, &size, err) != 0
            || write_checked(&t, name, l, data, size, err) != 0)
            goto out;
    }
out:
    free(data);
    free(sums);
    return err->code;
}
