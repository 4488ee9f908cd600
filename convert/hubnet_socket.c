/* What may wait in a connection's socket, received by the kernel and not yet by us.
 *
 * A stream that pauses fills its socket's buffer, and what lies there when the process is killed has
 * to come again. Linux lets that buffer grow to the third number of tcp_rmem: 6 MiB for long, 32 MiB
 * in newer kernels, more where an administrator says so. Where it is more than SOCKET the buffer is
 * fixed at that, if net.core.rmem_max allows one as large (4 MiB in those kernels, and the kernel
 * grants twice that). A smaller one would hold up a distant server; then the stream's window is what
 * becomes smaller. */
#include <stdio.h>
#include <sys/socket.h>

#include "convert/hubnet_inside.h"

enum {
    SOCKET = 8 << 20,
    SERVER = 4 << 20, /* on loopback: what was sent, and lies in the other end's socket */
    SLACK = 4 << 20,  /* curl's buffer, a response's head, a test hub's ideas of "sent" */
    LEAST = 16 << 20, /* a window that still moves */
};

/* The last of the numbers in a file of /proc/sys; 0 if there is none. */
static uint64_t last_number(const char *path)
{
    unsigned long long n = 0;
    FILE *in = fopen(path, "re");
    while (in != NULL && fscanf(in, "%llu", &n) == 1) {
    }
    if (in != NULL)
        fclose(in);
    return n;
}

void hubnet_measure_sockets(struct hubnet *net)
{
    const uint64_t grows = last_number("/proc/sys/net/ipv4/tcp_rmem");
    const uint64_t may_be = 2 * last_number("/proc/sys/net/core/rmem_max");
    net->fix_socket = grows > SOCKET && may_be >= SOCKET;
    net->socket_bytes = net->fix_socket || grows < SOCKET ? SOCKET : grows;
}

int hubnet_on_socket(void *ctx, curl_socket_t fd, curlsocktype purpose)
{
    const struct hubnet *net = ctx;
    const int half = SOCKET / 2; /* the kernel doubles it */
    (void)purpose;
    if (net->fix_socket)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &half, sizeof half);
    return CURL_SOCKOPT_OK;
}

uint64_t hubnet_window(const struct hubnet *net)
{
    const uint64_t outside = net->socket_bytes + SERVER + SLACK;
    return outside + LEAST < HUBNET_BLOCK ? HUBNET_BLOCK - outside : LEAST;
}
