#include "train/tfevents.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_MAX = 64 + TFEVENTS_SCALARS * (TFEVENTS_TAG + 24) };

uint32_t tfevents_crc32c(const void *data, size_t size)
{
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;
    for (; size > 0; size--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t size)
{
    const uint32_t crc = tfevents_crc32c(data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Bytes being put together. */
struct bytes {
    unsigned char data[RECORD_MAX];
    size_t n;
};

static void put_byte(struct bytes *b, unsigned x)
{
    assert(b->n < sizeof b->data);
    b->data[b->n++] = (unsigned char)x;
}

static void put_little(struct bytes *b, uint64_t x, int size)
{
    for (int i = 0; i < size; i++)
        put_byte(b, (unsigned)(x >> 8 * i & 255));
}

static void put_varint(struct bytes *b, uint64_t x)
{
    for (; x > 127; x >>= 7)
        put_byte(b, (unsigned)(x & 127) | 128);
    put_byte(b, (unsigned)x);
}

static void put_raw(struct bytes *b, const void *data, size_t size)
{
    assert(size <= sizeof b->data - b->n);
    memcpy(b->data + b->n, data, size);
    b->n += size;
}

/* A protobuf field's tag. */
enum wire { WIRE_VARINT = 0, WIRE_8 = 1, WIRE_BYTES = 2, WIRE_4 = 5 };

static void put_field(struct bytes *b, unsigned number, enum wire wire)
{
    put_varint(b, number << 3 | (unsigned)wire);
}

static void put_bytes_field(
    struct bytes *b, unsigned number, const void *data, size_t size)
{
    put_field(b, number, WIRE_BYTES);
    put_varint(b, size);
    put_raw(b, data, size);
}

static void begin_event(struct bytes *b, double wall_time, int64_t step)
{
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    b->n = 0;
    put_field(b, 1, WIRE_8);
    put_little(b, bits, 8);
    put_field(b, 2, WIRE_VARINT);
    put_varint(b, (uint64_t)step);
}

static int write_record(
    struct tfevents *t, const struct bytes *event, struct glm_error *err)
{
    struct bytes r = {.n = 0};
    put_little(&r, event->n, 8);
    put_little(&r, masked(r.data, 8), 4);
    put_raw(&r, event->data, event->n);
    put_little(&r, masked(event->data, event->n), 4);
    for (size_t done = 0; done < r.n;) {
        const ssize_t n = write(t->fd, r.data + done, r.n - done);
        if (n < 0 && errno != EINTR) {
            glm_fail_errno(err, "%s: write", t->path);
            (void)!ftruncate(t->fd, t->end);
            return err->code;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    t->end += (int64_t)r.n;
    return 0;
}

int tfevents_open(struct tfevents *t, const char *dir, double wall_time, bool restart,
    int64_t first_step, struct glm_error *err)
{
    static const char version[] = "brain.Event:2";
    char host[65] = "", path[4096];
    struct bytes b;
    *t = (struct tfevents){.fd = -1};
    gethostname(host, sizeof host - 1);
    const int n = snprintf(path, sizeof path, "%s/events.out.tfevents.%010.0f.%s.%ld",
        dir, wall_time, host[0] ? host : "host", (long)getpid());
    if (n < 0 || (size_t)n >= sizeof path)
        return glm_fail(err, GLM_EUSAGE, "%s: the name is too long", dir);
    if (!(t->path = strdup(path)))
        return glm_fail(err, GLM_ENOMEM, "%s: no memory", path);
    t->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (t->fd < 0) {
        glm_fail_errno(err, "%s: open", path);
        goto out;
    }
    t->end = lseek(t->fd, 0, SEEK_END);
    begin_event(&b, wall_time, 0);
    put_bytes_field(&b, 3, version, sizeof version - 1);
    if (write_record(t, &b, err) != 0 || !restart)
        goto out;
    static const unsigned char start[] = {
        1 << 3 | WIRE_VARINT, 1}; /* SessionLog.status = START */
    begin_event(&b, wall_time, first_step);
    put_bytes_field(&b, 7, start, sizeof start);
    write_record(t, &b, err);
out:
    if (err->code != GLM_OK) {
        struct glm_error ignored = {0};
        tfevents_close(t, &ignored);
    }
    return err->code;
}

int tfevents_close(struct tfevents *t, struct glm_error *err)
{
    if (t->path && t->fd >= 0 && close(t->fd) != 0)
        glm_fail_errno(err, "%s: close", t->path);
    free(t->path);
    *t = (struct tfevents){.fd = -1};
    return err->code;
}

int tfevents_scalars(struct tfevents *t, double wall_time, int64_t step,
    const struct tfevents_scalar *s, int n, struct glm_error *err)
{
    struct bytes event, summary = {.n = 0};
    assert(n <= TFEVENTS_SCALARS);
    for (int i = 0; i < n; i++) {
        struct bytes value = {.n = 0};
        uint32_t bits;
        assert(strlen(s[i].tag) <= TFEVENTS_TAG);
        memcpy(&bits, &s[i].value, sizeof bits);
        put_bytes_field(&value, 1, s[i].tag, strlen(s[i].tag));
        put_field(&value, 2, WIRE_4);
        put_little(&value, bits, 4);
        put_bytes_field(&summary, 1, value.data, value.n);
    }
    begin_event(&event, wall_time, step);
    put_bytes_field(&event, 5, summary.data, summary.n);
    return write_record(t, &event, err);
}
