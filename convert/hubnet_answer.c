/* What an answer means: the bytes, another address, a failure that passes or one that stays.
 *
 * Two rules protect the token: it goes only to the scheme, host and port of the endpoint
 * (hubnet.c), and addresses are only followed to https, or to http on this machine while the
 * endpoint itself is. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "convert/hubnet_inside.h"

static void settle(struct transfer *t, enum verdict v)
{
    t->verdict = v;
    t->judged = true;
}

static void GLM_PRINTF(4, 5)
    judged(struct transfer *t, enum verdict v, enum glm_code code, const char *fmt, ...)
{
    char what[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    hubnet_scrub(t->net, what);
    glm_error_clear(&t->cause);
    glm_fail(&t->cause, code, "%s: %s", t->get.what, what);
    settle(t, v);
}

void hubnet_scrub(const struct hubnet *net, char *text)
{
    for (char *p = text; *p != '\0'; p++) /* addresses may hold any byte */
        *p = *p >= 0x20 && *p < 0x7f ? *p : '?';
    const char *token = net->o.env->token;
    const size_t n = token != NULL ? strlen(token) : 0;
    for (char *p = text; n > 0 && (p = strstr(p, token)) != NULL; p += n)
        memset(p, '*', n);
}

double hubnet_asked_wait(const struct transfer *t)
{
    if (t->head.wait_s >= 0)
        return (double)t->head.wait_s;
    if (t->head.wait_date >= 0) { /* by the server's clock, where it tells it */
        const int64_t now = t->head.date >= 0 ? t->head.date : (int64_t)time(NULL);
        return t->head.wait_date > now ? (double)(t->head.wait_date - now) : 0;
    }
    return -1;
}

/* ---- redirects -------------------------------------------------------------------------------- */

/* Mirrors pass on links to the hub that they mirror; those, and no others, are led back. */
static char *led_back(const struct hubenv *env, const char *url)
{
    char origin[HUBENV_ORIGIN], *out = NULL;
    static const char home[] = "https://huggingface.co:443";
    if (!hubenv_origin(url, false, origin) || strcmp(origin, home) != 0
        || strcmp(env->origin, home) == 0)
        return strdup(url);
    const char *path = strchr(url + strlen("https://"), '/');
    return asprintf(&out, "%s%s", env->endpoint, path != NULL ? path : "/") < 0 ? NULL
                                                                                : out;
}

/* The absolute address of a Location, which may be relative to where we are. */
static char *absolute(const char *base, const char *location)
{
    char *text = NULL, *out = NULL;
    CURLU *u = curl_url();
    if (u != NULL && curl_url_set(u, CURLUPART_URL, base, 0) == CURLUE_OK
        && curl_url_set(u, CURLUPART_URL, location, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK
        && curl_url_get(u, CURLUPART_URL, &text, 0) == CURLUE_OK)
        out = strdup(text);
    curl_free(text);
    curl_url_cleanup(u);
    return out;
}

static void judge_redirect(struct transfer *t)
{
    const struct hubenv *env = t->net->o.env;
    char origin[HUBENV_ORIGIN], *to = NULL, *url = NULL;

    if (t->head.location[0] == '\0') {
        judged(t, VERDICT_FAIL, GLM_EIO, "status %d without a Location to go on to",
            t->head.status);
        return;
    }
    if (++t->hops > HUBNET_HOPS) {
        judged(t, VERDICT_FAIL, GLM_EIO, "more than %d redirects", HUBNET_HOPS);
        return;
    }
    to = absolute(t->url, t->head.location);
    url = to != NULL ? led_back(env, to) : NULL;
    if (url == NULL) {
        judged(t, VERDICT_FAIL, GLM_EIO, "a redirect to what is no address");
    } else if (!hubenv_origin(url, env->loopback, origin)) {
        const int shown = (int)strcspn(url, "?");
        judged(t, VERDICT_FAIL, GLM_EIO,
            "a redirect to %.*s, which is not followed: only https is",
            shown > 200 ? 200 : shown, url);
    } else {
        free(t->url);
        t->url = url;
        url = NULL;
        t->at_link = strcmp(origin, env->origin) != 0;
        settle(t, VERDICT_HOP);
    }
    free(to);
    free(url);
}

/* ---- bodies ----------------------------------------------------------------------------------- */

/* A digest or size that the hub gives on the way, against what its list of files says. */
static bool contradicts(struct transfer *t)
{
    const struct hubhead *h = &t->head;
    const char *tag = h->linked_etag[0] != '\0' ? h->linked_etag
        : !t->at_link && t->head.status < 300   ? h->etag
                                                : "";
    const char *digest = t->get.digest;
    if (digest != NULL && digest[0] != '\0' && strlen(tag) == strlen(digest)
        && strcmp(tag, digest) != 0) {
        judged(t, VERDICT_FAIL, GLM_EIO,
            "the hub contradicts itself: the ETag is %s, its list of files says %s", tag,
            digest);
        return true;
    }
    if (h->has_linked_size && t->get.size != UINT64_MAX
        && h->linked_size != t->get.size) {
        judged(t, VERDICT_FAIL, GLM_EIO,
            "the hub contradicts itself: X-Linked-Size is %" PRIu64
            " bytes, its list of files says %" PRIu64,
            h->linked_size, t->get.size);
        return true;
    }
    return false;
}

static void judge_length(struct transfer *t, uint64_t length, uint64_t expected)
{
    judged(t, VERDICT_AGAIN, GLM_EIO,
        t->head.html ? "a page of HTML of %" PRIu64 " bytes came in its place, %" PRIu64
                       " bytes were expected"
                     : "the server announces %" PRIu64 " bytes, %" PRIu64
                       " were expected",
        length, expected);
}

static void judge_whole(struct transfer *t)
{
    const struct hubhead *h = &t->head;
    if (h->has_length && !h->encoded && t->get.size != UINT64_MAX
        && h->length != t->get.size) {
        judge_length(t, h->length, t->get.size);
        return;
    }
    t->body_at = 0;
    settle(t, VERDICT_BODY);
}

static void judge_part(struct transfer *t)
{
    const struct hubhead *h = &t->head;
    if (h->encoded)
        judged(t, VERDICT_AGAIN, GLM_EIO,
            "a part of a compressed form came, which nobody can use");
    else if (!h->has_range)
        judged(t, VERDICT_AGAIN, GLM_EIO, "status 206 without a Content-Range");
    else if (h->first != t->at)
        judged(t, VERDICT_AGAIN, GLM_EIO,
            "bytes from %" PRIu64 " came, from %" PRIu64 " were asked for", h->first,
            t->at);
    else if (h->total != UINT64_MAX && t->get.size != UINT64_MAX
        && h->total != t->get.size)
        judge_length(t, h->total, t->get.size);
    else if (h->has_length && h->length != h->last - h->first + 1)
        judge_length(t, h->length, h->last - h->first + 1);
    else {
        t->body_at = h->first;
        settle(t, VERDICT_BODY);
    }
}

/* ---- failures --------------------------------------------------------------------------------- */

static void judge_refusal(struct transfer *t)
{
    const struct hubhead *h = &t->head;
    const bool token = t->net->o.env->token != NULL;
    const char *said = h->error_message[0] != '\0' ? h->error_message : h->error_code;
    const char *colon = said[0] != '\0' ? ": " : "";

    if (h->status == 404 || h->status == 410)
        judged(t, VERDICT_FAIL, GLM_EFORMAT,
            "the hub does not have it (status %d%s%s); is the name right, and the "
            "revision?",
            h->status, colon, said);
    else if (strcmp(h->error_code, "RepoNotFound") == 0)
        judged(t, VERDICT_FAIL, GLM_EFORMAT,
            "the hub shows no such repository (status %d%s%s); is the name right%s",
            h->status, colon, said,
            token ? ", and may the token's owner see it?"
                  : "? A private one needs HF_TOKEN");
    else
        judged(t, VERDICT_FAIL, GLM_EFORMAT, "the hub refuses it (status %d%s%s)%s",
            h->status, colon, said,
            token ? "; has the token's owner been given access?"
                  : "; a private or gated repository needs HF_TOKEN");
}

static void judge_failure(struct transfer *t)
{
    const int s = t->head.status;
    if (s == 429)
        judged(t, VERDICT_AGAIN, GLM_EIO,
            "the server limits how often it may be asked (status 429)%s",
            t->net->o.env->token == NULL ? "; with HF_TOKEN the limit is higher" : "");
    else if (s == 408 || s >= 500)
        judged(t, VERDICT_AGAIN, GLM_EIO, "the server has trouble of its own (status %d)",
            s);
    else if (t->at_link)
        judged(t, VERDICT_AGAIN, GLM_EIO,
            "the link that the hub gave was refused (status %d)", s);
    else if (s == 401 || s == 403 || s == 404 || s == 410 || s == 451)
        judge_refusal(t);
    else
        judged(t, VERDICT_FAIL, GLM_EIO, "an answer of status %d", s);
}

void hubnet_judge(struct transfer *t)
{
    const struct hubhead *h = &t->head;
    if (t->judged)
        return;
    if (h->trouble != NULL)
        judged(t, VERDICT_AGAIN, GLM_EIO, "the server sends %s", h->trouble);
    else if (h->status < 400 && contradicts(t))
        return;
    else if (h->status == 200)
        judge_whole(t);
    else if (h->status == 206)
        judge_part(t);
    else if (h->status == 301 || h->status == 302 || h->status == 303 || h->status == 307
        || h->status == 308)
        judge_redirect(t);
    else
        judge_failure(t);
}
