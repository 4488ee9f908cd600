/* The thread that moves bytes.
 *
 *     waiting  transfers whose time has not come: new ones, and those that failed and try again
 *     active   one curl handle each; may be paused because who asked has no room, or by the limit
 *              of the rate
 *
 * curl never follows a redirect here: each hop is a request of its own, so each hop's host decides
 * anew whether the token goes along. A failure costs one of `retries` attempts; HUBNET_PROGRESS
 * bytes of progress give them back. Between attempts the wait doubles, with jitter, unless the
 * server says how long. */
#include "convert/hubnet_inside.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_MS = 100, WAIT_MAX_S = 3600 };
#define SECOND UINT64_C(1000000000)

uint64_t hubnet_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* ---- the rate --------------------------------------------------------------------------------- */

/* Whether bytes may be taken now; refills the bucket, which holds a tenth of a second. */
bool hubnet_rate_allows(struct hubnet *net)
{
    const double rate = (double)net->o.limit_rate;
    const uint64_t now = hubnet_now();
    if (net->o.limit_rate == 0)
        return true;
    net->tokens += rate * (double)(now - net->tokens_ns) / 1e9;
    net->tokens_ns = now;
    if (net->tokens > rate / 10)
        net->tokens = rate / 10;
    return net->tokens > 0;
}

/* ---- one hop ---------------------------------------------------------------------------------- */

static void end_hop(struct transfer *t)
{
    if (t->easy != NULL) {
        curl_multi_remove_handle(t->net->multi, t->easy);
        curl_easy_cleanup(t->easy);
    }
    if (t->headers != NULL) {
        for (struct curl_slist *s = t->headers; s != NULL; s = s->next)
            explicit_bzero(s->data, strlen(s->data));
        curl_slist_free_all(t->headers);
    }
    t->easy = NULL;
    t->headers = NULL;
}

static void finish(struct transfer *t)
{
    end_hop(t);
    if (t->get.head != NULL)
        *t->get.head = t->head;
    t->get.done(t->get.ctx, &t->cause);
    free(t->url);
    free(t);
}

static void begin_hop(struct transfer *t)
{
    hubhead_begin(&t->head);
    t->judged = t->paused = false;
    t->taken = 0;
    t->verdict = VERDICT_FAIL;
    t->curl_error[0] = '\0';
    t->heard_ns = hubnet_now();
    glm_error_clear(&t->cause);
    t->easy = curl_easy_init();
    if (t->easy == NULL || !hubnet_set_up(t)
        || curl_multi_add_handle(t->net->multi, t->easy) != CURLM_OK) {
        glm_fail(&t->cause, GLM_ENOMEM, "%s: no memory for a request", t->get.what);
        finish(t);
        return;
    }
    t->next = t->net->active;
    t->net->active = t;
}

/* From the start of the chain: the endpoint, or the link that it gave before. */
static bool begin_chain(struct transfer *t)
{
    const char *link = t->get.link != NULL ? *t->get.link : NULL;
    free(t->url);
    t->url = strdup(link != NULL ? link : t->get.url);
    t->at_link = link != NULL;
    t->hops = 0;
    return t->url != NULL;
}

static void drop_link(struct transfer *t)
{
    if (t->get.link != NULL) {
        free(*t->get.link);
        *t->get.link = NULL;
    }
}

/* ---- failures --------------------------------------------------------------------------------- */

/* xorshift: two processes that failed together should not come back together. */
static double jitter(struct hubnet *net)
{
    net->random ^= net->random << 13;
    net->random ^= net->random >> 7;
    net->random ^= net->random << 17;
    return 0.5 + (double)(net->random >> 11) / 9007199254740992.0;
}

static void wait_in_line(struct transfer *t, uint64_t due_ns)
{
    t->due_ns = due_ns;
    t->next = t->net->waiting;
    t->net->waiting = t;
}

/* t->cause says what happened. t is in no list. */
static void try_again(struct transfer *t)
{
    struct hubnet *net = t->net;
    char note[1400];

    if (t->at - t->mark >= HUBNET_PROGRESS)
        t->attempts = 0;
    t->mark = t->at;
    if (t->attempts >= net->o.retries) {
        char text[sizeof t->cause.text];
        snprintf(text, sizeof text, "%s", t->cause.text);
        const enum glm_code code = t->cause.code;
        glm_error_clear(&t->cause);
        glm_fail(&t->cause, code,
            "%.900s; given up after %d attempt%s. What is done is kept, the same command "
            "goes on",
            text, t->attempts + 1, t->attempts == 0 ? "" : "s");
        finish(t);
        return;
    }
    const double asked = hubnet_asked_wait(t);
    double wait = ldexp(0.5, t->attempts < 6 ? t->attempts : 6) * jitter(net);
    if (asked >= 0 && asked + jitter(net) > wait)
        wait = asked + jitter(net) - 0.5;
    if (wait > WAIT_MAX_S)
        wait = WAIT_MAX_S;
    t->attempts++;
    snprintf(note, sizeof note, "%.1000s; tries again in %.1f s (%d of %d)",
        t->cause.text, wait, t->attempts, net->o.retries);
    glm_events_note(net->o.events, note);
    end_hop(t);
    drop_link(t);
    if (!begin_chain(t)) {
        glm_fail(&t->cause, GLM_ENOMEM, "%s: no memory", t->get.what);
        finish(t);
        return;
    }
    wait_in_line(t, hubnet_now() + (uint64_t)(wait * 1e9));
}

static void unlist(struct transfer **list, struct transfer *t)
{
    while (*list != t)
        list = &(*list)->next;
    *list = t->next;
}

/* What curl says about a transfer that had no answer, or not all of it. */
static bool curl_failed(struct transfer *t, CURLcode rc)
{
    char what[400];
    if (t->cause.code != GLM_OK)
        return t->verdict == VERDICT_AGAIN;
    snprintf(what, sizeof what, "%s",
        t->curl_error[0] != '\0' ? t->curl_error : curl_easy_strerror(rc));
    hubnet_scrub(t->net, what);
    const enum glm_code code = rc == CURLE_OUT_OF_MEMORY ? GLM_ENOMEM : GLM_EIO;
    if (t->judged && t->verdict == VERDICT_BODY)
        glm_fail(
            &t->cause, code, "%s: cut at byte %" PRIu64 ": %s", t->get.what, t->at, what);
    else if (t->at > 0)
        glm_fail(&t->cause, code,
            "%s: no answer to the request for byte %" PRIu64 " on: %s", t->get.what,
            t->at, what);
    else
        glm_fail(&t->cause, code, "%s: no answer: %s", t->get.what, what);
    switch (rc) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_URL_MALFORMAT:
        return false;
    default:
        return true;
    }
}

/* A body that came to its end before all that was asked for: a server may give less at a time. */
static void go_on(struct transfer *t, uint64_t before)
{
    if (t->at == before) {
        glm_fail(&t->cause, GLM_EIO,
            "%s: the body ends at byte %" PRIu64 " and brings nothing new", t->get.what,
            t->at);
        try_again(t);
        return;
    }
    end_hop(t);
    if (begin_chain(t)) {
        wait_in_line(t, 0);
        return;
    }
    glm_fail(&t->cause, GLM_ENOMEM, "%s: no memory", t->get.what);
    finish(t);
}

static void next_hop(struct transfer *t)
{
    end_hop(t);
    if (t->at_link && t->get.link != NULL) {
        drop_link(t);
        *t->get.link = strdup(t->url);
    }
    wait_in_line(t, 0);
}

/* curl is done with this hop. t is in no list. */
static void hop_ended(struct transfer *t, CURLcode rc)
{
    const struct hubhead *h = &t->head;
    if (h->status != 0 || h->trouble != NULL)
        hubnet_judge(t);
    const bool all = t->verdict == VERDICT_BODY && t->judged
        && (t->at == t->get.to || (rc == CURLE_OK && t->get.to == UINT64_MAX));
    if (all) {
        finish(t);
    } else if (t->judged && t->verdict == VERDICT_HOP) {
        next_hop(t);
    } else if (t->judged && t->verdict == VERDICT_AGAIN) {
        try_again(t);
    } else if (t->judged && t->verdict == VERDICT_BODY && rc == CURLE_OK) {
        /* With a length known it is curl that notices a cut; without one nobody else does. */
        if (h->status == 206 && h->has_range && t->at == h->last + 1)
            go_on(t, h->first);
        else {
            glm_fail(&t->cause, GLM_EIO,
                "%s: the body ends at byte %" PRIu64 " before its end", t->get.what,
                t->at);
            try_again(t);
        }
    } else if (curl_failed(t, rc)) {
        try_again(t);
    } else {
        finish(t);
    }
}

/* ---- the loop --------------------------------------------------------------------------------- */

static void take_incoming(struct hubnet *net)
{
    pthread_mutex_lock(&net->lock);
    struct transfer *t = net->incoming;
    net->incoming = NULL;
    pthread_mutex_unlock(&net->lock);
    while (t != NULL) {
        struct transfer *next = t->next;
        wait_in_line(t, 0);
        t = next;
    }
}

static void start_due(struct hubnet *net)
{
    const uint64_t now = hubnet_now();
    struct transfer *list = net->waiting;
    net->waiting = NULL;
    while (list != NULL) {
        struct transfer *t = list;
        list = t->next;
        if (t->due_ns <= now)
            begin_hop(t);
        else
            wait_in_line(t, t->due_ns);
    }
}

static void unpause(struct hubnet *net)
{
    const bool woken = atomic_exchange(&net->woken, false);
    if (!woken && net->o.limit_rate == 0)
        return;
    for (struct transfer *t = net->active, *next; t != NULL; t = next) {
        next = t->next;
        if (!t->paused || !hubnet_rate_allows(net)
            || (t->get.ready != NULL && !t->get.ready(t->get.ctx)))
            continue;
        t->paused = false;
        t->heard_ns = hubnet_now();
        const CURLcode rc = curl_easy_pause(t->easy, CURLPAUSE_CONT);
        if (rc == CURLE_OK)
            continue;
        /* What had waited was refused, or was enough; curl goes on as if nothing had happened. */
        unlist(&net->active, t);
        hop_ended(t, rc);
    }
}

static void read_ends(struct hubnet *net)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(net->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE)
            continue;
        struct transfer *t = NULL;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        unlist(&net->active, t);
        hop_ended(t, m->data.result);
    }
}

static void give_up_stalled(struct hubnet *net)
{
    const uint64_t now = hubnet_now(), limit = (uint64_t)net->o.stall_s * SECOND;
    for (struct transfer *t = net->active, *next; t != NULL; t = next) {
        next = t->next;
        if (t->paused || now - t->heard_ns < limit)
            continue;
        unlist(&net->active, t);
        glm_error_clear(&t->cause);
        if (t->enough) { /* of an answer that is longer than what was asked for */
            finish(t);
            continue;
        }
        glm_fail(&t->cause, GLM_EIO, "%s: nothing came for %d s at byte %" PRIu64,
            t->get.what, net->o.stall_s, t->at);
        try_again(t);
    }
}

static void fail_all(struct hubnet *net, int signal)
{
    for (int i = 0; i < 2; i++) {
        struct transfer **list = i == 0 ? &net->active : &net->waiting;
        while (*list != NULL) {
            struct transfer *t = *list;
            *list = t->next;
            glm_error_clear(&t->cause);
            glm_fail(&t->cause, GLM_ESTOPPED,
                "stopped by signal %d; what is done is kept, the same command goes on",
                signal);
            t->cause.sys_errno = signal;
            finish(t);
        }
    }
}

static int poll_ms(const struct hubnet *net)
{
    const uint64_t now = hubnet_now();
    uint64_t ms = net->o.limit_rate != 0 ? 20 : POLL_MS;
    for (const struct transfer *t = net->waiting; t != NULL; t = t->next) {
        const uint64_t left = t->due_ns > now ? (t->due_ns - now) / 1000000 + 1 : 0;
        ms = left < ms ? left : ms;
    }
    return (int)ms;
}

static void *move(void *arg)
{
    struct hubnet *net = arg;
    for (;;) {
        int running;
        take_incoming(net);
        const int signal = glm_events_stop(net->o.events);
        if (signal != 0 || atomic_load(&net->stopped))
            fail_all(net, signal);
        pthread_mutex_lock(&net->lock);
        const bool closing = net->closing && net->incoming == NULL;
        pthread_mutex_unlock(&net->lock);
        if (closing)
            return NULL;
        start_due(net);
        unpause(net);
        curl_multi_perform(net->multi, &running);
        read_ends(net);
        give_up_stalled(net);
        curl_multi_poll(net->multi, NULL, 0, poll_ms(net), NULL);
    }
}

/* ---- the door --------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode ready_curl;

static void init_curl(void)
{
    ready_curl = curl_global_init(CURL_GLOBAL_DEFAULT);
}

int hubnet_open(
    struct hubnet **out, const struct hubnet_options *o, struct glm_error *err)
{
    struct hubnet *net = calloc(1, sizeof *net);

    *out = NULL;
    if (net == NULL)
        return glm_fail(err, GLM_ENOMEM, "no memory for the connection to a hub");
    net->o = *o;
    hubnet_measure_sockets(net);
    net->tokens_ns = hubnet_now();
    net->random = net->tokens_ns | 1;
    pthread_mutex_init(&net->lock, NULL);
    pthread_once(&once, init_curl);
    net->multi = ready_curl == CURLE_OK ? curl_multi_init() : NULL;
    if (net->multi == NULL)
        glm_fail(err, GLM_EIO, "libcurl could not be started");
    else if (pthread_create(&net->thread, NULL, move, net) != 0)
        glm_fail(err, GLM_ENOMEM, "no thread for the connection to a hub");
    else
        net->running = true;
    if (err->code != GLM_OK) {
        hubnet_close(net);
        return (int)err->code;
    }
    *out = net;
    return GLM_OK;
}

void hubnet_stop(struct hubnet *net)
{
    atomic_store(&net->stopped, true);
    curl_multi_wakeup(net->multi);
}

void hubnet_close(struct hubnet *net)
{
    if (net == NULL)
        return;
    if (net->running) {
        pthread_mutex_lock(&net->lock);
        net->closing = true;
        pthread_mutex_unlock(&net->lock);
        hubnet_stop(net);
        pthread_join(net->thread, NULL);
    }
    if (net->multi != NULL)
        curl_multi_cleanup(net->multi);
    pthread_mutex_destroy(&net->lock);
    free(net);
}

void hubnet_wake(struct hubnet *net)
{
    atomic_store(&net->woken, true);
    curl_multi_wakeup(net->multi);
}

void hubnet_start(struct hubnet *net, const struct hubnet_get *get)
{
    struct transfer *t = calloc(1, sizeof *t);
    if (t == NULL || (t->net = net, t->get = *get, !begin_chain(t))) {
        struct glm_error err = {0};
        glm_fail(&err, GLM_ENOMEM, "%s: no memory for a request", get->what);
        free(t);
        get->done(get->ctx, &err);
        return;
    }
    t->at = t->mark = get->from;
    pthread_mutex_lock(&net->lock);
    t->next = net->incoming;
    net->incoming = t;
    pthread_mutex_unlock(&net->lock);
    curl_multi_wakeup(net->multi);
}
