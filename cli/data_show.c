/* glm-data show: a document, or a sample as training sees it. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/data_modes.h"
#include "cli/jsonout.h"
#include "cli/opt.h"
#include "cli/report.h"
#include "train/train.h"

enum { SHOW_PIECE = 4096 };

struct show_data {
    const char *path;
    bool text, json;
    struct jsonout *j;
};

/* A byte as text: what prints, and escapes for the rest. */
static void print_byte(int32_t id)
{
    if (id == '\n')
        printf("\\n");
    else if (id == '\\')
        printf("\\\\");
    else if (id >= 32 && id < 127)
        putchar((int)id);
    else
        printf(id < 256 ? "\\x%02" PRIx32 : "<%" PRIx32 ">", (uint32_t)id);
}

static void print_ids(const char *name, const int32_t *ids, int64_t n, bool text)
{
    if (name != NULL)
        printf("%-10s ", name);
    for (int64_t i = 0; i < n; i++)
        if (text)
            print_byte(ids[i]);
        else
            printf("%s%" PRId32, i > 0 ? " " : "", ids[i]);
    if (name != NULL)
        printf("\n");
}

static void json_ids(struct jsonout *j, json_t *list, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        jsonout_int(j, list, NULL, ids[i]);
}

/* ---- a document ----------------------------------------------------------------------------- */

static int show_document(
    const struct show_data *s, int64_t document, struct glm_error *err)
{
    struct tokens t;
    int32_t ids[SHOW_PIECE];
    uint8_t mask[SHOW_PIECE];
    if (tokens_open(&t, s->path, err) != GLM_OK)
        return err->code;
    if (document >= t.documents) {
        glm_fail(err, GLM_EUSAGE,
            "%s: there is no document %" PRId64 ": it has 0 to %" PRId64, s->path,
            document, t.documents - 1);
        goto out;
    }
    json_t *list = NULL, *mask_list = NULL;
    if (s->json) {
        jsonout_int(s->j, NULL, "document", document);
        list = jsonout_array(s->j, NULL, "ids");
        mask_list = jsonout_array(s->j, NULL, "mask");
    }
    const int64_t length = tokens_length(&t, document);
    for (int64_t at = 0; at < length; at += SHOW_PIECE) {
        const int64_t n = length - at < SHOW_PIECE ? length - at : SHOW_PIECE;
        if (tokens_read(&t, document, at, n, 0, ids, mask, err) != GLM_OK)
            goto out;
        if (!s->json && at > 0 && !s->text)
            printf(" ");
        if (!s->json)
            print_ids(NULL, ids, n, s->text);
        else
            json_ids(s->j, list, ids, n);
        for (int64_t i = 0; s->json && i < n; i++)
            jsonout_int(s->j, mask_list, NULL, mask[i]);
    }
    if (!s->json)
        printf("\n");
out:
    tokens_close(&t);
    return err->code;
}

/* ---- a sample ------------------------------------------------------------------------------- */

static void sample_text(const struct sample *s, bool text)
{
    printf("epoch      %" PRId64 ", cut %" PRId64 "\n", s->epoch, s->number);
    printf("rows       %" PRId64 " of %" PRId64 "\n", s->rows, s->length);
    print_ids("sequences", s->cu_seqlens, s->sequences + 1, false);
    print_ids("tokens", s->tokens, s->length, text);
    print_ids("labels", s->labels, s->length, text);
    printf("%-10s ", "mask");
    for (int64_t i = 0; i < s->length; i++)
        printf("%s%d", i > 0 ? " " : "", s->loss_mask[i]);
    printf("\n");
    print_ids("positions", s->positions, s->length, false);
}

static void sample_json(struct jsonout *j, const struct sample *s)
{
    jsonout_int(j, NULL, "epoch", s->epoch);
    jsonout_int(j, NULL, "cut", s->number);
    jsonout_int(j, NULL, "rows", s->rows);
    json_ids(j, jsonout_array(j, NULL, "cu_seqlens"), s->cu_seqlens, s->sequences + 1);
    json_ids(j, jsonout_array(j, NULL, "tokens"), s->tokens, s->length);
    json_ids(j, jsonout_array(j, NULL, "labels"), s->labels, s->length);
    json_t *mask = jsonout_array(j, NULL, "mask");
    for (int64_t i = 0; i < s->length; i++)
        jsonout_int(j, mask, NULL, s->loss_mask[i]);
    json_ids(j, jsonout_array(j, NULL, "positions"), s->positions, s->length);
}

static int show_sample(const struct show_data *show, int64_t index,
    struct dataset_options o, struct glm_error *err)
{
    const struct dataset_source source = {.path = show->path};
    struct dataset *ds = NULL;
    struct sample s = {0};
    o.sources = &source;
    o.source_count = 1;
    if (dataset_open(&ds, &o, err) == GLM_OK && sample_init(&s, o.length, err) == GLM_OK
        && dataset_sample(ds, index, &s, err) == GLM_OK) {
        if (show->json) {
            jsonout_int(show->j, NULL, "sample", index);
            jsonout_int(show->j, NULL, "samples", dataset_epoch(ds));
            sample_json(show->j, &s);
        } else {
            printf("sample     %" PRId64 ", %" PRId64 " an epoch\n", index,
                dataset_epoch(ds));
            sample_text(&s, show->text);
        }
    }
    sample_clear(&s);
    dataset_close(ds);
    return err->code;
}

int data_show(int argc, char **argv)
{
    const char *packing = "stream", *part = "train";
    int document = -1, sample = -1, length = 0, seed = 0;
    struct dataset_options o = {0};
    struct show_data s = {0};
    struct common_options common = {0};
    const struct opt opts[] = {
        OPT_INT("document", "n", &document, 0, INT32_MAX, "print document n"),
        OPT_INT(
            "sample", "i", &sample, 0, INT32_MAX, "print sample i as training sees it"),
        OPT_INT("length", "n", &length, 1, DATASET_MAX_LENGTH, "rows of a sample"),
        OPT_INT("seed", "n", &seed, 0, INT32_MAX, "the order of samples (default 0)"),
        OPT_CHOICE("packing", "stream|documents", &packing,
            "cut one stream of documents, or pack whole ones"),
        OPT_STR("split", "shares", &o.split,
            "shares of train, valid and test, like 969,30,1 (default all train)"),
        OPT_CHOICE("part", "train|valid|test", &part, "the part that the sample is of"),
        OPT_FLAG("text", &s.text, "print ids as the bytes of text"),
        OPT_COMMON(&common),
        OPT_END,
    };
    const struct command self = {
        .name = "glm-data show",
        .synopsis = {"DATASET"},
        .summary =
            "Prints a document of a token dataset, or a sample as training sees it.",
        .min_args = 1,
        .max_args = 1,
        .opts = opts,
    };
    struct glm_error err = {0};
    struct jsonout j;
    if (opt_parse(&self, &argc, &argv, &err) != 0)
        return cli_report("glm-data", &err);
    jsonout_init(&j);
    s.path = argv[0];
    s.json = common.json;
    s.j = &j;
    o.length = length;
    o.seed = (uint32_t)seed;
    o.packing = packing[0] == 's' ? PACKING_STREAM : PACKING_DOCUMENTS;
    o.part = part[0] == 'v' ? PART_VALID : part[1] == 'r' ? PART_TRAIN : PART_TEST;
    jsonout_str(&j, NULL, "command", self.name);
    jsonout_str(&j, NULL, "path", argv[0]);
    if ((document < 0) == (sample < 0))
        glm_fail(&err, GLM_EUSAGE, "give one of --document and --sample");
    else if (sample >= 0 && length == 0)
        glm_fail(&err, GLM_EUSAGE, "--sample wants --length");
    else if (document >= 0)
        show_document(&s, document, &err);
    else
        show_sample(&s, sample, o, &err);
    if (err.code == GLM_OK && common.json)
        jsonout_print(&j, stdout, &err);
    jsonout_clear(&j);
    return cli_report("glm-data", &err);
}
