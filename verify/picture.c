/* The picture for a design review: layers from left to right, cells from top to bottom, in each
 * crossing the bytes that lie there, coloured by kind.
 *
 * Many cells of a large topology hold exactly the same; when there are more than PICTURE_ROWS, runs
 * of equal ones become one row that says how many it stands for. Colours are Paul Tol's "muted" set,
 * chosen for colour-blind readers; numbers stand on a light pill, so none depends on its ground. */
#include <stdlib.h>
#include <string.h>

#include "verify/inspect_private.h"

enum { PICTURE_ROWS = 40 };

enum { LEFT = 176, RIGHT = 210, TOP = 108, HEAD = 50, GAP = 10, MARGIN = 24 };

static const char *const picture_colour[KIND_COUNT] = {
    [KIND_EMBEDDING] = "#332288",
    [KIND_NORM] = "#bbbbbb",
    [KIND_ATTENTION] = "#ddcc77",
    [KIND_INDEXER] = "#cc6677",
    [KIND_DENSE] = "#999933",
    [KIND_ROUTER] = "#882255",
    [KIND_SHARED_EXPERT] = "#117733",
    [KIND_EXPERT] = "#44aa99",
    [KIND_HEAD] = "#88ccee",
    [KIND_MTP] = "#aa4499",
};

struct picture_row {
    struct cell cell;     /* the first */
    int64_t index, count; /* cell index of the first; cells that it stands for */
    struct cell last;
    int y;
};

struct picture {
    const struct inspect *in;
    const struct manifest *f;
    struct inspect_map map;
    struct picture_row *rows;
    int64_t row_count;
    bool folded, upright; /* upright: narrow columns, numbers turned by 90 degrees */
    int column, height;   /* of a crossing */
    int width, bottom;
    uint64_t largest; /* cell */
    FILE *out;
};

/* "604 MB": three digits, units of 1000. */
static const char *picture_bytes(uint64_t n, char buf[24])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double v = (double)n;
    int u = 0;
    for (; v >= 999.5 && u < 5; u++)
        v /= 1000;
    snprintf(buf, 24,
        u == 0 || v >= 99.95 ? "%.0f %s"
            : v >= 9.995     ? "%.1f %s"
                             : "%.2f %s",
        v, units[u]);
    return buf;
}

static void picture_escape(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else
            fputc(*text, out);
}

/* ---- rows -------------------------------------------------------------------------------------- */

static int picture_order(const void *pa, const void *pb)
{
    const struct cell *a = &((const struct picture_row *)pa)->cell;
    const struct cell *b = &((const struct picture_row *)pb)->cell;
    const int keys[][2] = {{a->pp, b->pp}, {a->expert, b->expert}, {a->ep, b->ep},
        {a->etp, b->etp}, {a->tp, b->tp}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

static bool picture_alike(
    const struct picture *p, const struct picture_row *a, const struct picture_row *b)
{
    const size_t size = (size_t)(p->map.columns * KIND_COUNT) * sizeof(uint64_t);
    return a->cell.pp == b->cell.pp && a->cell.expert == b->cell.expert
        && memcmp(inspect_map_at(&p->map, a->index, 0),
               inspect_map_at(&p->map, b->index, 0), size)
        == 0;
}

static int picture_rows(struct picture *p, struct glm_error *err)
{
    p->rows = calloc((size_t)p->map.cells, sizeof *p->rows);
    if (p->rows == NULL)
        return glm_fail(err, GLM_ENOMEM, "out of memory for the picture");
    for (int64_t i = 0; i < p->map.cells; i++) {
        const struct cell c = placement_cell(p->f->placement, (int)i);
        p->rows[i] = (struct picture_row){.cell = c, .last = c, .index = i, .count = 1};
        if (p->map.cell_bytes[i] > p->largest)
            p->largest = p->map.cell_bytes[i];
    }
    qsort(p->rows, (size_t)p->map.cells, sizeof *p->rows, picture_order);
    p->folded = p->map.cells > PICTURE_ROWS;
    for (int64_t i = 0; i < p->map.cells; i++) {
        struct picture_row *last = p->row_count > 0 ? &p->rows[p->row_count - 1] : NULL;
        if (p->folded && last != NULL && picture_alike(p, last, &p->rows[i])) {
            last->count++;
            last->last = p->rows[i].cell;
        } else {
            p->rows[p->row_count++] = p->rows[i];
        }
    }
    return GLM_OK;
}

static void picture_layout(struct picture *p)
{
    const int64_t n = p->map.columns;
    p->column = (int)(1560 / n);
    p->column = p->column < 25 ? 25 : p->column > 96 ? 96 : p->column;
    p->upright = p->column < 52;
    p->height = p->upright ? 60 : 30;
    int y = TOP + HEAD;
    for (int64_t i = 0; i < p->row_count; i++) {
        if (i > 0 && p->rows[i].cell.pp != p->rows[i - 1].cell.pp)
            y += GAP;
        p->rows[i].y = y;
        y += p->height;
    }
    p->bottom = y;
    p->width = MARGIN + LEFT + (int)n * p->column + RIGHT + MARGIN;
    if (p->width < 1040)
        p->width = 1040;
}

static int picture_x(const struct picture *p, int64_t column)
{
    return MARGIN + LEFT + (int)column * p->column;
}

/* ---- parts ------------------------------------------------------------------------------------- */

static void picture_title(const struct picture *p, const struct inspect_summary *s)
{
    FILE *out = p->out;
    char topology[64], stored[24], hex[DIGEST_HEX], id[DIGEST_HEX];
    const struct topology *t = placement_topology(p->f->placement);
    topology_print(t, topology, sizeof topology);
    digest_hex(p->f->fingerprint, hex);
    digest_hex(p->f->id, id);
    fprintf(out, "<text x=\"%d\" y=\"42\" class=\"title\">", MARGIN);
    picture_escape(out, p->f->table->config.model_type);
    const int64_t parameters = s->weights.elements;
    const bool big = parameters >= 1000000000;
    fprintf(out, " · %.*f %s parameters", big ? 1 : 2,
        (double)parameters / (big ? 1e9 : 1e6), big ? "B" : "M");
    if (s->mtp.elements > 0)
        fprintf(out, " (%.*f %s without MTP)", big ? 1 : 2,
            (double)(parameters - s->mtp.elements) / (big ? 1e9 : 1e6), big ? "B" : "M");
    fprintf(out, "</text>\n<text x=\"%d\" y=\"66\" class=\"sub\">topology %s · layout ",
        MARGIN, topology);
    picture_escape(out, t->layout);
    fprintf(out, " · %lld shards in %lld cells, %s</text>\n",
        (long long)p->f->shard_count, (long long)p->map.cells,
        picture_bytes(p->map.total, stored));
    fprintf(out,
        "<text x=\"%d\" y=\"86\" class=\"faint mono\">fingerprint %.16s… · id "
        "%.16s…</text>\n",
        MARGIN, hex, id);
}

static void picture_head(const struct picture *p)
{
    FILE *out = p->out;
    const int base = TOP + HEAD - 10;
    fprintf(out,
        "<text x=\"%d\" y=\"%d\" class=\"faint\" text-anchor=\"end\">layer</text>\n",
        picture_x(p, 0) - 12, base);
    for (int64_t i = 0; i < p->map.columns; i++) {
        const struct inspect_column *c = &p->map.column[i];
        const int x = picture_x(p, i) + p->column / 2;
        if (c->layer < 0 && p->upright)
            fprintf(out,
                "<text transform=\"translate(%d %d) rotate(-90)\" "
                "class=\"col\">%s</text>\n",
                x + 4, base + 2, c->label);
        else
            fprintf(out,
                "<text x=\"%d\" y=\"%d\" class=\"col\" "
                "text-anchor=\"middle\">%s</text>\n",
                x, base, c->label);
        if (c->mtp)
            fprintf(out,
                "<text x=\"%d\" y=\"%d\" class=\"mtp\" "
                "text-anchor=\"middle\">MTP</text>\n",
                x, base - 22);
        if (c->indexer)
            fprintf(out, "<circle cx=\"%d\" cy=\"%d\" r=\"2.6\" fill=\"#cc6677\"/>\n", x,
                base - 15);
    }
    fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"faint\">in each cell</text>\n",
        picture_x(p, p->map.columns) + 12, base);
}

/* "ep 0–31", "tp 3", "ep 2 · tp 1" */
static void picture_name(const struct picture_row *r, char *buf, size_t size)
{
    const struct cell *a = &r->cell, *b = &r->last;
    const char *const axis = a->expert ? "ep" : "tp";
    const int from = a->expert ? a->ep : a->tp, to = b->expert ? b->ep : b->tp;
    int n = from == to ? snprintf(buf, size, "%s %d", axis, from)
                       : snprintf(buf, size, "%s %d–%d", axis, from, to);
    if (a->expert && (a->etp != 0 || b->etp != 0) && n > 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n,
            a->etp == b->etp ? " · etp %d" : " · etp %d–%d", a->etp, b->etp);
}

static void picture_group(const struct picture *p, int64_t first)
{
    const int pp = p->rows[first].cell.pp, x = MARGIN;
    const int stages = placement_stages(p->f->placement);
    const int pps = placement_topology(p->f->placement)->pp < 1
        ? 1
        : placement_topology(p->f->placement)->pp;
    char text[160] = "";
    size_t used = 0;
    for (int s = pp; s < stages && used + 16 < sizeof text; s += pps) {
        const int lo = placement_stage_start(p->f->placement, s);
        const int hi = s + 1 < stages ? placement_stage_start(p->f->placement, s + 1)
                                      : (int)p->map.columns - 2;
        used += (size_t)snprintf(text + used, sizeof text - used,
            hi - lo > 1 ? "%s%d–%d" : "%s%d", used > 0 ? ", " : "", lo, hi - 1);
    }
    fprintf(p->out, "<text x=\"%d\" y=\"%d\" class=\"group\">pp %d</text>\n", x,
        p->rows[first].y + 19, pp);
    if (p->height >= 60 || (first + 1 < p->row_count && p->rows[first + 1].cell.pp == pp))
        fprintf(p->out, "<text x=\"%d\" y=\"%d\" class=\"faint\">layers %s</text>\n", x,
            p->rows[first].y + 37, text);
}

static void picture_crossing(
    const struct picture *p, const struct picture_row *r, int64_t column)
{
    FILE *out = p->out;
    const uint64_t *kinds = inspect_map_at(&p->map, r->index, column);
    const uint64_t sum = inspect_map_sum(&p->map, r->index, column);
    const int x = picture_x(p, column), w = p->column - 1, h = p->height - 2,
              y = r->y + 1;
    char text[24];
    if (sum == 0) {
        fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f3f3f0\"/>\n", x,
            y, w, h);
        return;
    }
    char cell[64];
    cell_name(&r->cell, cell, sizeof cell);
    fprintf(out, "<g><title>%s, layer %s:", cell, p->map.column[column].label);
    for (int k = 0; k < KIND_COUNT; k++)
        if (kinds[k] > 0)
            fprintf(out, " %s %s;", table_kind_name((enum table_kind)k),
                picture_bytes(kinds[k], text));
    fputs("</title>\n", out);
    double at = 0;
    for (int k = 0; k < KIND_COUNT; k++) {
        const double share = (double)kinds[k] / (double)sum;
        if (kinds[k] == 0)
            continue;
        if (p->upright)
            fprintf(out,
                "<rect x=\"%d\" y=\"%.2f\" width=\"%d\" height=\"%.2f\" fill=\"%s\"/>\n",
                x, y + at * h, w, share * h, picture_colour[k]);
        else
            fprintf(out,
                "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n",
                x + at * w, y, share * w, h, picture_colour[k]);
        at += share;
    }
    picture_bytes(sum, text);
    const int length = 6 * (int)strlen(text) + 6;
    if (p->upright)
        fprintf(out, "<g transform=\"translate(%.1f %.1f) rotate(-90)\">", x + w / 2.0,
            y + h / 2.0);
    else
        fprintf(out, "<g transform=\"translate(%.1f %.1f)\">", x + w / 2.0, y + h / 2.0);
    fprintf(out,
        "<rect x=\"%.1f\" y=\"-7.5\" width=\"%d\" height=\"15\" rx=\"3\" class=\"pill\"/>"
        "<text class=\"num\" text-anchor=\"middle\" y=\"3.8\">%s</text></g></g>\n",
        -length / 2.0, length, text);
}

static void picture_row_draw(const struct picture *p, const struct picture_row *r)
{
    FILE *out = p->out;
    char name[64], text[24];
    const int middle = r->y + p->height / 2 + 4, x = picture_x(p, 0) - 12;
    picture_name(r, name, sizeof name);
    if (r->count > 1)
        fprintf(out,
            "<text x=\"%d\" y=\"%d\" class=\"row\" text-anchor=\"end\">%s"
            "<tspan class=\"faint\" dx=\"5\">× %lld</tspan></text>\n",
            x, middle, name, (long long)r->count);
    else
        fprintf(out,
            "<text x=\"%d\" y=\"%d\" class=\"row\" text-anchor=\"end\">%s</text>\n", x,
            middle, name);
    for (int64_t i = 0; i < p->map.columns; i++)
        picture_crossing(p, r, i);
    const int right = picture_x(p, p->map.columns) + 12;
    const uint64_t bytes = p->map.cell_bytes[r->index];
    const int64_t files = p->map.cell_shards[r->index];
    const double bar = p->largest > 0 ? (double)bytes / (double)p->largest * 66 : 0;
    if (bytes == 0) {
        fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"faint\">empty</text>\n", right + 74,
            middle);
        return;
    }
    fprintf(out,
        "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"9\" rx=\"2\" "
        "fill=\"#8a8f98\"/>\n",
        right, middle - 9, bar < 1 ? 1.0 : bar);
    fprintf(out,
        "<text x=\"%d\" y=\"%d\" class=\"row\">%s<tspan class=\"faint\">, %lld "
        "file%s</tspan>"
        "</text>\n",
        right + 74, middle, picture_bytes(bytes, text), (long long)files,
        files == 1 ? "" : "s");
}

static void picture_totals(const struct picture *p)
{
    FILE *out = p->out;
    char text[24];
    const int y = p->bottom + GAP;
    fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"#c8c8c4\"/>\n",
        MARGIN, p->width - MARGIN, y, y);
    fprintf(out,
        "<text x=\"%d\" y=\"%d\" class=\"row\" text-anchor=\"end\">all cells</text>\n",
        picture_x(p, 0) - 12, y + (p->upright ? 34 : 22));
    for (int64_t i = 0; i < p->map.columns; i++) {
        const double x = picture_x(p, i) + p->column / 2.0;
        picture_bytes(p->map.column_bytes[i], text);
        if (p->upright)
            fprintf(out,
                "<text transform=\"translate(%.1f %d) rotate(-90)\" class=\"num\" "
                "text-anchor=\"middle\">%s</text>\n",
                x + 4, y + 31, text);
        else
            fprintf(out,
                "<text x=\"%.1f\" y=\"%d\" class=\"num\" "
                "text-anchor=\"middle\">%s</text>\n",
                x, y + 22, text);
    }
    fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"group\">%s in all</text>\n",
        picture_x(p, p->map.columns) + 12, y + (p->upright ? 34 : 22),
        picture_bytes(p->map.total, text));
}

static int picture_legend_y(const struct picture *p)
{
    return p->bottom + GAP + (p->upright ? 84 : 58);
}

static void picture_legend(const struct picture *p, const struct inspect_summary *s)
{
    FILE *out = p->out;
    char text[24];
    const int per_row = 5, step = (p->width - 2 * MARGIN) / per_row,
              y = picture_legend_y(p);
    int shown = 0;
    for (int k = 0; k < KIND_COUNT; k++) {
        if (s->kind[k].tensors == 0)
            continue;
        const int x = MARGIN + shown % per_row * step, top = y + shown / per_row * 26;
        const double share = s->all.stored > 0
            ? 100.0 * (double)s->kind[k].stored / (double)s->all.stored
            : 0;
        char percent[24];
        snprintf(
            percent, sizeof percent, share < 0.05 ? "below 0.1 %%" : "%.1f %%", share);
        fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"16\" height=\"16\" rx=\"3\" fill=\"%s\"/>"
            "<text x=\"%d\" y=\"%d\" class=\"row\">%s<tspan class=\"faint\" dx=\"8\">%s, "
            "%s</tspan></text>\n",
            x, top, picture_colour[k], x + 24, top + 13,
            table_kind_name((enum table_kind)k), picture_bytes(s->kind[k].stored, text),
            percent);
        shown++;
    }
    fprintf(out,
        "<circle cx=\"%d\" cy=\"%d\" r=\"2.6\" fill=\"#cc6677\"/><text x=\"%d\" y=\"%d\" "
        "class=\"faint\">the layer computes its own index set; layers without a dot "
        "reuse the one "
        "before. Bytes as stored, 1 GB = 10⁹ bytes.%s</text>\n",
        MARGIN + 8, y + 66, MARGIN + 24, y + 70,
        p->folded ? " Cells that hold exactly the same are one row." : "");
}

static void picture_style(const struct picture *p, int height)
{
    fprintf(p->out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\">\n"
        "<style>\n"
        "text{font-family:Inter,'Helvetica Neue',Arial,'DejaVu "
        "Sans',sans-serif;font-size:12px;"
        "fill:#1f2328}\n"
        ".title{font-size:22px;font-weight:600}.sub{font-size:14px}.faint{fill:#5b6068}\n"
        ".mono{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace}\n"
        ".group{font-size:14px;font-weight:600}.col{font-size:11px}.num{font-size:10px}\n"
        ".mtp{font-size:8px;fill:#882255;font-weight:600}.pill{fill:#ffffff;fill-opacity:"
        "0.86}\n"
        "</style>\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
        p->width, height, p->width, height, p->width, height);
}

int inspect_picture(const struct inspect *in, FILE *out, struct glm_error *err)
{
    struct picture p = {.in = in, .f = in->side.m, .out = out};
    struct inspect_summary s;
    if (inspect_map(in, &p.map, err) != GLM_OK || inspect_summary(in, &s, err) != GLM_OK
        || picture_rows(&p, err) != GLM_OK)
        goto done;
    picture_layout(&p);
    picture_style(&p, picture_legend_y(&p) + 92);
    picture_title(&p, &s);
    picture_head(&p);
    for (int64_t i = 0; i < p.row_count; i++) {
        if (i == 0 || p.rows[i].cell.pp != p.rows[i - 1].cell.pp)
            picture_group(&p, i);
        picture_row_draw(&p, &p.rows[i]);
    }
    picture_totals(&p);
    picture_legend(&p, &s);
    fputs("</svg>\n", out);
    if (ferror(out))
        glm_fail_errno(err, "the picture");
done:
    free(p.rows);
    inspect_map_clear(&p.map);
    return err->code;
}
