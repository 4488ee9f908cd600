/* glm-inspect CKPT TENSOR: what it is, where it lies, statistics, histogram, values. */
#include <math.h>
#include <stdlib.h>

#include "cli/inspect_show.h"
#include "cli/progress.h"

enum { BAR = 48 };

static void tensor_text(const struct show *s, const struct inspect_tensor *t)
{
    char shape[96], range[160], bytes[32], hex[DIGEST_HEX], count[32];
    printf("tensor       %s\nsection      %s\n", t->name, section_name(t->section));
    printf("type, shape  %s %s, %s elements, %lld tile%s\n", glm_dtype_name(t->dtype),
        show_shape(t->rank, t->shape, shape, sizeof shape),
        show_count(t->elements, count, 32), (long long)t->tiles,
        t->tiles == 1 ? "" : "s");
    if (t->scale_name[0] != '\0')
        printf("scales       %s%s%s; numbers below are codes times scales\n",
            t->scale_name, t->scale_rule[0] != '\0' ? ", rule " : "", t->scale_rule);
    if (t->derived)
        printf("derived      its master rounded to nearest even; not stored\n");
    if (t->has_fingerprint) {
        digest_hex(t->fingerprint, hex);
        printf("fingerprint  %s\n", hex);
    }
    const int64_t most = s->ascii || t->piece_count <= 64 ? t->piece_count : 64;
    for (int64_t i = 0; i < most; i++) {
        const struct inspect_piece *p = &t->pieces[i];
        finding_range(p->rank, p->lo, p->hi, range, sizeof range);
        printf("piece        %s in %s at byte %llu, %s", range,
            p->file != NULL ? p->file : "?", (unsigned long long)p->offset,
            progress_bytes(p->bytes, bytes, sizeof bytes));
        if (p->encoding == ENC_ZSTD)
            printf(
                " in %lld zstd chunk%s", (long long)p->chunks, p->chunks == 1 ? "" : "s");
        printf("\n");
    }
    if (most < t->piece_count)
        printf("             and %lld more pieces\n", (long long)(t->piece_count - most));
}

static void stats_text(const struct inspect_stats *y)
{
    char a[32], b[32];
    printf("count        %s", show_count(y->count, a, sizeof a));
    if (y->distinct >= 0)
        printf(", %s distinct", show_count(y->distinct, b, sizeof b));
    printf(", %s zero", show_count(y->zeros, a, sizeof a));
    printf(", %s NaN", show_count(y->nan, a, sizeof a));
    printf(", %s Inf\n", show_count(y->inf, a, sizeof a));
    if (!isnan(y->min))
        printf("min %.9g  max %.9g  mean %.9g  std %.9g  absmax %.9g\n", y->min, y->max,
            y->mean, y->std, y->absmax);
}

/* A bar of eighths: the last block shows what is left. */
static void bar(double share, bool ascii)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const int n = (int)lround(share * BAR * 8);
    for (int i = 0; i < n / 8; i++)
        fputs(ascii ? "#" : "█", stdout);
    if (!ascii)
        fputs(eighths[n % 8], stdout);
    else if (n % 8 >= 4 || (n > 0 && n < 8))
        fputs("#", stdout);
}

static void histogram_text(const struct inspect_stats *y, bool ascii)
{
    int64_t most = 0;
    char count[32];
    for (int i = 0; i < INSPECT_BINS; i++)
        most = y->bins[i] > most ? y->bins[i] : most;
    if (most == 0)
        return;
    printf("\n");
    for (int i = 0; i < INSPECT_BINS;
         i += 2) { /* two bins a line: twenty lines fit a terminal */
        const int64_t n = y->bins[i] + y->bins[i + 1];
        int64_t top = 0;
        for (int k = 0; k < INSPECT_BINS; k += 2)
            top = y->bins[k] + y->bins[k + 1] > top ? y->bins[k] + y->bins[k + 1] : top;
        printf("%12.4g %14s ", y->lo + (y->hi - y->lo) * i / INSPECT_BINS,
            show_count(n, count, sizeof count));
        bar((double)n / (double)top, ascii);
        printf("\n");
    }
    printf("%12.4g\n", y->hi);
}

static void slice_text(const struct inspect_slice *v)
{
    const int64_t cols = v->rank > 0 ? v->hi[v->rank - 1] - v->lo[v->rank - 1] : 1;
    char range[160];
    finding_range(v->rank, v->lo, v->hi, range, sizeof range);
    printf("\n%s\n", range);
    for (int64_t i = 0; i < v->count; i++)
        printf("%.9g%s", v->values[i], (i + 1) % cols == 0 ? "\n" : " ");
}

static void tensor_json(struct jsonout *j, const struct inspect_tensor *t)
{
    jsonout_str(j, NULL, "tensor", t->name);
    jsonout_str(j, NULL, "section", section_name(t->section));
    jsonout_str(j, NULL, "dtype", glm_dtype_name(t->dtype));
    json_t *shape = jsonout_array(j, NULL, "shape");
    for (int i = 0; i < t->rank; i++)
        jsonout_int(j, shape, NULL, t->shape[i]);
    jsonout_int(j, NULL, "tiles", t->tiles);
    jsonout_bool(j, NULL, "derived", t->derived);
    jsonout_str(j, NULL, "scales", t->scale_name[0] != '\0' ? t->scale_name : NULL);
    jsonout_str(j, NULL, "scale_rule", t->scale_rule[0] != '\0' ? t->scale_rule : NULL);
    if (t->has_fingerprint)
        jsonout_digest(j, NULL, "fingerprint", t->fingerprint);
    else
        jsonout_str(j, NULL, "fingerprint", NULL);
    json_t *list = jsonout_array(j, NULL, "pieces");
    for (int64_t i = 0; i < t->piece_count; i++) {
        const struct inspect_piece *p = &t->pieces[i];
        json_t *o = jsonout_object(j, list, NULL);
        jsonout_str(j, o, "file", p->file);
        jsonout_str(j, o, "encoding", p->encoding == ENC_ZSTD ? "zstd" : "plain");
        jsonout_uint(j, o, "offset", p->offset);
        jsonout_uint(j, o, "bytes", p->bytes);
        jsonout_int(j, o, "chunks", p->chunks);
        json_t *range = jsonout_array(j, o, "range");
        for (int k = 0; k < p->rank; k++) {
            json_t *axis = jsonout_array(j, range, NULL);
            jsonout_int(j, axis, NULL, p->lo[k]);
            jsonout_int(j, axis, NULL, p->hi[k]);
        }
    }
}

static void stats_json(struct jsonout *j, const struct inspect_stats *y)
{
    json_t *o = jsonout_object(j, NULL, "statistics");
    jsonout_int(j, o, "count", y->count);
    if (y->distinct >= 0)
        jsonout_int(j, o, "distinct", y->distinct);
    else
        jsonout_real(j, o, "distinct", NAN); /* null: unknown */
    jsonout_int(j, o, "zeros", y->zeros);
    jsonout_int(j, o, "nan", y->nan);
    jsonout_int(j, o, "inf", y->inf);
    jsonout_real(j, o, "min", y->min);
    jsonout_real(j, o, "max", y->max);
    jsonout_real(j, o, "mean", y->mean);
    jsonout_real(j, o, "std", y->std);
    jsonout_real(j, o, "absmax", y->absmax);
    json_t *h = jsonout_object(j, NULL, "histogram");
    jsonout_real(j, h, "lo", y->lo);
    jsonout_real(j, h, "hi", y->hi);
    json_t *bins = jsonout_array(j, h, "bins");
    for (int i = 0; i < INSPECT_BINS; i++)
        jsonout_int(j, bins, NULL, y->bins[i]);
}

static void slice_json(struct jsonout *j, const struct inspect_slice *v)
{
    json_t *o = jsonout_object(j, NULL, "slice");
    json_t *range = jsonout_array(j, o, "range");
    for (int i = 0; i < v->rank; i++) {
        json_t *axis = jsonout_array(j, range, NULL);
        jsonout_int(j, axis, NULL, v->lo[i]);
        jsonout_int(j, axis, NULL, v->hi[i]);
    }
    json_t *values = jsonout_array(j, o, "values");
    for (int64_t i = 0; i < v->count; i++)
        jsonout_real(j, values, NULL, v->values[i]);
}

int show_tensor(const struct show *s, const char *section, const char *name,
    const char *slice, struct glm_error *err)
{
    struct inspect_tensor t;
    struct inspect_stats y;
    struct inspect_slice v = {0};
    if (inspect_find(s->in, section, name, &t, err) != GLM_OK
        || (slice != NULL && inspect_slice(s->in, &t, slice, &v, err) != GLM_OK)
        || inspect_stats(s->in, &t, s->threads, &y, s->events, err) != GLM_OK)
        goto out;
    if (s->json != NULL) {
        tensor_json(s->json, &t);
        stats_json(s->json, &y);
        if (slice != NULL)
            slice_json(s->json, &v);
    } else {
        tensor_text(s, &t);
        stats_text(&y);
        histogram_text(&y, s->ascii);
        if (slice != NULL)
            slice_text(&v);
    }
out:
    inspect_slice_clear(&v);
    inspect_tensor_clear(&t);
    return err->code;
}
