/* What a check found wrong: collected from many threads, sorted by place, counted.
 *
 * The list is bounded: when it is full the findings that lie furthest back in the checkpoint are
 * dropped and only counted, so what is kept does not depend on the order of arrival. */
#ifndef VERIFY_FINDINGS_H
#define VERIFY_FINDINGS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"

enum finding_kind {
    FINDING_INDEX,   /* index.h5: text names the part */
    FINDING_MISSING, /* a file is not there */
    FINDING_LENGTH,  /* a file is too short or too long, and what that cut off */
    FINDING_TILE,    /* elements of a tensor are not those that were written */
    FINDING_CHUNK, /* a compressed chunk's stored bytes are not those that were written */
    FINDING_STRUCTURE, /* bytes of a shard outside its data: HDF5 headers, chunk indexes, padding */
    FINDING_EXTRA,      /* a file that does not belong to the checkpoint */
    FINDING_UNREADABLE, /* the system could not read it */
    FINDING_KINDS
};
const char *finding_kind_name(enum finding_kind kind);

struct finding {
    enum finding_kind kind;
    int64_t shard;          /* -1: index.h5 or the folder */
    uint64_t offset, bytes; /* where in the file; bytes 0: not applicable */
    char file[256];
    const char *section; /* static; NULL outside data */
    char tensor[192];    /* logical name; "" outside data */
    char member[192];    /* Hugging Face name where it differs (expert stacks), else "" */
    int64_t tile;        /* canonical tile number inside the tensor; -1 outside data */
    int rank;            /* of lo, hi: the tensor's own axes, half open */
    int64_t lo[4], hi[4];
    char text[512]; /* the whole sentence */
};

struct findings {
    pthread_mutex_t lock;
    struct finding **items;
    int64_t count, capacity;
    int64_t dropped;                /* beyond the bound: counted here, not kept */
    int64_t by_kind[FINDING_KINDS]; /* all, dropped ones included */
};

enum { FINDINGS_KEPT = 20000 };

void findings_init(struct findings *f);
void findings_clear(struct findings *f);
/* Copies *item. Thread safe. */
int findings_add(struct findings *f, const struct finding *item, struct glm_error *err);
void findings_sort(struct findings *f);
int64_t findings_total(const struct findings *f);

/* Fills tensor, member, section, tile, rank, lo, hi from a rectangle of a tensor; tile may be -1. */
void finding_place(
    struct finding *f, const struct ckpt_tensor *t, int64_t tile, const struct rect *at);
/* "[128:256, 0:2048]" of a rectangle in the tensor's own axes. Returns the length, as snprintf. */
int finding_range(int rank, const int64_t *lo, const int64_t *hi, char *buf, size_t size);
/* The tensor's own axes of a rectangle in matrix form; ranks above 3 keep the matrix form. */
void finding_axes(int rank, bool stack, const struct rect *at, int *out_rank,
    int64_t lo[4], int64_t hi[4]);

#endif
