/* One hop as curl sees it: the request with its headers, and what becomes of the answer's bytes.
 *
 * The token is added here, hop by hop, and only for the endpoint's own origin. */
#include "convert/hubnet_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/version.h"

enum { SWALLOW = 64 << 10 };

/* ---- curl's callbacks ------------------------------------------------------------------------- */

static size_t on_header(char *line, size_t one, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    (void)one;
    t->heard_ns = hubnet_now();
    return hubhead_line(&t->head, line, n) ? n : 0;
}

/* Gives a buffer to who asked, from where it stopped taking. True: all of it is dealt with. */
static bool deliver(struct transfer *t, const char *p, size_t n)
{
    while (t->taken < n && !t->enough) {
        size_t left = n - t->taken;
        if (t->body_at < t->at) { /* the server began at 0 though asked for less */
            if (left > t->at - t->body_at)
                left = (size_t)(t->at - t->body_at);
            t->body_at += left;
            t->taken += left;
            t->net->tokens -= (double)left;
            continue;
        }
        if (left > t->get.to - t->at)
            left = (size_t)(t->get.to - t->at);
        const size_t got =
            left == 0 ? 0 : t->get.data(t->get.ctx, t->at, p + t->taken, left, &t->cause);
        if (got == HUBNET_ABORT) {
            t->verdict = VERDICT_FAIL;
            return false;
        }
        t->at += got;
        t->body_at += got;
        t->taken += got;
        t->net->tokens -= (double)got;
        t->enough = t->at == t->get.to;
        if (got < left)
            return false;
    }
    t->taken = 0;
    return true;
}

static size_t on_body(char *p, size_t one, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    (void)one;
    t->heard_ns = hubnet_now();
    hubnet_judge(t);
    if (t->verdict != VERDICT_BODY) {
        /* A short answer leaves the connection usable; a long one is not worth it. */
        t->taken += n;
        return t->taken > SWALLOW ? 0 : n;
    }
    if (t->enough)
        return 0;
    if (hubnet_rate_allows(t->net) && deliver(t, p, n))
        return n;
    if (t->verdict != VERDICT_BODY)
        return 0;
    t->paused = true;
    return CURL_WRITEFUNC_PAUSE;
}

/* ---- the request ------------------------------------------------------------------------------ */

static bool add_header(struct transfer *t, const char *text)
{
    struct curl_slist *more = curl_slist_append(t->headers, text);
    if (more != NULL)
        t->headers = more;
    return more != NULL;
}

static bool set_authorities(CURL *c, const struct hubenv *env)
{
    struct stat st;
    if (env->ca_path != NULL
        && curl_easy_setopt(c, CURLOPT_CAPATH, env->ca_path) != CURLE_OK)
        return false;
    if (env->ca_file == NULL)
        return true;
    const bool folder = stat(env->ca_file, &st) == 0 && S_ISDIR(st.st_mode);
    return curl_easy_setopt(c, folder ? CURLOPT_CAPATH : CURLOPT_CAINFO, env->ca_file)
        == CURLE_OK;
}

static bool set_range(struct transfer *t)
{
    char range[64];
    if (t->at == 0 && (t->get.to == UINT64_MAX || t->get.to == t->get.size))
        return true;
    if (t->get.to == UINT64_MAX)
        snprintf(range, sizeof range, "%" PRIu64 "-", t->at);
    else
        snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, t->at, t->get.to - 1);
    return curl_easy_setopt(t->easy, CURLOPT_RANGE, range) == CURLE_OK;
}

/* The token goes where the endpoint is and nowhere else. */
static bool set_token(struct transfer *t)
{
    const struct hubenv *env = t->net->o.env;
    char origin[HUBENV_ORIGIN], *line;
    if (env->token == NULL)
        return true;
    if (!hubenv_origin(t->url, env->loopback, origin)) /* it could be once: no memory */
        return false;
    if (strcmp(origin, env->origin) != 0)
        return true;
    if (asprintf(&line, "Authorization: Bearer %s", env->token) < 0)
        return false;
    const bool added = add_header(t, line);
    explicit_bzero(line, strlen(line));
    free(line);
    return added;
}

bool hubnet_set_up(struct transfer *t)
{
    CURL *c = t->easy;
    const struct hubenv *env = t->net->o.env;
#define SET(option, value) (curl_easy_setopt(c, option, value) == CURLE_OK)
    return SET(CURLOPT_URL, t->url) && SET(CURLOPT_PRIVATE, t)
        && SET(CURLOPT_NOSIGNAL, 1L)
        && SET(CURLOPT_PROTOCOLS_STR, env->loopback ? "http,https" : "https")
        && SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1)
        /* What a proxy says to CONNECT comes unencrypted: nothing in it is the hub's word. */
        && SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L)
        && SET(CURLOPT_USERAGENT, "glm-import/" GLM_VERSION)
        && SET(CURLOPT_ACCEPT_ENCODING, "identity") && SET(CURLOPT_BUFFERSIZE, 512L << 10)
        && SET(CURLOPT_FOLLOWLOCATION, 0L) && SET(CURLOPT_TCP_KEEPALIVE, 1L)
        && SET(CURLOPT_SOCKOPTFUNCTION, hubnet_on_socket)
        && SET(CURLOPT_SOCKOPTDATA, t->net)
        && SET(CURLOPT_CONNECTTIMEOUT, (long)t->net->o.stall_s)
        && SET(CURLOPT_HEADERFUNCTION, on_header) && SET(CURLOPT_HEADERDATA, t)
        && SET(CURLOPT_WRITEFUNCTION, on_body) && SET(CURLOPT_WRITEDATA, t)
        && SET(CURLOPT_ERRORBUFFER, t->curl_error) && set_authorities(c, env)
        && set_range(t) && set_token(t)
        && (t->headers == NULL || SET(CURLOPT_HTTPHEADER, t->headers));
#undef SET
}
