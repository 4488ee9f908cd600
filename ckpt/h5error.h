/* The one door to libhdf5: its lock, its settings for this process, its errors as ours.
 *
 * libhdf5 is not thread safe in every build, and keeps one error stack per thread where it is. All
 * calls are therefore made between h5_lock and h5_unlock, which also silence the library's own
 * printing and forbid it to load plugins: a file must not choose code that runs here. The zstd
 * filter (32015) is ours, in process. */
#ifndef CKPT_H5ERROR_H
#define CKPT_H5ERROR_H

#include <hdf5.h>

#include "kernels/base/error.h"

enum { H5_FILTER_ZSTD = 32015 };

void h5_lock(void);
void h5_unlock(void);

/* Records "<sentence>: <innermost message of HDF5's error stack>" and clears that stack. A system
 * error inside gives GLM_EIO with its errno (GLM_ENOMEM for ENOMEM), anything else GLM_EIO. Call it
 * under the lock. */
int h5_fail(struct glm_error *err, const char *fmt, ...) GLM_PRINTF(2, 3);

/* Access list with v1.10 formats only (checksummed metadata), every allocation at the end of the
 * file (no block aggregation), and no file locks: those fail on many network file systems, and a
 * lease excludes writers here. Under the lock; H5Pclose it. */
hid_t h5_access_list(void);
/* Creation list: no times, so equal content gives equal bytes. */
hid_t h5_creation_list(hsize_t user_block);
/* Creates the groups on the way to `path` (all components but the last), times off. */
int h5_groups(hid_t file, const char *path, struct glm_error *err);

/* Each closes what is open and is harmless on a negative id. */
void h5_close_file(hid_t id);
void h5_close_dataset(hid_t id);
void h5_close_space(hid_t id);
void h5_close_type(hid_t id);
void h5_close_list(hid_t id);

#endif
