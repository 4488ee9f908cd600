/* TensorBoard event files: scalars over steps.
 *
 * A file is a run of TFRecords
 *
 *     u64 length | u32 masked CRC of the length | data | u32 masked CRC of the data
 *
 * little-endian, CRC-32C, masked ((crc >> 15 | crc << 17) + 0xa282ead8). Data is a protobuf Event:
 * wall_time (1, double), step (2, varint), and one of file_version (3), summary (5), session_log (7).
 * The first names the version "brain.Event:2". A session log with status START makes TensorBoard
 * forget what older files of the folder hold from its step on: so a resumed run has one curve.
 * Each call is one write(2); a killed run leaves at most one cut record, which readers skip. */
#ifndef TRAIN_TFEVENTS_H
#define TRAIN_TFEVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/error.h"

struct tfevents {
    int fd; /* -1: closed */
    /* bytes of whole records: one that does not fit the disk is taken back */
    int64_t end;
    char *path;
};

/* Makes DIR/events.out.tfevents.<seconds>.<host>.<pid>; the folder must be there. restart: steps from
 * first_step on are written anew. On failure *t is closed. */
int tfevents_open(struct tfevents *t, const char *dir, double wall_time, bool restart,
    int64_t first_step, struct glm_error *err);
int tfevents_close(
    struct tfevents *t, struct glm_error *err); /* harmless on a closed one */

struct tfevents_scalar {
    const char *tag;
    float value;
};
enum { TFEVENTS_SCALARS = 32, TFEVENTS_TAG = 64 };

/* One event with n <= TFEVENTS_SCALARS values. */
int tfevents_scalars(struct tfevents *t, double wall_time, int64_t step,
    const struct tfevents_scalar *s, int n, struct glm_error *err);

/* CRC-32C (Castagnoli). */
uint32_t tfevents_crc32c(const void *data, size_t size);

#endif
