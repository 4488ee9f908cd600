#include "verify/compare.h"

#include <math.h>
#include <string.h>

#include "convert/convert.h"
#include "verify/element.h"

void compare_init(struct diff_stats *s)
{
    *s = (struct diff_stats){.first = -1, .last = -1};
}

void compare_merge(struct diff_stats *sum, const struct diff_stats *part)
{
    sum->elements += part->elements;
    sum->different += part->different;
    sum->beyond += part->beyond;
    sum->nan += part->nan;
    if (part->first >= 0 && (sum->first < 0 || part->first < sum->first))
        sum->first = part->first;
    if (part->last > sum->last)
        sum->last = part->last;
    if (part->max_abs > sum->max_abs)
        sum->max_abs = part->max_abs;
    if (part->max_ulp > sum->max_ulp)
        sum->max_ulp = part->max_ulp;
}

static int64_t compare_key(const struct compare *c, const void *p, int64_t i)
{
    if (!c->numbers)
        return element_key(c->dtype, p, i);
    if (c->dtype == GLM_F32)
        return element_key(GLM_F32, p, i);
    unsigned char low[8];
    codec_cast((const float *)p + i, GLM_F32, low, c->dtype, 1);
    return element_key(c->dtype, low, 0);
}

/* A pair whose bits (or, between types, values) differ. */
static void compare_pair(const struct compare *c, const void *a, const void *b, int64_t i,
    struct diff_stats *s)
{
    const enum glm_dtype dtype = c->numbers ? GLM_F32 : c->dtype;
    if (!element_known(dtype)) { /* not one real number: bits only */
        s->beyond++;
        return;
    }
    const double va = element_value(dtype, a, i), vb = element_value(dtype, b, i);
    if (isnan(va) || isnan(vb)) {
        s->nan++;
        if (!c->o->tolerance || isnan(va) != isnan(vb))
            s->beyond++;
        return;
    }
    const double abs = va == vb ? 0.0 : fabs(va - vb);
    const uint64_t ulp = element_distance(compare_key(c, a, i), compare_key(c, b, i));
    if (abs > s->max_abs)
        s->max_abs = abs;
    if (ulp > s->max_ulp)
        s->max_ulp = ulp;
    const bool close = isfinite(abs) && abs <= c->o->atol + c->o->rtol * fabs(vb);
    if (!c->o->tolerance
        || !(close || (c->o->ulp >= 0 && isfinite(abs) && ulp <= (uint64_t)c->o->ulp)))
        s->beyond++;
}

void compare_run(const struct compare *c, const void *a, const void *b, int64_t n,
    int64_t linear, struct diff_stats *s)
{
    const size_t size = c->numbers ? sizeof(float) : glm_dtype_size(c->dtype);
    s->elements += n;
    if (memcmp(a, b, (size_t)n * size) == 0)
        return;
    const unsigned char *pa = a, *pb = b;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(pa + (size_t)i * size, pb + (size_t)i * size, size) == 0)
            continue;
        /* Between types there are no common bits: equal values and two NaN are no difference. */
        if (c->numbers) {
            const float fa = ((const float *)a)[i], fb = ((const float *)b)[i];
            if (fa == fb || (isnan(fa) && isnan(fb)))
                continue;
        }
        s->different++;
        s->first = s->first < 0 ? linear + i : s->first;
        s->last = linear + i;
        compare_pair(c, a, b, i, s);
    }
}
