#include "train/curves.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    WIDTH = 920,
    HEIGHT = 640,
    TOP = 64,
    LEFT = 66,
    RIGHT = 18,
    GAP_X = 84,
    GAP_Y = 74,
    FOOT = 48
};
enum {
    PANEL_W = (WIDTH - LEFT - RIGHT - GAP_X) / 2,
    PANEL_H = (HEIGHT - TOP - FOOT - GAP_Y) / 2
};
enum { SERIES = 3, TICKS = 6 };

struct series {
    const char *label, *colour;
    size_t at;
    bool points; /* few values: dots joined by a line */
};

struct panel {
    const char *title;
    bool linear; /* always */
    struct series series[SERIES];
};

#define AT(f) offsetof(struct metrics_row, f)
/* Paul Tol's "bright" colours, for colour-blind readers. */
static const struct panel panels[4] = {
    {"loss", false,
        {{"training", "#4477aa", AT(loss), false},
            {"validation", "#ee6677", AT(eval_loss), true}}},
    {"parts of the loss", false,
        {{"LM", "#4477aa", AT(lm_loss), false}, {"MTP", "#228833", AT(mtp_loss), false},
            {"indexer", "#aa3377", AT(indexer_loss), false}}},
    {"gradient norm", false, {{NULL, "#4477aa", AT(grad_norm), false}}},
    {"learning rate", true, {{NULL, "#4477aa", AT(lr), false}}},
};

struct axes {
    double x0, y0;    /* upper left corner */
    double from, to;  /* steps */
    double low, high; /* values; their logarithms if log */
    bool log;
};

static double value(const struct metrics_row *r, const struct series *s)
{
    const void *const at = (const char *)r + s->at;
    return *(const double *)at;
}

static double across(const struct axes *a, double step)
{
    return a->x0 + (step - a->from) / (a->to - a->from) * PANEL_W;
}

static double down(const struct axes *a, double v)
{
    const double y = a->log ? log10(v) : v;
    return a->y0 + (a->high - y) / (a->high - a->low) * PANEL_H;
}

double curves_ticks(double lo, double hi, int most, double *first)
{
    const double rough = (hi - lo) / most, power = pow(10, floor(log10(rough)));
    const double part = rough / power;
    const double step = power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
    *first = ceil(lo / step - 1e-9) * step;
    return step;
}

/* 0.00012 as "1.2e-4", 12000 as "12k". */
static void number(FILE *out, double x)
{
    const double a = fabs(x);
    if (a < 1e-300)
        fputs("0", out);
    else if (a >= 1e9)
        fprintf(out, "%gG", x / 1e9);
    else if (a >= 1e6)
        fprintf(out, "%gM", x / 1e6);
    else if (a >= 1e4)
        fprintf(out, "%gk", x / 1e3);
    else if (a >= 1e-3)
        fprintf(out, "%.6g", x);
    else {
        const int e = (int)floor(log10(a) + 1e-9);
        fprintf(out, "%.3ge%d", x / pow(10, e), e);
    }
}

static void text(FILE *out, const char *s)
{
    for (; *s; s++)
        if (*s == '<')
            fputs("&lt;", out);
        else if (*s == '&')
            fputs("&amp;", out);
        else if (*s == '>')
            fputs("&gt;", out);
        else if ((unsigned char)*s >= 0x20)
            fputc(*s, out);
}

/* Ranges that hold all finite values; false if there are none. */
static bool fit(
    struct axes *a, const struct panel *p, const struct metrics_row *rows, int64_t count)
{
    double low = (double)INFINITY, high = -(double)INFINITY;
    for (int s = 0; s < SERIES && p->series[s].colour; s++) {
        for (int64_t i = 0; i < count; i++) {
            const double v = value(&rows[i], &p->series[s]);
            if (!isfinite(v))
                continue;
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
    }
    if (low > high)
        return false;
    a->from = (double)rows[0].step;
    a->to = (double)rows[count - 1].step;
    if (!(a->to > a->from))
        a->to = a->from + 1;
    a->log = !p->linear && low > 0 && high / low > 40;
    if (a->log) {
        low = log10(low);
        high = log10(high);
    } else if (low > 0 && low < 0.5 * high) {
        low = 0; /* a scale that begins at 0 misleads least */
    }
    const double pad = high > low ? 0.05 * (high - low)
        : high > 0 || low < 0     ? 0.1 * fabs(high)
                                  : 1;
    a->low = low > 0 || low < 0 || a->log ? low - pad : low;
    a->high = high + pad;
    return true;
}

static void grid(FILE *out, const struct axes *a)
{
    double first, step = curves_ticks(a->low, a->high, TICKS, &first);
    const bool decades = a->log && a->high - a->low > 2.5;
    if (decades) {
        step = ceil(step);
        first = ceil(a->low / step - 1e-9) * step;
    }
    /* A logarithmic axis of few decades: 1, 2, 5 of each. */
    for (int i = 0; i < 3 * TICKS; i++) {
        static const double parts[] = {0, 0.30102999566398120, 0.69897000433601880};
        const double at =
            a->log && !decades ? floor(a->low) + i / 3 + parts[i % 3] : first + i * step;
        if (at < a->low || at > a->high)
            continue;
        const double y = a->y0 + (a->high - at) / (a->high - a->low) * PANEL_H;
        fprintf(out,
            "<path class=\"grid\" d=\"M%.1f %.1fh%d\"/><text class=\"tick\" x=\"%.1f\" "
            "y=\"%.1f\" text-anchor=\"end\">",
            a->x0, y, PANEL_W, a->x0 - 8, y + 4);
        number(out, a->log ? pow(10, at) : fabs(at) < 1e-9 * step ? 0 : at);
        fputs("</text>\n", out);
    }
    step = curves_ticks(a->from, a->to, TICKS, &first);
    step = step < 1 ? 1 : step;
    first = ceil(a->from / step) * step;
    for (double x = first; x <= a->to; x += step) {
        fprintf(out,
            "<path class=\"grid\" d=\"M%.1f %.1fv%d\"/><text class=\"tick\" x=\"%.1f\" "
            "y=\"%.1f\" text-anchor=\"middle\">",
            across(a, x), a->y0, PANEL_H, across(a, x), a->y0 + PANEL_H + 17);
        number(out, x);
        fputs("</text>\n", out);
    }
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fv%dh%d\"/>\n", a->x0, a->y0, PANEL_H,
        PANEL_W);
}

/* One polyline; with more values than pixels each column is its least and greatest value. */
static void curve(FILE *out, const struct axes *a, const struct series *s,
    const struct metrics_row *rows, int64_t count)
{
    const bool dense = count > 2 * PANEL_W && !s->points;
    bool pen = false;
    fprintf(out,
        "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" "
        "stroke-linejoin=\"round\" d=\"",
        s->colour);
    for (int64_t i = 0; i < count;) {
        const double v = value(&rows[i], s), x = across(a, (double)rows[i].step);
        if (!isfinite(v)) { /* a gap, unless values are few on purpose */
            pen = pen && s->points;
            i++;
            continue;
        }
        double low = v, high = v;
        for (i++; dense && i < count && (int)across(a, (double)rows[i].step) == (int)x;
             i++) {
            const double w = value(&rows[i], s);
            low = w < low ? w : low;
            high = w > high ? w : high;
        }
        fprintf(out, "%c%.1f %.1f", pen ? 'L' : 'M', x, down(a, low));
        if (high > low)
            fprintf(out, "V%.1f", down(a, high));
        pen = true;
    }
    fputs("\"/>\n", out);
    for (int64_t i = 0; s->points && i < count; i++) {
        const double v = value(&rows[i], s);
        if (isfinite(v))
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                across(a, (double)rows[i].step), down(a, v), s->colour);
    }
}

static bool has_values(
    const struct series *s, const struct metrics_row *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (isfinite(value(&rows[i], s)))
            return true;
    return false;
}

static void panel(FILE *out, const struct panel *p, struct axes *a,
    const struct metrics_row *rows, int64_t count)
{
    double legend = a->x0 + PANEL_W;
    fprintf(out, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">%s", a->x0, a->y0 - 12,
        p->title);
    if (!fit(a, p, rows, count)) {
        fprintf(out,
            "</text>\n<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">"
            "no values</text>\n",
            a->x0 + PANEL_W / 2.0, a->y0 + PANEL_H / 2.0);
        return;
    }
    fputs(a->log ? " (log)</text>\n" : "</text>\n", out);
    grid(out, a);
    for (int i = SERIES - 1; i >= 0; i--) {
        const struct series *const s = &p->series[i];
        if (!s->label || !has_values(s, rows, count))
            continue;
        legend -= 7.0 * (double)strlen(s->label);
        fprintf(out,
            "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" fill=\"#333\">%s</text><path "
            "d=\"M%.1f "
            "%.1fh16\" stroke=\"%s\" stroke-width=\"3\"/>\n",
            legend, a->y0 - 12, s->label, legend - 21, a->y0 - 16, s->colour);
        legend -= 36;
    }
    for (int i = 0; i < SERIES && p->series[i].colour; i++)
        curve(out, a, &p->series[i], rows, count);
}

void curves_svg(
    FILE *out, const char *title, const struct metrics_row *rows, int64_t count)
{
    fprintf(out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\">\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    fputs("<style>text{font-family:Helvetica,Arial,sans-serif;fill:#222}.title{font-size:"
          "17px;"
          "font-weight:bold}.name{font-size:14px;font-weight:bold}.tick{font-size:12px;"
          "fill:#444}"
          ".grid{stroke:#ddd;stroke-width:1;fill:none}.axis{stroke:#444;stroke-width:1;"
          "fill:none}"
          "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        out);
    fprintf(out, "<text class=\"title\" x=\"%d\" y=\"28\">", LEFT);
    text(out, title);
    fputs("</text>\n", out);
    for (int i = 0; i < 4; i++) {
        struct axes a = {.x0 = LEFT + (i % 2) * (PANEL_W + GAP_X),
            .y0 = TOP + (i / 2) * (PANEL_H + GAP_Y)};
        panel(out, &panels[i], &a, rows, count);
        if (i >= 2)
            fprintf(out,
                "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" "
                "text-anchor=\"middle\">step</text>\n",
                a.x0 + PANEL_W / 2.0, a.y0 + PANEL_H + 36);
    }
    fputs("</svg>\n", out);
}
