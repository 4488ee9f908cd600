/* What hubnet.c (the thread that moves bytes), hubnet_hop.c (a request), hubnet_answer.c (what an answer
 * means) and hubnet_socket.c (buffers of the kernel) share. */
#ifndef CONVERT_HUBNET_INSIDE_H
#define CONVERT_HUBNET_INSIDE_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "convert/hubnet.h"

enum { HUBNET_HOPS = 10 };
#define HUBNET_PROGRESS (1u << 20) /* bytes that make earlier failures count no more */

enum verdict {
    VERDICT_BODY,  /* the bytes that were asked for */
    VERDICT_HOP,   /* another address, now in t->url */
    VERDICT_AGAIN, /* t->cause: may be better next time */
    VERDICT_FAIL   /* t->cause: will not be */
};

struct transfer {
    struct hubnet *net;
    struct hubnet_get get;
    struct hubhead head;
    CURL *easy;
    struct curl_slist *headers;
    char *url;    /* of this hop */
    bool at_link; /* the hop is another host than the endpoint */
    int hops, attempts;
    uint64_t at;   /* next byte to deliver */
    uint64_t mark; /* where it was at the last failure */
    uint64_t body_at;
    bool judged, paused, enough;
    enum verdict verdict;
    size_t taken; /* of the buffer that curl will hand over again */
    uint64_t heard_ns, due_ns;
    struct glm_error cause;
    char curl_error[CURL_ERROR_SIZE];
    struct transfer *next;
};

struct hubnet {
    struct hubnet_options o;
    CURLM *multi;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    struct transfer *incoming; /* under lock */
    bool closing;              /* under lock */
    atomic_bool woken, stopped;
    bool fix_socket;       /* the kernel would let a socket's buffer grow too large */
    uint64_t socket_bytes; /* that may wait in one */
    struct transfer *waiting, *active; /* the moving thread's own */
    double tokens;                     /* of limit_rate */
    uint64_t tokens_ns;
    uint64_t random;
};

uint64_t hubnet_now(void);
/* Whether bytes may be taken now, by the limit of the rate. */
bool hubnet_rate_allows(struct hubnet *net);
/* Makes t->easy ready for t->url. */
bool hubnet_set_up(struct transfer *t);
/* Reads t->head for this hop: sets t->verdict, and t->body_at, t->url or t->cause. */
void hubnet_judge(struct transfer *t);
/* Seconds that a failed answer asks to wait, -1 if it says nothing. */
double hubnet_asked_wait(const struct transfer *t);
/* Makes what a server sent fit for a sentence: printable, and without the token. */
void hubnet_scrub(const struct hubnet *net, char *text);

/* hubnet_socket.c */
void hubnet_measure_sockets(struct hubnet *net);
int hubnet_on_socket(void *net, curl_socket_t fd, curlsocktype purpose);

#endif
