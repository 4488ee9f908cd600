/* The files a checkpoint was imported from, as their stored headers describe them. */
#ifndef CONVERT_HFSTORED_H
#define CONVERT_HFSTORED_H

#include "ckpt/ckpt.h"
#include "convert/hfdir_inside.h"

struct hf_stored {
    struct hf_source source; /* only dir and files are set */
    struct hf_match match;
};

/* GLM_EUSAGE if there are no headers, or they describe more than the checkpoint holds. Close it
 * after a failure too. ix must outlive it. */
int hf_stored_open(struct hf_stored *s, const struct index *ix, struct glm_error *err);
void hf_stored_close(struct hf_stored *s);
/* Rows are the checkpoint's table's. file -1: the tensor was not there. */
const struct hf_place *hf_stored_place(
    const struct hf_stored *s, const struct table_entry *e, int64_t member, bool scale);

#endif
