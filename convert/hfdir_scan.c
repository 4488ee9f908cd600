/* The folder of a model: which files are data, which go along, which are another matter.
 *
 * Links are followed for reading (a hub cache is nothing but links), names are taken only if every
 * system can hold them and none can be led out of a folder by them. A side file goes along as it
 * is, so one that is a link out of the folder is refused: a model from elsewhere could carry off
 * whatever its user can read. What is not carried along is told as a warning, never dropped
 * silently. Headers and side files are kept in memory, so their sums are bounded. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/hfdir_inside.h"
#include "convert/jsonin.h"

enum { SIDE_LIMIT = 128 << 20, HEADERS_LIMIT = 128000000 };

int hfdir_warn(struct hf_source *s, struct glm_error *err, const char *fmt, ...)
{
    char *text = NULL, **grown;
    va_list args;
    va_start(args, fmt);
    const int n = vasprintf(&text, fmt, args);
    va_end(args);
    grown = realloc(s->warnings, ((size_t)s->warning_count + 1) * sizeof *grown);
    if (grown)
        s->warnings = grown;
    if (n < 0 || !grown) {
        free(n < 0 ? NULL : text);
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for a warning", s->dir);
    }
    s->warnings[s->warning_count++] = text;
    return 0;
}

/* CON, NUL, COM1.txt and so on: devices on other systems, with any extension. */
static bool is_reserved(const char *name, size_t length)
{
    static const char *const devices[] = {"CON", "PRN", "AUX", "NUL"};
    const char *dot = memchr(name, '.', length);
    const size_t stem = dot ? (size_t)(dot - name) : length;
    for (size_t i = 0; i < 4; i++)
        if (stem == 3 && strncasecmp(name, devices[i], 3) == 0)
            return true;
    return stem == 4
        && (strncasecmp(name, "COM", 3) == 0 || strncasecmp(name, "LPT", 3) == 0)
        && name[3] >= '0' && name[3] <= '9';
}

const char *hfdir_name_trouble(const char *name, size_t length)
{
    size_t bad;
    if (length == 0)
        return "is empty";
    if (length > 255)
        return "is longer than 255 bytes";
    if (name[0] == '/')
        return "is absolute";
    if (memchr(name, '\\', length))
        return "holds a backslash";
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f
            || ((unsigned char)name[i] == 0xc2 && i + 1 < length
                && (unsigned char)name[i + 1] < 0xa0)) /* U+0080 to U+009F */
            return "holds a control character";
    for (size_t i = 0; i + 1 < length; i++)
        if (name[i] == '.' && name[i + 1] == '.' && (i == 0 || name[i - 1] == '/')
            && (i + 2 == length || name[i + 2] == '/'))
            return "leads out of the folder by '..'";
    if (memchr(name, '/', length))
        return "lies in a sub-folder";
    if (memchr(name, ':', length))
        return "holds a colon (a drive or a stream elsewhere)";
    if (name[length - 1] == '.' || name[length - 1] == ' ')
        return "ends in a dot or a space, which some systems drop";
    if (is_reserved(name, length))
        return "is reserved for a device on some systems";
    return jsonin_utf8(name, length, &bad) ? NULL : "is not UTF-8";
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), e = strlen(end);
    return n >= e && strcmp(name + n - e, end) == 0;
}

static bool any(const char *name, const char *const *list, bool ends)
{
    for (; *list; list++)
        if (ends ? ends_in(name, *list) : strncmp(name, *list, strlen(*list)) == 0)
            return true;
    return false;
}

enum role { ROLE_DATA, ROLE_INDEX, ROLE_SIDE, ROLE_FORMAT, ROLE_OTHER };

static const char *digits(const char *s)
{
    while (*s >= '0' && *s <= '9')
        s++;
    return s;
}

/* Ends in .safetensors, whatever stands before, or as "model.safetensors-00001-of-00014": both are
 * habits. A copy put aside, "model.safetensors.bak", is no data. */
static bool is_data(const char *name)
{
    const char *end = NULL;
    for (const char *at = name; (at = strstr(at, ".safetensors")) != NULL;)
        end = at += strlen(".safetensors");
    if (end == NULL || *end == '\0')
        return end != NULL;
    const char *const first = end + 1, *const of = *end == '-' ? digits(first) : end;
    if (of == end || of == first || strncmp(of, "-of-", 4) != 0)
        return false;
    const char *const last = digits(of + 4);
    return last > of + 4 && *last == '\0';
}

static enum role role_of(const char *name)
{
    static const char *const formats[] = {".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5",
        ".onnx", ".msgpack", ".npz", ".bin.index.json", NULL};
    static const char *const starts[] = {"tokenizer", "chat_template", "chat-template",
        "README", "LICENSE", "NOTICE", NULL};
    static const char *const ends[] = {
        ".json", ".jinja", ".model", ".txt", ".md", ".tiktoken", NULL};
    if (ends_in(name, ".safetensors.index.json"))
        return ROLE_INDEX;
    if (is_data(name))
        return ROLE_DATA;
    if (any(name, formats, true))
        return ROLE_FORMAT;
    return any(name, starts, false) || any(name, ends, true) ? ROLE_SIDE : ROLE_OTHER;
}

static int add_side(
    struct hf_source *s, const char *name, uint64_t bytes, struct glm_error *err)
{
    uint64_t all = 0; /* never more than the limit */
    for (int64_t i = 0; i < s->side_count; i++)
        all += s->sides[i].bytes;
    if (bytes > SIDE_LIMIT - all)
        return glm_fail(err, GLM_EFORMAT,
            "%s/%s: with its %" PRIu64 " bytes the side files are over their limit of %d",
            s->dir, name, bytes, SIDE_LIMIT);
    struct hf_side *grown =
        realloc(s->sides, ((size_t)s->side_count + 1) * sizeof *grown);
    if (grown)
        s->sides = grown;
    char *path = strdup(name);
    if (!grown || !path) {
        free(path);
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for its list of files", s->dir);
    }
    s->sides[s->side_count].path = path;
    s->sides[s->side_count++].bytes = bytes;
    return 0;
}

static int add_file(struct hf_source *s, const char *name, struct glm_error *err)
{
    struct hf_file *grown =
        realloc(s->files, ((size_t)s->file_count + 1) * sizeof *grown);
    if (grown)
        s->files = grown;
    char *copy = strdup(name);
    if (!grown || !copy) {
        free(copy);
        return glm_fail(err, GLM_ENOMEM, "%s: no memory for its list of files", s->dir);
    }
    s->files[s->file_count++] = (struct hf_file){.name = copy};
    return 0;
}

/* Two indexes: the usual name wins if it is one of them, else nobody can say which holds. */
static int add_index(
    struct hf_source *s, const char *name, char **index, struct glm_error *err)
{
    static const char usual[] = "model.safetensors.index.json";
    if (*index) {
        const bool new_wins = strcmp(name, usual) == 0;
        if (!new_wins && strcmp(*index, usual) != 0)
            return glm_fail(err, GLM_EFORMAT,
                "%s: two index files, %s and %s: remove one", s->dir, *index, name);
        if (hfdir_warn(s, err, "%s: a second index, ignored", new_wins ? *index : name)
            != 0)
            return err->code;
        if (!new_wins)
            return 0;
    }
    free(*index);
    *index = strdup(name);
    return *index ? 0 : glm_fail(err, GLM_ENOMEM, "%s: no memory", s->dir);
}

static bool is_inside(const char *path, const char *folder)
{
    const size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && path[n] == '/';
}

/* A link may stay inside the folder, or lead where the hub cache that the folder is a snapshot of
 * keeps its bytes: X/snapshots/COMMIT/NAME -> X/blobs/ETAG. */
static int check_link(const struct hf_source *s, const char *path, struct glm_error *err)
{
    char real[PATH_MAX], folder[PATH_MAX], blobs[PATH_MAX], up[PATH_MAX];
    char shown[JSONIN_SHOWN];
    if (!realpath(path, real) || !realpath(s->dir, folder))
        return glm_fail_errno(err, "%s: follow the link", path);
    if (is_inside(real, folder))
        return 0;
    char *last = strrchr(folder, '/');
    *last = '\0';
    const char *parent = strrchr(folder, '/');
    snprintf(up, sizeof up, "%s/../../blobs", s->dir);
    if (parent && strcmp(parent, "/snapshots") == 0 && realpath(up, blobs)
        && is_inside(real, blobs))
        return 0;
    return glm_fail(err, GLM_EFORMAT,
        "%s: a link that leads out of the folder, to %s, which would be carried along: "
        "put "
        "the file itself there",
        path, jsonin_shown(real, strlen(real), shown));
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode) ? "a folder"
        : S_ISFIFO(mode) ? "a pipe"
        : S_ISSOCK(mode) ? "a socket"
                         : "a device";
}

static int take(
    struct hf_source *s, const char *name, char **index, struct glm_error *err)
{
    char shown[JSONIN_SHOWN], path[4096];
    struct stat st, own;
    const enum role role = role_of(name);
    const char *trouble = hfdir_name_trouble(name, strlen(name));
    if (trouble)
        return glm_fail(err, GLM_EFORMAT,
            "%s: the file name '%s' %s: rename or remove it", s->dir,
            jsonin_shown(name, strlen(name), shown), trouble);
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    if (stat(path, &st) != 0) {
        if (errno == ELOOP)
            return glm_fail(err, GLM_EFORMAT, "%s: a link that goes in a circle", path);
        if (errno == ENOENT)
            return glm_fail(err, GLM_EFORMAT,
                "%s: a link to a file that is not there: the download is not complete",
                path);
        return glm_fail_errno(err, "%s: stat", path);
    }
    if (!S_ISREG(st.st_mode)
        && (role == ROLE_DATA || role == ROLE_INDEX || strcmp(name, "config.json") == 0))
        return glm_fail(
            err, GLM_EFORMAT, "%s: %s, not a regular file", path, kind_of(st.st_mode));
    if (S_ISDIR(st.st_mode))
        return hfdir_warn(s, err, "%s/: a sub-folder, ignored", name);
    if (!S_ISREG(st.st_mode))
        return hfdir_warn(s, err, "%s: not a regular file, ignored", name);
    if ((role == ROLE_SIDE || role == ROLE_INDEX) && lstat(path, &own) == 0
        && S_ISLNK(own.st_mode) && check_link(s, path, err) != 0)
        return err->code;
    switch (role) {
    case ROLE_DATA:
        return add_file(s, name, err);
    case ROLE_INDEX:
        return add_index(s, name, index, err);
    case ROLE_SIDE:
        return add_side(s, name, (uint64_t)st.st_size, err);
    case ROLE_FORMAT:
        return hfdir_warn(s, err, "%s: another format of the weights, ignored", name);
    case ROLE_OTHER:
        break;
    }
    return hfdir_warn(
        s, err, "%s: not a file that belongs to a model, not carried along", name);
}

static int file_order(const void *a, const void *b)
{
    return strcmp(((const struct hf_file *)a)->name, ((const struct hf_file *)b)->name);
}

static int side_order(const void *a, const void *b)
{
    return strcmp(((const struct hf_side *)a)->path, ((const struct hf_side *)b)->path);
}

static int text_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The index that holds is carried along too: whoever writes the same files again needs it. */
static int keep_index(struct hf_source *s, const char *name, struct glm_error *err)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    if (stat(path, &st) != 0)
        return glm_fail_errno(err, "%s: stat", path);
    return add_side(s, name, (uint64_t)st.st_size, err);
}

/* The same files out of a store's list, which has no links and no devices. */
static int take_listed(struct hf_source *s, const char *name, uint64_t bytes,
    char **index, struct glm_error *err)
{
    char shown[JSONIN_SHOWN];
    const char *trouble = hfdir_name_trouble(name, strlen(name));
    if (trouble)
        return glm_fail(err, GLM_EFORMAT, "%s: the file name '%s' %s", s->dir,
            jsonin_shown(name, strlen(name), shown), trouble);
    switch (role_of(name)) {
    case ROLE_DATA:
        return add_file(s, name, err);
    case ROLE_INDEX:
        return add_index(s, name, index, err);
    case ROLE_SIDE:
        return add_side(s, name, bytes, err);
    case ROLE_FORMAT:
        return hfdir_warn(s, err, "%s: another format of the weights, ignored", name);
    case ROLE_OTHER:
        break;
    }
    return hfdir_warn(
        s, err, "%s: not a file that belongs to a model, not carried along", name);
}

static int scan_store(struct hf_source *s, char **index_name, struct glm_error *err)
{
    uint64_t bytes, index_bytes = 0;
    const char *name;
    for (int64_t i = 0; (name = s->store->list(s->store->ctx, i, &bytes)) != NULL; i++) {
        if (name[0] != '.' && take_listed(s, name, bytes, index_name, err) != 0)
            return err->code;
        if (*index_name && strcmp(*index_name, name) == 0)
            index_bytes = bytes;
    }
    return *index_name ? add_side(s, *index_name, index_bytes, err) : 0;
}

static int scan_folder(struct hf_source *s, char **index_name, struct glm_error *err)
{
    DIR *d = opendir(s->dir);
    if (!d && errno == ENOTDIR)
        return glm_fail(err, GLM_EFORMAT,
            "%s: not a folder; a model is a folder with config.json "
            "and safetensors files",
            s->dir);
    if (!d && errno == ENOENT)
        return glm_fail(err, GLM_EUSAGE,
            "%s: no such folder; a repository on a hub is named hf://OWNER/NAME", s->dir);
    if (!d)
        return glm_fail_errno(err, "%s: open", s->dir);
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (!e)
            break;
        /* .git, .gitattributes, .cache: of the tools that fetched it, not of the model */
        if (e->d_name[0] != '.' && take(s, e->d_name, index_name, err) != 0)
            break;
    }
    if (errno != 0 && err->code == GLM_OK)
        glm_fail_errno(err, "%s: list", s->dir);
    closedir(d);
    return *index_name && err->code == GLM_OK ? keep_index(s, *index_name, err)
                                              : (int)err->code;
}

int hfdir_scan(struct hf_source *s, char **index_name, struct glm_error *err)
{
    *index_name = NULL;
    if ((s->store ? scan_store : scan_folder)(s, index_name, err) != 0)
        return err->code;
    if (s->file_count == 0)
        return glm_fail(err, GLM_EFORMAT,
            "%s: no .safetensors file in it; in a hub cache name the "
            "folder snapshots/<commit>",
            s->dir);
    qsort(s->files, (size_t)s->file_count, sizeof *s->files, file_order);
    if (s->side_count > 1)
        qsort(s->sides, (size_t)s->side_count, sizeof *s->sides, side_order);
    if (s->warning_count > 1)
        qsort(s->warnings, (size_t)s->warning_count, sizeof *s->warnings, text_order);
    return 0;
}

/* ---- headers --------------------------------------------------------------------------------- */

struct readers {
    struct hf_source *s;
    atomic_int_fast64_t next;
    pthread_mutex_t lock;
    int64_t failed; /* the first file, by order, that could not be read; guarded */
    struct glm_error cause;
    uint64_t kept; /* bytes of the headers that were read; guarded */
};

/* All headers are kept. Each has a limit of its own; this is one for their sum. */
static int over_limit(
    const struct hf_source *s, const char *name, uint64_t all, struct glm_error *err)
{
    return all <= HEADERS_LIMIT ? 0
                                : glm_fail(err, GLM_EFORMAT,
                                    "%s/%s: with it the headers of the files are "
                                    "%" PRIu64 " bytes, over the limit of %d",
                                    s->dir, name, all, HEADERS_LIMIT);
}

static void *read_headers(void *arg)
{
    struct readers *r = arg;
    for (;;) {
        const int64_t i = atomic_fetch_add(&r->next, 1);
        if (i >= r->s->file_count)
            return NULL;
        struct glm_error err = {0};
        const int code = hfdir_read_header(r->s, i, &err);
        pthread_mutex_lock(&r->lock);
        if (code == 0) {
            r->kept += r->s->files[i].header.data_start;
            over_limit(r->s, r->s->files[i].name, r->kept, &err);
        }
        if (err.code == GLM_OK) {
            pthread_mutex_unlock(&r->lock);
            continue;
        }
        if (r->failed < 0 || i < r->failed) {
            r->failed = i;
            r->cause = err;
        }
        pthread_mutex_unlock(&r->lock);
    }
}

/* The length that a file claims for its header; 0 where st_read will refuse it anyway. */
static uint64_t claimed(const char *path)
{
    unsigned char head[8];
    uint64_t n = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    if (pread(fd, head, sizeof head, 0) == sizeof head)
        for (int i = 7; i >= 0; i--)
            n = n << 8 | head[i];
    close(fd);
    return n <= ST_MAX_HEADER ? n : 0;
}

/* In a folder the sum is known before anything is kept. */
static int check_claims(const struct hf_source *s, struct glm_error *err)
{
    uint64_t all = 0;
    for (int64_t i = 0; i < s->file_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", s->dir, s->files[i].name);
        all += claimed(path);
        if (over_limit(s, s->files[i].name, all, err) != 0)
            return err->code;
    }
    return 0;
}

int hfdir_headers(struct hf_source *s, int threads, struct glm_error *err)
{
    enum { MAX_THREADS = 64 };
    if (s->store == NULL && check_claims(s, err) != 0)
        return err->code;
    pthread_t more[MAX_THREADS];
    struct readers r = {.s = s, .failed = -1};
    int started = 0;
    pthread_mutex_init(&r.lock, NULL);
    /* One that cannot be started only makes it slower: this thread reads too. */
    while (started + 1 < threads && started < MAX_THREADS && started + 1 < s->file_count
        && pthread_create(&more[started], NULL, read_headers, &r) == 0)
        started++;
    read_headers(&r);
    for (int i = 0; i < started; i++)
        pthread_join(more[i], NULL);
    pthread_mutex_destroy(&r.lock);
    return r.failed < 0 ? 0 : glm_fail(err, r.cause.code, "%s", r.cause.text);
}
