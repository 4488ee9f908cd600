/* Writing toy models: safetensors headers, data, index and side files.
 *
 * Headers are printed here by hand, in the order that the safetensors library uses (wide types
 * first, then names as text), so that "experts.10" lies before "experts.2" as it does in files
 * from the wild. */
#include "tests/support/toy.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/toy_private.h"

enum { BUFFER = 4 << 20 };

char *toy_read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, capacity = 0;
    if (!f) {
        toy_fail("%s: %s", path, strerror(errno));
        return NULL;
    }
    for (size_t n = 1; n > 0; size += n) {
        if (capacity - size < 65536) {
            capacity = 2 * capacity + 131072;
            char *more = realloc(text, capacity);
            if (!more) {
                free(text);
                fclose(f);
                return NULL;
            }
            text = more;
        }
        n = fread(text + size, 1, capacity - size - 1, f);
    }
    fclose(f);
    text[size] = 0;
    return text;
}

static int write_text(const char *dir, const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, strlen(text), f) != strlen(text) || fclose(f) != 0)
        return toy_fail("%s: %s", path, strerror(errno));
    return 0;
}

/* ---- which tensor lies in which file ---- */

struct job {
    const char *dir;
    const struct toy_options *o;
    const struct toy_model *m;
    const struct toy_tensor **order; /* all tensors, file by file, in file order */
    int64_t *first;                  /* [files + 1] into order */
    int files;
    atomic_int next;
    atomic_bool failed;
    char message[512];
};

static int by_type_then_name(const void *a, const void *b)
{
    const struct toy_tensor *x = *(const struct toy_tensor *const *)a;
    const struct toy_tensor *y = *(const struct toy_tensor *const *)b;
    const size_t sx = toy_type_size(x->type), sy = toy_type_size(y->type);
    return sx != sy ? (sx < sy ? 1 : -1) : strcmp(x->name, y->name);
}

static int distribute(struct job *j)
{
    const struct toy_model *m = j->m;
    j->order = malloc((size_t)(m->count + 1) * sizeof *j->order);
    j->first = calloc((size_t)j->files + 1, sizeof *j->first);
    if (!j->order || !j->first)
        return toy_fail("no memory");
    uint64_t done = 0;
    int file = 0;
    for (int64_t i = 0; i < m->count; i++) {
        j->order[i] = &m->tensors[i];
        while (file + 1 < j->files
            && done >= m->bytes / (uint64_t)j->files * (uint64_t)(file + 1))
            j->first[++file] = i;
        done += m->tensors[i].bytes;
    }
    while (file < j->files)
        j->first[++file] = m->count;
    for (int f = 0; f < j->files; f++)
        qsort(j->order + j->first[f], (size_t)(j->first[f + 1] - j->first[f]),
            sizeof *j->order, by_type_then_name);
    return 0;
}

static void file_name(const struct job *j, int file, char *out, size_t size)
{
    if (j->files == 1)
        snprintf(out, size, "model.safetensors");
    else
        snprintf(out, size, "model-%05d-of-%05d.safetensors", file + 1, j->files);
}

/* ---- one file ---- */

static char *print_header(const struct job *j, int file, size_t *size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    if (!f)
        return NULL;
    fwrite("\0\0\0\0\0\0\0\0", 1, 8, f); /* the length, once known */
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    uint64_t at = 0;
    for (int64_t i = j->first[file]; i < j->first[file + 1]; i++) {
        const struct toy_tensor *t = j->order[i];
        fprintf(
            f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, toy_type_name(t->type));
        for (int d = 0; d < t->rank; d++)
            fprintf(f, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
            (unsigned long long)(at + t->bytes));
        at += t->bytes;
    }
    fputc('}', f);
    while (ftell(f) % 8)
        fputc(' ', f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    const uint64_t n = *size - 8;
    for (int i = 0; i < 8; i++)
        text[i] = (char)(n >> (8 * i));
    return text;
}

static int put(int fd, const void *data, size_t size)
{
    const char *p = data;
    while (size > 0) {
        const ssize_t n = write(fd, p, size);
        if (n < 0)
            return -1;
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

static int put_data(const struct job *j, int fd, const struct toy_tensor *t, void *buffer)
{
    const int64_t size = (int64_t)toy_type_size(t->type);
    const int64_t total = (int64_t)t->bytes / size;
    for (int64_t at = 0; at < total;) {
        const int64_t n = total - at < BUFFER / size ? total - at : BUFFER / size;
        toy_fill(j->o, t, at, n, buffer);
        if (put(fd, buffer, (size_t)(n * size)) != 0)
            return -1;
        at += n;
    }
    return 0;
}

static int write_file(const struct job *j, int file, void *buffer)
{
    char name[64], path[1024];
    size_t size = 0;
    uint64_t data = 0;
    int rc = -1;
    file_name(j, file, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", j->dir, name);
    char *header = print_header(j, file, &size);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (!header || fd < 0 || put(fd, header, size) != 0)
        goto out;
    for (int64_t i = j->first[file]; i < j->first[file + 1]; i++) {
        data += j->order[i]->bytes;
        if (!j->o->sparse && put_data(j, fd, j->order[i], buffer) != 0)
            goto out;
    }
    if (j->o->sparse && ftruncate(fd, (off_t)(size + data)) != 0)
        goto out;
    rc = 0;
out:
    if (rc != 0)
        toy_fail("%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(header);
    return rc;
}

static void *worker(void *arg)
{
    struct job *j = arg;
    void *buffer = malloc(BUFFER);
    for (int f; buffer && !j->failed && (f = atomic_fetch_add(&j->next, 1)) < j->files;)
        if (write_file(j, f, buffer) != 0 && !atomic_exchange(&j->failed, true))
            memcpy(j->message, toy_error(), strlen(toy_error()) + 1);
    free(buffer);
    return NULL;
}

static int write_files(struct job *j)
{
    pthread_t threads[16];
    int n = j->o->threads ? j->o->threads : 2;
    n = n > 16 ? 16 : n;
    int started = 0;
    while (started < n - 1 && pthread_create(&threads[started], NULL, worker, j) == 0)
        started++;
    worker(j);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return j->failed ? toy_fail("%s", j->message) : 0;
}

/* ---- what lies beside them ---- */

static int write_index(const struct job *j)
{
    char path[1024], name[64];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", j->dir);
    FILE *f = fopen(path, "wb");
    if (!f)
        return toy_fail("%s: %s", path, strerror(errno));
    fprintf(f,
        "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
        (unsigned long long)j->m->bytes);
    for (int file = 0; file < j->files; file++) {
        file_name(j, file, name, sizeof name);
        for (int64_t i = j->first[file]; i < j->first[file + 1]; i++)
            fprintf(f, "%s\n    \"%s\": \"%s\"", i ? "," : "", j->order[i]->name, name);
    }
    fprintf(f, "\n  }\n}\n");
    return fclose(f) == 0 ? 0 : toy_fail("%s: %s", path, strerror(errno));
}

/* A tokenizer of a few hundred pseudo-words: big enough to be cut, small enough to be stored. */
static int write_tokenizer(const char *dir)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "wb");
    if (!f)
        return toy_fail("%s: %s", path, strerror(errno));
    fprintf(f,
        "{\"version\":\"1.0\",\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"t0\","
        "\"vocab\":{");
    for (int i = 0; i < 512; i++)
        fprintf(f, "%s\"t%d\":%d", i ? "," : "", i, i);
    fprintf(f, "}}}\n");
    return fclose(f) == 0 ? 0 : toy_fail("%s: %s", path, strerror(errno));
}

static int write_sides(const char *dir)
{
    static const struct {
        const char *name, *text;
    } sides[] = {
        {"chat_template.jinja",
            "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% "
            "endfor %}"},
        {"LICENSE",
            "MIT License\n\nA toy model: its weights are a mix of names and numbers.\n"},
        {"README.md",
            "---\nlicense: mit\n---\n# Toy\n\nMade by a generator; \xc3\xbc is not "
            "ASCII.\n"},
        {"generation_config.json",
            "{\n  \"eos_token_id\": 1,\n  \"pad_token_id\": 0,\n  \"temperature\": 1.0,\n"
            "  \"top_p\": 0.95\n}\n"},
        {"tokenizer_config.json",
            "{\n  \"model_max_length\": 1048576,\n  \"padding_side\": \"left\"\n}\n"},
    };
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        if (write_text(dir, sides[i].name, sides[i].text) != 0)
            return -1;
    return write_tokenizer(dir);
}

int toy_write(const char *dir, const struct toy_options *o)
{
    struct toy_model m;
    if (toy_model_new(&m, o) != 0)
        return -1;
    struct job j = {.dir = dir, .o = o, .m = &m, .files = o->files > 0 ? o->files : 1};
    int rc = -1;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        toy_fail("%s: %s", dir, strerror(errno));
        goto out;
    }
    if (distribute(&j) != 0 || write_files(&j) != 0)
        goto out;
    if (j.files > 1 && write_index(&j) != 0)
        goto out;
    if (write_text(dir, "config.json", m.config_text) != 0)
        goto out;
    if (!o->no_sides && write_sides(dir) != 0)
        goto out;
    rc = 0;
out:
    free(j.order);
    free(j.first);
    toy_model_clear(&m);
    return rc;
}

int toy_write_t1(const char *dir)
{
    return toy_write(
        dir, &(struct toy_options){.config = "fixtures/configs/t1.json", .files = 4});
}
