/* hf:// names and the variables HF_*, CURL_CA_BUNDLE and so on. */
#include "convert/hubenv.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/ckpt.h"
#include "convert/jsonin.h"

enum { TOKEN_LIMIT = 4096 };

static const char default_endpoint[] = "https://huggingface.co";

/* ---- names ------------------------------------------------------------------------------------ */

bool hubspec_is(const char *text)
{
    return strncmp(text, HUBSPEC_SCHEME, strlen(HUBSPEC_SCHEME)) == 0;
}

/* What the hub allows in a name; no more, since it becomes part of addresses and folders. */
static bool good_part(const char *p, size_t n)
{
    if (n == 0 || n > 96 || p[0] == '.' || p[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && strchr("-_.", p[i]) == NULL)
            return false;
    for (size_t i = 0; i + 1 < n; i++)
        if ((p[i] == '.' && p[i + 1] == '.') || (p[i] == '-' && p[i + 1] == '-'))
            return false;
    return true;
}

int hubspec_parse(struct hubspec *s, const char *text, struct glm_error *err)
{
    const char *owner = text + strlen(HUBSPEC_SCHEME);
    const size_t o = strcspn(owner, "/@");
    const char *name = owner + o + (owner[o] == '/');
    const size_t n = strcspn(name, "@");
    const char *revision = name[n] == '@' ? name + n + 1 : "main";

    char shown[JSONIN_SHOWN];

    jsonin_shown(text, strlen(text), shown);
    if (owner[o] != '/' || !good_part(owner, o) || !good_part(name, n))
        return glm_fail(err, GLM_EUSAGE,
            "%s: expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION", shown);
    const size_t r = strlen(revision);
    bool good = r > 0 && r < sizeof s->revision && revision[0] != '/';
    for (size_t i = 0; i < r; i++)
        good = good && (unsigned char)revision[i] > 0x20 && revision[i] != 0x7f
            && strchr("\\?*[~^:", revision[i]) == NULL
            && !(revision[i] == '.' && revision[i + 1] == '.');
    if (!good)
        return glm_fail(err, GLM_EUSAGE,
            "%s: what follows the @ is no revision: a branch, a tag, refs/pr/N or a "
            "commit",
            shown);
    snprintf(s->owner, sizeof s->owner, "%.*s", (int)o, owner);
    snprintf(s->name, sizeof s->name, "%.*s", (int)n, name);
    snprintf(s->revision, sizeof s->revision, "%s", revision);
    return GLM_OK;
}

/* ---- addresses -------------------------------------------------------------------------------- */

static bool is_loopback(const char *host)
{
    unsigned a, b, c, d;
    char rest;
    if (strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0)
        return true;
    return sscanf(host, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &rest) == 4 && a == 127
        && b < 256 && c < 256 && d < 256;
}

bool hubenv_origin(const char *url, bool loopback, char out[HUBENV_ORIGIN])
{
    char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL;
    CURLU *u = curl_url();
    bool good = u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK
        && curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK
        && curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK
        && curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK;
    if (good && curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_OK)
        good = false;
    if (good)
        good = strcmp(scheme, "https") == 0
            || (loopback && strcmp(scheme, "http") == 0 && is_loopback(host));
    if (good)
        good = snprintf(out, HUBENV_ORIGIN, "%s://%s:%s", scheme, host, port)
            < HUBENV_ORIGIN;
    for (char *p = out; good && *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(user);
    curl_url_cleanup(u);
    if (u == NULL)
        errno = ENOMEM;
    return good;
}

/* ---- the environment -------------------------------------------------------------------------- */

/* The first of the variables that is set and not empty. */
static const char *first_of(const char *const *names)
{
    for (; *names != NULL; names++) {
        const char *v = getenv(*names);
        if (v != NULL && v[0] != '\0')
            return v;
    }
    return NULL;
}

static bool is_true(const char *name)
{
    static const char *const words[] = {"1", "ON", "YES", "TRUE"};
    const char *v = getenv(name);
    for (size_t i = 0; v != NULL && i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(v, words[i]) == 0)
            return true;
    return false;
}

/* These make a string in *out, malloc'd, and are false if there is no memory for it. A setting that is
 * lost must never look like one that was not made: without its token a run would ask as nobody. */

static bool copied(const char *text, char **out)
{
    *out = strdup(text);
    return *out != NULL;
}

static bool joined(const char *folder, const char *name, char **out)
{
    if (asprintf(out, "%s/%s", folder, name) < 0)
        *out = NULL;
    return *out != NULL;
}

/* "~/x" as the shell would have it; NULL, and true, without HOME. */
static bool expanded(const char *path, char **out)
{
    const char *home = getenv("HOME");
    *out = NULL;
    if (path[0] != '~' || (path[1] != '/' && path[1] != '\0'))
        return copied(path, out);
    if (home == NULL)
        return true;
    if (asprintf(out, "%s%s", home, path + 1) < 0)
        *out = NULL;
    return *out != NULL;
}

/* The folder of the hub's client; NULL, and true, if nothing says where it would be. */
static bool hf_home(char **out)
{
    const char *home = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME");
    if (home != NULL && home[0] != '\0')
        return expanded(home, out);
    if (cache != NULL && cache[0] != '\0')
        return joined(cache, "huggingface", out);
    return expanded("~/.cache/huggingface", out);
}

/* White space around a token is of the editor; inside it there is none. */
static int take_token(
    struct hubenv *e, const char *from, const char *text, struct glm_error *err)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++)
        if (!isgraph((unsigned char)text[i]))
            return glm_fail(err, GLM_EUSAGE,
                "%s: the token in it has a space or another character that no token has",
                from);
    if (n == 0)
        return GLM_OK;
    e->token = strndup(text, n);
    return e->token ? GLM_OK : glm_fail(err, GLM_ENOMEM, "no memory for the token");
}

static int read_token(struct hubenv *e, const char *home, struct glm_error *err)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", NULL};
    const char *said = first_of(names), *where = getenv("HF_TOKEN_PATH");
    struct glm_error unread = {0};
    char *path = NULL;
    void *text = NULL;
    size_t size;

    if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return GLM_OK;
    if (said != NULL)
        return take_token(e, "HF_TOKEN", said, err);
    const bool there = where != NULL && where[0] != '\0'
        ? expanded(where, &path)
        : home == NULL || joined(home, "token", &path);
    if (!there)
        return glm_fail(err, GLM_ENOMEM, "no memory for the token's path");
    if (path == NULL)
        return GLM_OK;
    if (dio_slurp(path, TOKEN_LIMIT, &text, &size, &unread) == GLM_OK) {
        char *copy = strndup(text, size);
        if (copy == NULL)
            glm_fail(err, GLM_ENOMEM, "no memory for the token");
        else if (strlen(copy) < size)
            glm_fail(err, GLM_EUSAGE, "%s: a NUL byte is in it; no token has one", path);
        else
            take_token(e, path, copy, err);
        if (copy != NULL)
            explicit_bzero(copy, strlen(copy));
        free(copy);
        explicit_bzero(text, size);
    } else if (unread.sys_errno != ENOENT && unread.sys_errno != ENOTDIR) {
        *err = unread; /* a token that is there and cannot be read is not "no token" */
    }
    free(text);
    free(path);
    return (int)err->code;
}

static int read_endpoint(struct hubenv *e, struct glm_error *err)
{
    const char *said = getenv("HF_ENDPOINT");
    if (said == NULL || said[0] == '\0')
        said = default_endpoint;
    e->endpoint = strdup(said);
    if (e->endpoint == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory");
    for (size_t n = strlen(e->endpoint); n > 0 && e->endpoint[n - 1] == '/';)
        e->endpoint[--n] = '\0';
    errno = 0;
    if (strpbrk(e->endpoint, "?#@ ") != NULL
        || !hubenv_origin(e->endpoint, true, e->origin)) {
        if (errno == ENOMEM)
            return glm_fail(err, GLM_ENOMEM, "no memory for HF_ENDPOINT");
        return glm_fail(err, GLM_EUSAGE,
            "HF_ENDPOINT: expected https://HOST[:PORT], or http:// on this machine "
            "(127.0.0.1, [::1], localhost), without user, query or fragment");
    }
    e->loopback = strncmp(e->origin, "http:", 5) == 0;
    return GLM_OK;
}

int hubenv_read(struct hubenv *e, struct glm_error *err)
{
    static const char *const caches[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", NULL};
    static const char *const files[] = {
        "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", NULL};
    static const char *const paths[] = {"SSL_CERT_DIR", NULL};
    const char *cache = first_of(caches), *ca = first_of(files),
               *ca_dir = first_of(paths);

    *e = (struct hubenv){
        .offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE")};
    char *home = NULL;
    bool good = hf_home(&home);
    if (cache != NULL)
        good = good && expanded(cache, &e->cache);
    else if (home != NULL)
        good = good && joined(home, "hub", &e->cache);
    good = good && (ca == NULL || copied(ca, &e->ca_file));
    good = good && (ca_dir == NULL || copied(ca_dir, &e->ca_path));
    if (!good)
        glm_fail(err, GLM_ENOMEM, "no memory for what the environment says of the hub");
    else if (read_endpoint(e, err) == GLM_OK)
        read_token(e, home, err);
    free(home);
    return (int)err->code;
}

void hubenv_clear(struct hubenv *e)
{
    if (e->token != NULL)
        explicit_bzero(e->token, strlen(e->token));
    free(e->endpoint);
    free(e->token);
    free(e->cache);
    free(e->ca_file);
    free(e->ca_path);
    *e = (struct hubenv){0};
}
