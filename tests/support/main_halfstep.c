/* halfstep ORIGINAL MXFP8: is each element of an MXFP8 model as near as its format allows?
 *
 * Both are Hugging Face directories. Element x of the first (BF16 or F32) became a code y with a
 * scale s = 2^(e-127) for 32 elements of a row; then |x/s - y| must be at most half of the step
 * that E4M3 has at |x/s|. Codes are decoded here from their definition, not by the library. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "convert/convert.h"

struct count {
    int64_t tensors, elements, beyond;
    double worst; /* greatest |x/s - y| in half steps */
};

static double e4m3(uint8_t code)
{
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double magnitude =
        exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 7 - 3);
    if ((code & 0x7F) == 0x7F)
        return NAN;
    return code & 0x80 ? -magnitude : magnitude;
}

static double half_step(double v)
{
    int exponent;
    frexp(v, &exponent); /* |v| in [2^(exponent-1), 2^exponent) */
    return fabs(v) < 0x1p-6 ? 0x1p-10 : ldexp(1, exponent - 1 - 3 - 1);
}

static double element(const unsigned char *data, enum glm_dtype dtype, int64_t i)
{
    uint32_t bits = 0;
    float f;
    if (dtype == GLM_BF16)
        memcpy((char *)&bits + 2, data + 2 * i, 2);
    else
        memcpy(&bits, data + 4 * i, 4);
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void check(struct count *n, const unsigned char *x, enum glm_dtype dtype,
    const unsigned char *q, const unsigned char *scale, int64_t rows, int64_t cols)
{
    const int64_t blocks = (cols + 31) / 32;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const int64_t i = r * cols + c;
            const double v =
                ldexp(element(x, dtype, i), 127 - scale[r * blocks + c / 32]);
            const double off = fabs(v - e4m3(q[i])) / half_step(v);
            n->beyond += !(off <= 1);
            if (!(off <= n->worst))
                n->worst = off;
        }
    n->tensors++;
    n->elements += rows * cols;
}

/* Reads size bytes where a tensor lies; NULL on failure. */
static unsigned char *load(const struct hf_source *s, const struct hf_place *at,
    size_t size, struct glm_error *err)
{
    char path[4096];
    struct dio f = {.fd = -1, .direct = -1};
    unsigned char *data = malloc(size);
    snprintf(path, sizeof path, "%s/%s", s->dir, s->files[at->file].name);
    if (data == NULL)
        glm_fail(err, GLM_ENOMEM, "%zu bytes", size);
    else if (dio_open_read(&f, path, err) == 0)
        dio_pread(&f, at->offset, size, data, err);
    dio_close(&f);
    if (err->code == GLM_OK)
        return data;
    free(data);
    return NULL;
}

static int check_member(struct count *n, const struct hf_source *a,
    const struct hf_source *b, const struct table_entry *e, int64_t member,
    struct glm_error *err)
{
    /* The same row of the other table. */
    const struct table_entry *eb =
        table_find(b->table, e->name, strlen(e->name), &(int64_t){0});
    if (eb == NULL)
        return glm_fail(
            err, GLM_EMISMATCH, "%s: tensor '%s' is missing", b->dir, e->name);
    const struct hf_place *x = hfdir_place(a, e, member, false);
    const struct hf_place *q = hfdir_place(b, eb, member, false);
    const struct hf_place *s = hfdir_place(b, eb, member, true);
    if (q == NULL || s == NULL || x == NULL || s->file < 0 || q->dtype != GLM_F8_E4M3)
        return glm_fail(
            err, GLM_EMISMATCH, "%s: tensor '%s' is not MXFP8", b->dir, e->name);
    const int64_t rows = e->shape[e->rank - 2], cols = e->shape[e->rank - 1];
    const size_t count = (size_t)(rows * cols);
    unsigned char *xd = load(a, x, count * glm_dtype_size(x->dtype), err);
    unsigned char *qd = load(b, q, count, err);
    unsigned char *sd = load(b, s, (size_t)(rows * ((cols + 31) / 32)), err);
    if (xd != NULL && qd != NULL && sd != NULL)
        check(n, xd, x->dtype, qd, sd, rows, cols);
    free(xd);
    free(qd);
    free(sd);
    return err->code;
}

int main(int argc, char **argv)
{
    struct hf_source *a = NULL, *b = NULL;
    struct count n = {0};
    struct glm_error err = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: halfstep ORIGINAL MXFP8\n");
        return 2;
    }
    const struct hf_options o = {.threads = 1};
    if (hfdir_open(&a, argv[1], &o, &err) != 0 || hfdir_open(&b, argv[2], &o, &err) != 0)
        goto out;
    for (int64_t i = 0; i < a->table->count; i++) {
        const struct table_entry *e = &a->table->entries[i];
        for (int64_t m = 0; e->quantised && m < table_members(e); m++)
            if (check_member(&n, a, b, e, m, &err) != 0)
                goto out;
    }
    printf("%" PRId64 " elements of %" PRId64
           " matrices: at most %.4f of half a step off\n",
        n.elements, n.tensors, n.worst);
    if (n.beyond > 0)
        glm_fail(&err, GLM_EMISMATCH,
            "%" PRId64 " elements are more than half a step off", n.beyond);
    else if (n.elements == 0)
        glm_fail(&err, GLM_EMISMATCH, "%s: no matrix is quantised", argv[2]);
out:
    hfdir_close(a);
    hfdir_close(b);
    if (err.code != GLM_OK)
        fprintf(stderr, "halfstep: %s\n", err.text);
    return glm_exit_status(&err);
}
