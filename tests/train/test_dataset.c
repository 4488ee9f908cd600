/* Samples against a plain second method that lays all documents out in memory, and the promises about
 * order: every sample once an epoch, any sample alone, another order for another seed and epoch. */
#include "train/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "tests/support/rng.h"
#include "tests/support/tmpdir.h"
#include "train/tokens_write.h"

enum { DOCUMENTS = 150, LENGTH = 16 };

static char *folder;
static char path[512];

/* Ids are unique in a file: a token says where it comes from. */
static int64_t length_of(int64_t d)
{
    return d % 9 == 2 ? 0 : d % 9 == 5 ? 1 : (int64_t)(rng_mix((uint64_t)d) % 50);
}

static uint8_t mask_of(int32_t id)
{
    return (uint8_t)(rng_mix((uint64_t)id) % 4 != 0);
}

static void write_file(const char *to, int32_t first, int64_t documents)
{
    struct glm_error err = {0};
    struct tokens_writer *w;
    cr_assert_eq(tokens_writer_open(&w, to, GLM_I32, true, &err), GLM_OK, "%s", err.text);
    for (int64_t d = 0; d < documents; d++) {
        for (int64_t i = 0; i < length_of(d); i++, first++) {
            const uint8_t mask = mask_of(first);
            cr_assert_eq(tokens_writer_add(w, &first, &mask, 1, &err), GLM_OK);
        }
        cr_assert_eq(tokens_writer_end(w, &err), GLM_OK);
    }
    cr_assert_eq(tokens_writer_finish(w, &err), GLM_OK, "%s", err.text);
    tokens_writer_close(w);
}

static void begin(void)
{
    folder = tmpdir_new();
    snprintf(path, sizeof path, "%s/x.h5", folder);
    write_file(path, 0, DOCUMENTS);
}

static void end(void)
{
    tmpdir_remove(folder);
}

TestSuite(dataset, .init = begin, .fini = end);

static struct dataset *opened(const struct dataset_options *more)
{
    const struct dataset_source source = {.path = path};
    struct glm_error err = {0};
    struct dataset_options o = *more;
    struct dataset *ds;
    o.length = o.length == 0 ? LENGTH : o.length;
    if (o.sources == NULL) {
        o.sources = &source;
        o.source_count = 1;
    }
    cr_assert_eq(dataset_open(&ds, &o, &err), GLM_OK, "%s", err.text);
    return ds;
}

static void get(struct dataset *ds, int64_t index, struct sample *s)
{
    struct glm_error err = {0};
    cr_assert_eq(dataset_sample(ds, index, s, &err), GLM_OK, "%s", err.text);
}

static struct sample made(int64_t length)
{
    struct glm_error err = {0};
    struct sample s;
    cr_assert_eq(sample_init(&s, length, &err), GLM_OK);
    return s;
}

/* The document of a token and its place there, by the plain sum of lengths. */
static int64_t document_of(int32_t id, int64_t *at)
{
    int64_t d = 0;
    for (*at = id; *at >= length_of(d); d++)
        *at -= length_of(d);
    return d;
}

static int64_t all_tokens(void)
{
    int64_t n = 0;
    for (int64_t d = 0; d < DOCUMENTS; d++)
        n += length_of(d);
    return n;
}

/* ---- stream ---------------------------------------------------------------------------------- */

/* Puts an epoch's cuts in their places and looks at the stream that comes out: whole documents, each
 * once, in any order. */
static void epoch_is_every_document_once(
    struct dataset *ds, int64_t epoch, struct sample *s)
{
    const int64_t n = dataset_epoch(ds), tokens = n * LENGTH + 1;
    int32_t *const stream = malloc((size_t)tokens * sizeof *stream);
    bool *const seen = calloc((size_t)n, 1), *const document = calloc(DOCUMENTS, 1);
    for (int64_t i = 0; i < n; i++) {
        get(ds, epoch * n + i, s);
        cr_assert_eq(s->epoch, epoch);
        cr_assert_not(seen[s->number], "cut %ld comes twice", s->number);
        seen[s->number] = true;
        memcpy(stream + s->number * LENGTH, s->tokens, LENGTH * sizeof *stream);
        if (s->number == n - 1)
            stream[tokens - 1] = s->labels[LENGTH - 1];
        for (int r = 0; r < LENGTH; r++) {
            cr_assert_eq(s->loss_mask[r], mask_of(s->labels[r]));
            cr_assert_eq(s->positions[r], r);
        }
        cr_assert(
            s->sequences == 1 && s->cu_seqlens[0] == 0 && s->cu_seqlens[1] == LENGTH);
    }
    for (int64_t i = 0; i < n; i++) { /* labels are the stream one further */
        get(ds, epoch * n + i, s);
        cr_assert_arr_eq(
            s->labels, stream + s->number * LENGTH + 1, LENGTH * sizeof *stream);
    }
    for (int64_t i = 0; i < tokens;) {
        int64_t at;
        const int64_t d = document_of(stream[i], &at);
        cr_assert_eq(at, 0, "a document begins in its middle");
        cr_assert_not(document[d], "document %ld comes twice", d);
        document[d] = true;
        const int32_t first = stream[i];
        for (; at < length_of(d) && i < tokens; at++, i++)
            cr_assert_eq(stream[i], first + at);
    }
    free(stream);
    free(seen);
    free(document);
}

Test(dataset, stream_is_every_document_once_an_epoch)
{
    struct sample s = made(LENGTH);
    struct dataset *const ds = opened(&(struct dataset_options){.seed = 5});
    cr_expect_eq(dataset_epoch(ds), (all_tokens() - 1) / LENGTH);
    for (int64_t epoch = 0; epoch < 3; epoch++)
        epoch_is_every_document_once(ds, epoch, &s);
    dataset_close(ds);
    sample_clear(&s);
}

static int64_t equal_samples(const struct dataset_options *a, int64_t from_a,
    const struct dataset_options *b, int64_t from_b, int64_t n)
{
    struct dataset *const x = opened(a), *const y = opened(b);
    struct sample s = made(LENGTH), t = made(LENGTH);
    int64_t equal = 0;
    for (int64_t i = 0; i < n; i++) {
        get(x, from_a + i, &s);
        get(y, from_b + i, &t);
        equal += memcmp(s.tokens, t.tokens, LENGTH * sizeof *s.tokens) == 0
            && memcmp(s.labels, t.labels, LENGTH * sizeof *s.labels) == 0
            && memcmp(s.loss_mask, t.loss_mask, LENGTH) == 0
            && memcmp(s.positions, t.positions, LENGTH * sizeof *s.positions) == 0
            && s.sequences == t.sequences
            && memcmp(s.cu_seqlens, t.cu_seqlens,
                   (size_t)(s.sequences + 1) * sizeof *s.cu_seqlens)
                == 0;
    }
    sample_clear(&s);
    sample_clear(&t);
    dataset_close(x);
    dataset_close(y);
    return equal;
}

Test(dataset, order_differs_by_seed_and_epoch)
{
    for (int packing = PACKING_STREAM; packing <= PACKING_DOCUMENTS; packing++) {
        const struct dataset_options a = {
            .seed = 1, .packing = (enum dataset_packing)packing};
        const struct dataset_options b = {
            .seed = 2, .packing = (enum dataset_packing)packing};
        struct dataset *const ds = opened(&a);
        const int64_t n = dataset_epoch(ds);
        dataset_close(ds);
        cr_expect_eq(equal_samples(&a, 0, &a, 0, 3 * n), 3 * n);
        cr_expect_lt(equal_samples(&a, 0, &b, 0, n), 8);
        cr_expect_lt(equal_samples(&a, 0, &a, n, n), 8);
    }
}

Test(dataset, any_sample_alone_is_that_of_the_stream)
{
    for (int packing = PACKING_STREAM; packing <= PACKING_DOCUMENTS; packing++) {
        const struct dataset_options o = {
            .seed = 9, .packing = (enum dataset_packing)packing};
        struct dataset *const in_order = opened(&o);
        struct sample s = made(LENGTH), t = made(LENGTH);
        const int64_t n = 2 * dataset_epoch(in_order) + 5;
        for (int64_t i = 0; i < n; i++) {
            get(in_order, i, &s);
            if (i % 7 != 0)
                continue;
            struct dataset *const alone = opened(&o);
            get(alone, n + 3, &t); /* another epoch laid out first */
            get(alone, i, &t);
            cr_expect_arr_eq(s.tokens, t.tokens, LENGTH * sizeof *s.tokens);
            cr_expect_arr_eq(s.labels, t.labels, LENGTH * sizeof *s.labels);
            cr_expect_arr_eq(s.loss_mask, t.loss_mask, LENGTH);
            cr_expect(
                s.rows == t.rows && s.sequences == t.sequences && s.number == t.number);
            dataset_close(alone);
        }
        dataset_close(in_order);
        sample_clear(&s);
        sample_clear(&t);
    }
}

/* ---- packs ----------------------------------------------------------------------------------- */

static void pack_is_right(const struct sample *s, bool *row_seen)
{
    int64_t at;
    for (int32_t q = 0; q < s->sequences; q++) {
        const int32_t from = s->cu_seqlens[q], to = s->cu_seqlens[q + 1];
        cr_assert_lt(from, to);
        for (int32_t r = from; r < to; r++) {
            cr_assert_eq(s->positions[r], r - from);
            if (from >= s->rows) { /* the empty rows */
                cr_assert(s->tokens[r] == 0 && s->labels[r] == 0 && s->loss_mask[r] == 0);
                continue;
            }
            cr_assert_eq(s->labels[r], s->tokens[r] + 1);
            cr_assert_eq(s->loss_mask[r], mask_of(s->labels[r]));
            cr_assert_eq(document_of(s->tokens[r], &at), document_of(s->labels[r], &at));
            cr_assert_eq(
                document_of(s->tokens[r], &at), document_of(s->tokens[from], &at));
            cr_assert_not(row_seen[s->tokens[r]], "a row comes twice");
            row_seen[s->tokens[r]] = true;
        }
    }
    cr_assert_eq(s->cu_seqlens[s->sequences], LENGTH);
}

Test(dataset, packs_hold_every_row_once_and_labels_stay_in_their_document)
{
    struct sample s = made(LENGTH);
    struct dataset *const ds =
        opened(&(struct dataset_options){.seed = 5, .packing = PACKING_DOCUMENTS});
    const int64_t n = dataset_epoch(ds);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        bool *const seen = calloc((size_t)all_tokens(), 1);
        for (int64_t i = 0; i < n; i++) {
            get(ds, epoch * n + i, &s);
            cr_assert_eq(s.epoch, epoch);
            pack_is_right(&s, seen);
        }
        int32_t id = 0;
        for (int64_t d = 0; d < DOCUMENTS; d++)
            for (int64_t i = 0; i < length_of(d); i++, id++)
                cr_assert_eq(
                    seen[id], i + 1 < length_of(d), "token %d of document %ld", id, d);
        free(seen);
    }
    dataset_close(ds);
    sample_clear(&s);
}

/* ---- parts, blends --------------------------------------------------------------------------- */

Test(dataset, parts_share_no_document)
{
    int owner[DOCUMENTS] = {0};
    struct sample s = made(LENGTH);
    for (int part = 0; part < DATASET_PARTS; part++) {
        struct dataset *const ds = opened(&(struct dataset_options){
            .seed = 1, .split = "70,20,10", .part = (enum dataset_part)part});
        for (int64_t i = 0; i < 2 * dataset_epoch(ds); i++) {
            get(ds, i, &s);
            for (int r = 0; r < LENGTH; r++) {
                int64_t at;
                const int64_t d = document_of(s.tokens[r], &at);
                cr_assert(owner[d] == 0 || owner[d] == part + 1, "document %ld", d);
                owner[d] = part + 1;
            }
        }
        dataset_close(ds);
    }
    sample_clear(&s);
}

Test(dataset, split_rounds_to_whole_documents)
{
    static const struct {
        const char *split;
        int64_t documents, border[4];
    } cases[] = {
        {NULL, 10, {0, 10, 10, 10}},
        {"969,30,1", 1000, {0, 969, 999, 1000}},
        {"969,30,1", 10, {0, 10, 10, 10}},
        {"8,1,1", 10, {0, 8, 9, 10}},
        {"99.5,0.25,.25", 400, {0, 398, 399, 400}},
        {"1,1", 3, {0, 2, 3, 3}},
        {"0,1,0", 5, {0, 0, 5, 5}},
        {"100", 5, {0, 5, 5, 5}},
    };
    static const char *const bad[] = {
        "", "0", "0,0,0", "1,", "1,2,3,4", "a", "-1,2", "1 ,2", "1..2"};
    struct glm_error err = {0};
    int64_t lo, hi;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int part = 0; part < DATASET_PARTS; part++) {
            cr_assert_eq(dataset_split(cases[i].split, cases[i].documents,
                             (enum dataset_part)part, &lo, &hi, &err),
                GLM_OK, "%s", err.text);
            cr_expect(lo == cases[i].border[part] && hi == cases[i].border[part + 1],
                "%s part %d: %ld to %ld", cases[i].split, part, lo, hi);
        }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        glm_error_clear(&err);
        cr_expect_eq(dataset_split(bad[i], 10, PART_TRAIN, &lo, &hi, &err), GLM_EUSAGE,
            "'%s'", bad[i]);
    }
}

Test(dataset, blend_serves_each_source_in_its_own_order)
{
    char other[512];
    snprintf(other, sizeof other, "%s/y.h5", folder);
    write_file(other, 1000000, 80);
    const struct dataset_source both[] = {{path, "0.7"}, {other, "0.3"}};
    struct dataset *const ds =
        opened(&(struct dataset_options){.seed = 3, .sources = both, .source_count = 2});
    struct dataset *alone[2];
    struct sample s = made(LENGTH), t = made(LENGTH);
    int64_t served[2] = {0};
    for (int k = 0; k < 2; k++)
        alone[k] = opened(
            &(struct dataset_options){.seed = 3, .sources = &both[k], .source_count = 1});
    for (int64_t i = 0; i < 500; i++) {
        get(ds, i, &s);
        cr_assert_eq(s.source, s.tokens[0] >= 1000000);
        get(alone[s.source], served[s.source]++, &t);
        cr_assert_arr_eq(s.tokens, t.tokens, LENGTH * sizeof *s.tokens);
        cr_assert(llabs(10 * served[0] - 7 * (i + 1)) < 10);
        int source;
        int64_t epoch, number;
        dataset_locate(ds, i, &source, &epoch, &number);
        cr_assert(source == s.source && epoch == s.epoch && number == s.number);
    }
    dataset_close(ds);
    for (int k = 0; k < 2; k++)
        dataset_close(alone[k]);
    sample_clear(&s);
    sample_clear(&t);
}

Test(dataset, blend_without_weights_goes_through_all_in_one_epoch)
{
    char other[512];
    snprintf(other, sizeof other, "%s/y.h5", folder);
    write_file(other, 1000000, 80);
    const struct dataset_source both[] = {{path, NULL}, {other, NULL}};
    struct dataset *const ds =
        opened(&(struct dataset_options){.sources = both, .source_count = 2});
    const int64_t a = dataset_report(ds, 0).samples, b = dataset_report(ds, 1).samples;
    cr_expect_eq(dataset_epoch(ds), a + b);
    struct sample s = made(LENGTH);
    int64_t served[2] = {0};
    for (int64_t i = 0; i < a + b; i++) {
        get(ds, i, &s);
        cr_expect_eq(s.epoch, 0);
        served[s.source]++;
    }
    cr_expect(served[0] == a && served[1] == b);
    sample_clear(&s);
    dataset_close(ds);
}

/* ---- what is refused, what is reported -------------------------------------------------------- */

Test(dataset, shorter_than_a_sample_is_refused)
{
    const struct dataset_source source = {.path = path};
    const int64_t all = all_tokens();
    for (int packing = PACKING_STREAM; packing <= PACKING_DOCUMENTS; packing++) {
        struct glm_error err = {0};
        struct dataset *ds;
        struct dataset_options o = {.sources = &source,
            .source_count = 1,
            .length = all,
            .packing = (enum dataset_packing)packing};
        cr_expect_eq(dataset_open(&ds, &o, &err), GLM_EFORMAT);
        cr_expect_null(ds);
        cr_expect_not_null(strstr(err.text, "less than one sample of"), "%s", err.text);
        cr_expect_not_null(strstr(err.text, path), "%s", err.text);
        glm_error_clear(&err);
        o.length = 4; /* but the part is empty */
        o.split = "1,0,0";
        o.part = PART_VALID;
        cr_expect_eq(dataset_open(&ds, &o, &err), GLM_EFORMAT);
        cr_expect_not_null(
            strstr(err.text, "part valid: 0 tokens in 0 documents"), "%s", err.text);
    }
    struct dataset *const ds = opened(&(struct dataset_options){.length = all - 1});
    cr_expect_eq(dataset_epoch(ds), 1);
    dataset_close(ds);
}

Test(dataset, id_outside_the_vocabulary_is_named_with_its_sample)
{
    struct dataset *const ds = opened(&(struct dataset_options){.vocab = 700});
    struct sample s = made(LENGTH);
    struct glm_error err = {0};
    int64_t bad = -1;
    for (int64_t i = 0; i < dataset_epoch(ds) && bad < 0; i++)
        if (dataset_sample(ds, i, &s, &err) != GLM_OK)
            bad = i;
    cr_assert_geq(bad, 0);
    cr_expect_eq(err.code, GLM_EFORMAT);
    char head[32];
    snprintf(head, sizeof head, "sample %ld: ", bad);
    cr_expect(strncmp(err.text, head, strlen(head)) == 0, "%s", err.text);
    long document, position, id;
    cr_assert_eq(
        sscanf(strstr(err.text, "document"), "document %ld, position %ld: token id %ld",
            &document, &position, &id),
        3);
    int64_t at;
    cr_expect(id >= 700 && document_of((int32_t)id, &at) == document && at == position);
    sample_clear(&s);
    dataset_close(ds);
}

Test(dataset, skipped_documents_are_counted)
{
    int64_t empty = 0, rowless = 0;
    for (int64_t d = 0; d < DOCUMENTS; d++) {
        empty += length_of(d) == 0;
        rowless += length_of(d) < 2;
    }
    cr_assert(empty > 10 && rowless > empty);
    struct dataset *a = opened(&(struct dataset_options){.seed = 1});
    struct dataset *b = opened(&(struct dataset_options){.packing = PACKING_DOCUMENTS});
    cr_expect_eq(dataset_report(a, 0).skipped, empty);
    cr_expect_eq(dataset_report(b, 0).skipped, rowless);
    cr_expect_eq(dataset_report(b, 0).rows, all_tokens() - (DOCUMENTS - empty));
    dataset_close(a);
    dataset_close(b);
}

Test(dataset, loss_is_masked_after_the_end_token)
{
    struct dataset *const a = opened(&(struct dataset_options){.seed = 1});
    struct dataset *const b =
        opened(&(struct dataset_options){.seed = 1, .mask_after_end = true, .end = 100});
    struct sample s = made(LENGTH), t = made(LENGTH);
    int changed = 0;
    for (int64_t i = 0; i < dataset_epoch(a); i++) {
        get(a, i, &s);
        get(b, i, &t);
        for (int r = 0; r < LENGTH; r++) {
            changed += s.tokens[r] == 100;
            cr_assert_eq(t.loss_mask[r], s.tokens[r] == 100 ? 0 : s.loss_mask[r]);
        }
    }
    cr_expect_eq(changed, 1);
    sample_clear(&s);
    sample_clear(&t);
    dataset_close(a);
    dataset_close(b);
}

Test(dataset, fingerprint_changes_with_whatever_changes_a_sample)
{
    char other[512];
    snprintf(other, sizeof other, "%s/y.h5", folder);
    write_file(other, 1, DOCUMENTS);
    const struct dataset_source y = {other, NULL}, two[] = {{path, "1"}, {other, "2"}},
                                three[] = {{path, "2"}, {other, "1"}};
    const struct dataset_options list[] = {
        {0},
        {.seed = 1},
        {.length = LENGTH + 1},
        {.packing = PACKING_DOCUMENTS},
        {.split = "9,1"},
        {.split = "9,1", .part = PART_VALID},
        {.mask_after_end = true},
        {.mask_after_end = true, .end = 1},
        {.sources = &y, .source_count = 1},
        {.sources = two, .source_count = 2},
        {.sources = three, .source_count = 2},
    };
    enum { LIST = sizeof list / sizeof *list };
    unsigned char print[LIST + 1][DIGEST_SIZE];
    for (int i = 0; i <= LIST; i++) {
        /* vocab changes no sample */
        struct dataset *const ds =
            opened(i < LIST ? &list[i] : &(struct dataset_options){.vocab = 9});
        dataset_fingerprint(ds, print[i]);
        dataset_close(ds);
        for (int k = 0; k < i && i < LIST; k++)
            cr_expect_neq(memcmp(print[i], print[k], DIGEST_SIZE), 0, "%d and %d", k, i);
    }
    cr_expect_arr_eq(print[LIST], print[0], DIGEST_SIZE);
}
