/* Opens a repository: the revision becomes a commit once, and everything after names the commit,
 * so a branch that moves meanwhile changes nothing. One request resolves it, one for each thousand
 * files lists them, and a file costs one answer of the hub and one of where it lies.
 *
 * Where the client's cache has a file (snapshots/<commit>/<path>, or blobs/<digest>) with the
 * listed size, that one is read. Small ones are checked like fetched ones; of a large one only the
 * size is. */
#include "convert/hub.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "convert/hubcache.h"
#include "convert/hubsum.h"

enum {
    PAGES_MAX = 200,
    HEAD_FIRST = 64 << 10, /* bytes asked for at first: most headers are shorter */
    HEADERS_LIMIT = 128000000
};

struct hub {
    struct hubenv env;
    struct hubspec spec;
    struct hubnet *net;
    char *name, *repo;
    char commit[HUBTREE_COMMIT];
    struct hubtree tree;
    struct hub_file *files;  /* one for each of the tree, in its order */
    int64_t *top, top_count; /* those of the top folder */
    struct hf_store store;
    atomic_uint_fast64_t header_bytes;
    struct kept { /* what is asked for twice: config.json and the index */
        char *name;
        void *data;
        size_t size;
    } kept[4];
};

/* ---- a body in memory ------------------------------------------------------------------------- */

struct body {
    unsigned char *data;
    size_t size, room, limit;
    const char *what;
};

static size_t take_body(
    void *ctx, uint64_t offset, const void *bytes, size_t n, struct glm_error *err)
{
    struct body *b = ctx;
    (void)offset; /* bytes come in order */
    if (n > b->limit - b->size) {
        glm_fail(err, GLM_EFORMAT, "%s: the answer is longer than %zu bytes", b->what,
            b->limit);
        return HUBNET_ABORT;
    }
    if (n > b->room - b->size) {
        size_t room = b->room * 2 + n + 4096;
        room = room > b->limit ? b->limit : room;
        unsigned char *more = realloc(b->data, room + 1);
        if (more == NULL) {
            glm_fail(err, GLM_ENOMEM, "%s: no memory for its bytes", b->what);
            return HUBNET_ABORT;
        }
        b->data = more;
        b->room = room;
    }
    memcpy(b->data + b->size, bytes, n);
    b->size += n;
    return n;
}

/* A question to the API: the whole answer, malloc'd. */
static int ask(struct hub *h, const char *what, const char *url, struct hubhead *head,
    struct body *b, struct glm_error *err)
{
    *b = (struct body){.limit = HUBTREE_PAGE, .what = what};
    const struct hubnet_get get = {.what = what,
        .url = url,
        .to = UINT64_MAX,
        .size = UINT64_MAX,
        .head = head,
        .ctx = b,
        .data = take_body};
    if (hubnet_fetch(h->net, &get, err) == GLM_OK && b->data == NULL)
        b->data = calloc(1, 1);
    return (int)err->code;
}

/* ---- addresses -------------------------------------------------------------------------------- */

/* Percent-encodes all but unreserved characters; slashes too unless kept. */
static char *quoted(const char *text, bool keep_slash)
{
    char *out = malloc(3 * strlen(text) + 1), *p = out;
    for (; out != NULL && *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')
            || strchr("-._~", c) != NULL || (keep_slash && c == '/'))
            *p++ = (char)c;
        else
            p += sprintf(p, "%%%02X", c);
    }
    if (out != NULL)
        *p = '\0';
    return out;
}

static int no_memory(const struct hub *h, struct glm_error *err)
{
    return glm_fail(err, GLM_ENOMEM, "%s: no memory", h->name != NULL ? h->name : "hub");
}

/* ---- revision and list ------------------------------------------------------------------------ */

static int resolve_revision(struct hub *h, struct glm_error *err)
{
    char *revision = NULL, *url = NULL, *what = NULL;
    struct body b = {0};

    if (hubsum_kind_of(h->spec.revision) == HUBSUM_GIT) { /* a commit already */
        memcpy(h->commit, h->spec.revision, strlen(h->spec.revision) + 1);
        return GLM_OK;
    }
    revision = quoted(h->spec.revision, false);
    if (revision == NULL
        || asprintf(
               &url, "%s/api/models/%s/revision/%s", h->env.endpoint, h->repo, revision)
            < 0)
        url = NULL; /* where asprintf fails it leaves anything */
    if (url == NULL || asprintf(&what, "%s@%s", h->name, h->spec.revision) < 0)
        what = NULL;
    if (what == NULL)
        no_memory(h, err);
    else if (ask(h, what, url, NULL, &b, err) == GLM_OK)
        hubtree_commit(what, (char *)b.data, b.size, h->commit, err);
    free(b.data);
    free(revision);
    free(url);
    free(what);
    return (int)err->code;
}

/* The address of the next page: at the endpoint, or at the hub that this mirror mirrors. */
static char *next_page(
    const struct hub *h, const char *url, const char *next, struct glm_error *err)
{
    static const char home[] = "https://huggingface.co/";
    char origin[HUBENV_ORIGIN], *out = NULL;
    if (strncmp(next, home, sizeof home - 1) == 0) {
        if (asprintf(&out, "%s/%s", h->env.endpoint, next + sizeof home - 1) < 0)
            out = NULL;
    } else if (next[0] == '/') {
        const char *path = strstr(h->env.endpoint, "://") + 3;
        const size_t host = (size_t)(path - h->env.endpoint) + strcspn(path, "/");
        if (asprintf(&out, "%.*s%s", (int)host, h->env.endpoint, next) < 0)
            out = NULL;
    } else {
        out = strdup(next);
    }
    if (out == NULL) {
        no_memory(h, err);
    } else if (!hubenv_origin(out, h->env.loopback, origin)
        || strcmp(origin, h->env.origin) != 0 || strcmp(out, url) == 0) {
        glm_fail(err, GLM_EFORMAT,
            "%s: the list of files goes on %s, which is not followed", h->name,
            strcmp(out, url) == 0 ? "where it began" : "at another host");
        free(out);
        out = NULL;
    }
    return out;
}

static int list_files(struct hub *h, struct glm_error *err)
{
    struct hubhead *head = malloc(sizeof *head);
    char *url = NULL;

    if (head == NULL
        || asprintf(&url, "%s/api/models/%s/tree/%s?recursive=true&expand=false",
               h->env.endpoint, h->repo, h->commit)
            < 0) {
        url = NULL;
        no_memory(h, err);
    }
    for (int page = 0; err->code == GLM_OK && url != NULL; page++) {
        struct body b;
        if (page == PAGES_MAX)
            glm_fail(err, GLM_EFORMAT, "%s: the list of files has more than %d pages",
                h->name, PAGES_MAX);
        else if (ask(h, h->name, url, head, &b, err) == GLM_OK) {
            hubtree_page(&h->tree, h->name, (char *)b.data, b.size, err);
            char *next = err->code == GLM_OK && head->next[0] != '\0'
                ? next_page(h, url, head->next, err)
                : NULL;
            free(url);
            url = next;
        }
        if (page < PAGES_MAX)
            free(b.data);
    }
    free(url);
    free(head);
    return err->code == GLM_OK ? hubtree_check(&h->tree, h->name, err) : (int)err->code;
}

/* ---- the store -------------------------------------------------------------------------------- */

struct hub_file *hub_find(const struct hub *h, const char *name)
{
    const struct hubtree_file *f = hubtree_find(&h->tree, name);
    return f == NULL ? NULL : &h->files[f - h->tree.files];
}

/* Files in folders are not of the model: "original/", "onnx/". */
static const char *store_list(void *ctx, int64_t i, uint64_t *bytes)
{
    const struct hub *h = ctx;
    if (i >= h->top_count)
        return NULL;
    *bytes = h->files[h->top[i]].listed->size;
    return h->files[h->top[i]].listed->path;
}

static const char *store_local(void *ctx, const char *name)
{
    const struct hub_file *f = hub_find(ctx, name);
    return f == NULL ? NULL : f->local;
}

/* Whether bytes are those that the hub lists. */
static bool is_listed(
    const struct hub_file *f, const void *data, size_t size, char hex[65])
{
    struct hubsum sum;
    hubsum_begin(&sum, hubsum_kind_of(f->listed->digest), size);
    hubsum_update(&sum, data, size);
    hubsum_hex(&sum, hex);
    return size == f->listed->size
        && (sum.kind == HUBSUM_NONE || strcmp(hex, f->listed->digest) == 0);
}

static int fetch(struct hub *h, struct hub_file *f, uint64_t from, uint64_t to,
    struct body *b, struct glm_error *err)
{
    const struct hubnet_get get = {.what = f->what,
        .url = f->url,
        .from = from,
        .to = to,
        .size = f->listed->size,
        .digest = f->listed->digest,
        .link = &f->link,
        .ctx = b,
        .data = take_body};
    b->what = f->what;
    if (from < to)
        hubnet_fetch(h->net, &get, err);
    if (err->code == GLM_OK && b->data == NULL && (b->data = calloc(1, 1)) == NULL)
        no_memory(h, err);
    return (int)err->code;
}

/* A whole small file, checked; a wrong one is fetched once more. */
static int fetch_whole(
    struct hub *h, struct hub_file *f, struct body *b, struct glm_error *err)
{
    char hex[HUBSUM_HEX];
    for (int attempt = 0; attempt < 2; attempt++) {
        *b = (struct body){.limit = (size_t)f->listed->size};
        const bool came = fetch(h, f, 0, f->listed->size, b, err) == GLM_OK;
        if (came && is_listed(f, b->data, b->size, hex))
            return GLM_OK;
        free(b->data);
        *b = (struct body){0};
        if (!came)
            return (int)err->code;
    }
    return glm_fail(err, GLM_EIO,
        "%s: twice its bytes have the digest %s, the hub lists %s: what comes is not "
        "what "
        "was published",
        f->what, hex, f->listed->digest);
}

static bool from_cache(const struct hub_file *f, size_t limit, void **data, size_t *size)
{
    struct glm_error unread = {0};
    char hex[HUBSUM_HEX];
    if (f->local == NULL || dio_slurp(f->local, limit, data, size, &unread) != GLM_OK)
        return false;
    if (is_listed(f, *data, *size, hex))
        return true;
    free(*data);
    *data = NULL;
    return false;
}

static bool asked_twice(const char *name)
{
    return strcmp(name, "config.json") == 0
        || strstr(name, ".safetensors.index.json") != NULL;
}

/* hfdir reads the configuration and the index one after the other, from one thread. */
static bool from_kept(struct hub *h, const char *name, void **data, size_t *size)
{
    for (size_t i = 0; i < sizeof h->kept / sizeof h->kept[0]; i++) {
        struct kept *k = &h->kept[i];
        if (k->name == NULL || strcmp(k->name, name) != 0)
            continue;
        *data = k->data;
        *size = k->size;
        free(k->name);
        *k = (struct kept){0};
        return true;
    }
    return false;
}

static void keep(struct hub *h, const char *name, const void *data, size_t size)
{
    for (size_t i = 0; i < sizeof h->kept / sizeof h->kept[0]; i++) {
        struct kept *k = &h->kept[i];
        if (k->name != NULL)
            continue;
        k->data = malloc(size + 1);
        k->name = k->data == NULL ? NULL : strdup(name);
        if (k->name == NULL) {
            free(k->data);
            *k = (struct kept){0};
            return;
        }
        memcpy(k->data, data, size);
        k->size = size;
        return;
    }
}

static int store_slurp(void *ctx, const char *name, size_t limit, void **data,
    size_t *size, struct glm_error *err)
{
    struct hub *h = ctx;
    struct hub_file *f = hub_find(h, name);
    struct body b;

    *data = NULL;
    *size = 0;
    if (f == NULL)
        return glm_fail(err, GLM_EFORMAT, "%s: has no file '%s'", h->name, name);
    if (f->listed->size > limit)
        return glm_fail(err, GLM_EFORMAT,
            "%s: %" PRIu64 " bytes, at most %zu are accepted here", f->what,
            f->listed->size, limit);
    if (from_kept(h, name, data, size) || from_cache(f, limit, data, size))
        return GLM_OK;
    if (fetch_whole(h, f, &b, err) != GLM_OK)
        return (int)err->code;
    if (asked_twice(name))
        keep(h, name, b.data, b.size);
    *data = b.data;
    *size = b.size;
    return GLM_OK;
}

/* The length that a header claims, UINT64_MAX where st_parse will refuse it. */
static uint64_t claimed(const struct body *b, uint64_t file_size)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0 && b->size >= 8; i--)
        n = n << 8 | b->data[i];
    return b->size < 8 || n > ST_MAX_HEADER || file_size < 8 || n > file_size - 8
        ? UINT64_MAX
        : n;
}

static int store_header(void *ctx, const char *name, struct st_header *out, void **bytes,
    struct glm_error *err)
{
    struct hub *h = ctx;
    struct hub_file *f = hub_find(h, name);
    const uint64_t size = f->listed->size;
    struct body b = {.limit = ST_MAX_HEADER + 8};

    *bytes = NULL;
    if (f->local != NULL)
        return st_read(out, f->local, bytes, err);
    if (fetch(h, f, 0, size < HEAD_FIRST ? size : HEAD_FIRST, &b, err) != GLM_OK)
        goto out;
    const uint64_t n = claimed(&b, size);
    if (n != UINT64_MAX && atomic_fetch_add(&h->header_bytes, n) + n > HEADERS_LIMIT) {
        glm_fail(err, GLM_EFORMAT,
            "%s: with it the headers of the files are over the limit of %d bytes",
            f->what, HEADERS_LIMIT);
        goto out;
    }
    if (n != UINT64_MAX && n + 8 > b.size
        && fetch(h, f, b.size, n + 8, &b, err) != GLM_OK)
        goto out;
    if (st_parse(out, f->what, b.data, b.size, size, err) != GLM_OK)
        goto out;
    void *exact = realloc(b.data, (size_t)out->data_start);
    *bytes = exact != NULL ? exact : b.data;
    b.data = NULL;
out:
    free(b.data);
    return (int)err->code;
}

/* ---- open ------------------------------------------------------------------------------------- */

static int make_files(struct hub *h, struct glm_error *err)
{
    char *folder = hubcache_folder(&h->env, &h->spec);
    h->files = calloc((size_t)h->tree.count + 1, sizeof *h->files);
    h->top = calloc((size_t)h->tree.count + 1, sizeof *h->top);
    for (int64_t i = 0; h->files != NULL && h->top != NULL && i < h->tree.count; i++) {
        struct hub_file *f = &h->files[i];
        f->listed = &h->tree.files[i];
        if (strchr(f->listed->path, '/') == NULL)
            h->top[h->top_count++] = i;
        char *path = quoted(f->listed->path, true);
        if (path == NULL
            || asprintf(&f->url, "%s/%s/resolve/%s/%s", h->env.endpoint, h->repo,
                   h->commit, path)
                < 0)
            f->url = NULL;
        free(path);
        if (f->url == NULL || asprintf(&f->what, "%s/%s", h->name, f->listed->path) < 0) {
            f->what = NULL;
            no_memory(h, err);
            break;
        }
        f->local = hubcache_find(folder, h->commit, f->listed);
    }
    if (h->files == NULL || h->top == NULL)
        no_memory(h, err);
    free(folder);
    return (int)err->code;
}

int hub_open(struct hub **out, const struct hub_options *o, struct glm_error *err)
{
    struct hub *h = calloc(1, sizeof *h);

    *out = NULL;
    if (h == NULL)
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", o->spec);
    const struct hubnet_options net = {.env = &h->env,
        .limit_rate = o->limit_rate,
        .stall_s = o->stall_s,
        .retries = o->retries,
        .events = o->events};
    h->store = (struct hf_store){h, store_list, store_slurp, store_header, store_local};
    if (hubspec_parse(&h->spec, o->spec, err) != GLM_OK
        || hubenv_read(&h->env, err) != GLM_OK)
        goto out;
    if (asprintf(&h->repo, "%s/%s", h->spec.owner, h->spec.name) < 0)
        h->repo = NULL;
    if (h->repo == NULL || asprintf(&h->name, HUBSPEC_SCHEME "%s", h->repo) < 0) {
        h->name = NULL;
        no_memory(h, err);
        goto out;
    }
    if (hubnet_open(&h->net, &net, err) != GLM_OK || resolve_revision(h, err) != GLM_OK
        || list_files(h, err) != GLM_OK || make_files(h, err) != GLM_OK)
        goto out;
    *out = h;
    h = NULL;
out:
    hub_close(h);
    return (int)err->code;
}

void hub_close(struct hub *h)
{
    if (h == NULL)
        return;
    hubnet_close(h->net);
    for (int64_t i = 0; h->files != NULL && i < h->tree.count; i++) {
        free(h->files[i].what);
        free(h->files[i].url);
        free(h->files[i].link);
        free(h->files[i].local);
    }
    for (size_t i = 0; i < sizeof h->kept / sizeof h->kept[0]; i++) {
        free(h->kept[i].name);
        free(h->kept[i].data);
    }
    free(h->files);
    free(h->top);
    free(h->name);
    free(h->repo);
    hubtree_clear(&h->tree);
    hubenv_clear(&h->env);
    free(h);
}

const struct hf_store *hub_store(const struct hub *h)
{
    return &h->store;
}

const char *hub_name(const struct hub *h)
{
    return h->name;
}

const char *hub_repo(const struct hub *h)
{
    return h->repo;
}

const char *hub_commit(const struct hub *h)
{
    return h->commit;
}

struct hubnet *hub_net(const struct hub *h)
{
    return h->net;
}
