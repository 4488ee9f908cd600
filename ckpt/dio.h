/* Big reads and writes past the page cache, small ones through it.
 *
 * A file is opened twice, with and without O_DIRECT; on file systems without O_DIRECT (tmpfs) only
 * the plain descriptor is used. Callers need not care about alignment. */
#ifndef CKPT_DIO_H
#define CKPT_DIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/error.h"

enum { DIO_ALIGN = 4096 };

struct dio {
    int fd, direct; /* direct: -1 when not available */
    char *path;     /* for sentences; owned */
    uint64_t size;  /* at open, for readers */
};

/* Raises the soft limit of open files to the hard one: a checkpoint may have a file per cell,
 * hundreds of them, two descriptors each. */
void dio_raise_limit(void);
/* The same before work that may keep so many descriptors open; GLM_EIO if the hard limit does not
 * allow them and the few that everything else needs. Said hours later it would be too late. */
int dio_need_descriptors(int64_t count, struct glm_error *err);

int dio_open_read(struct dio *f, const char *path, struct glm_error *err);
int dio_open_write(struct dio *f, const char *path, bool create, struct glm_error *err);
void dio_close(struct dio *f); /* harmless on a zeroed or failed one (fd -1) */

/* Memory for dio buffers: page aligned, from mmap, counted. NULL: no memory. */
void *dio_alloc(size_t size);
void dio_free(void *p, size_t size);

/* A dio_alloc'd buffer that grows; zero it first, free with dio_free(data, size). */
struct dio_buffer {
    unsigned char *data;
    size_t size;
};
/* Makes it at least `need` bytes; its content is lost. */
int dio_reserve(struct dio_buffer *b, size_t need, struct glm_error *err);

/* Reads [offset, offset+size) somewhere into buf, whose capacity must be >= size + 2*DIO_ALIGN and
 * whose address is DIO_ALIGN-aligned; *at is where the first byte landed (inside buf). A short file
 * is GLM_EFORMAT with expected and found length. */
int dio_read(const struct dio *f, uint64_t offset, size_t size, void *buf,
    unsigned char **at, struct glm_error *err);
/* Plain pread of exactly size bytes into any memory. */
int dio_pread(
    const struct dio *f, uint64_t offset, size_t size, void *out, struct glm_error *err);

/* Writes [offset, offset+size) from any memory. bounce: a DIO_ALIGN-aligned buffer of
 * bounce_size >= 1 MiB used when data's alignment does not fit; NULL: unaligned data goes through
 * the page cache. */
int dio_write(const struct dio *f, uint64_t offset, const void *data, size_t size,
    void *bounce, size_t bounce_size, struct glm_error *err);
int dio_sync(const struct dio *f, struct glm_error *err);     /* fdatasync */
int dio_sync_folder(const char *path, struct glm_error *err); /* fsync of a directory */
int dio_slurp(
    const char *path, size_t limit, void **data, size_t *size, struct glm_error *err);

#endif
