/* Downloads through libcurl's multi interface: one thread that moves bytes, any number of transfers.
 *
 * A transfer is one range of one resource. Redirects, dropped connections, stalls, waits that the
 * server asks for and links that expire are met here; whoever asked sees each byte once, in order,
 * or one sentence why not. */
#ifndef CONVERT_HUBNET_H
#define CONVERT_HUBNET_H

#include "convert/hubenv.h"
#include "convert/hubhead.h"
#include "kernels/base/events.h"

struct hubnet;

struct hubnet_options {
    const struct hubenv *env; /* borrowed */
    uint64_t limit_rate;      /* bytes per second, all transfers together; 0: none */
    int stall_s;              /* without a byte for so long a connection is given up */
    int retries;              /* failures in a row that are tried again */
    const struct glm_events *events;
};

int hubnet_open(
    struct hubnet **out, const struct hubnet_options *o, struct glm_error *err);
/* Every transfer that is not done fails with GLM_ESTOPPED, now and later. */
void hubnet_stop(struct hubnet *net);
void hubnet_close(struct hubnet *net);

/* What a killed process may have to fetch again, for each connection. */
#define HUBNET_BLOCK (UINT64_C(64) << 20)
/* How much of it a connection may have delivered without its being durable; the rest is for what
 * waits in sockets (hubnet_socket.c). At least 16 MiB. */
uint64_t hubnet_window(const struct hubnet *net);

#define HUBNET_ABORT SIZE_MAX

struct hubnet_get {
    const char *what;        /* for sentences; must live as long as the transfer */
    const char *url;         /* at the endpoint; the same */
    uint64_t from, to, size; /* UINT64_MAX: to the end; the size is not known */
    const char *digest;      /* that the list of files gives; "" or NULL: none */
    char *
        *link; /* NULL, or where the address behind redirects is kept between transfers */
    struct hubhead *head; /* NULL, or filled with the last answer's headers */
    void *ctx;
    /* On the moving thread. Takes bytes of [offset, offset+n) and returns how many; fewer pauses
     * the transfer until hubnet_wake and ready; HUBNET_ABORT ends it, with the error left in *err. */
    size_t (*data)(
        void *ctx, uint64_t offset, const void *bytes, size_t n, struct glm_error *err);
    bool (*ready)(void *ctx); /* NULL: asked by trying */
    /* On the moving thread, last: err->code is GLM_OK if all was delivered. */
    void (*done)(void *ctx, const struct glm_error *err);
};

/* Starts; done will be called, also after a failure here or a stop. */
void hubnet_start(struct hubnet *net, const struct hubnet_get *get);
/* Starts and waits for the end; get->done is not used. */
int hubnet_fetch(struct hubnet *net, const struct hubnet_get *get, struct glm_error *err);
/* Paused transfers may have room again. Any thread. */
void hubnet_wake(struct hubnet *net);

#endif
