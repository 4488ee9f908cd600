/* The model families that the table knows. Private to ckpt/.
 *
 * A family is a reader of its configuration and the rows of its table. Adding one means one file
 * of rows, one of keys, and a line in family.c's list. */
#ifndef CKPT_FAMILY_H
#define CKPT_FAMILY_H

#include "ckpt/table.h"

extern const struct table_family glm52_family; /* glm_moe_dsa: GLM-5, 5.1, 5.2 */

int glm52_config(struct model_config *c, const void *json, struct glm_error *err);

/* The family of a model_type, NULL if there is none. */
const struct table_family *family_find(const char *model_type);

/* Appends a row: copies *row, fills its grid, checks that its element count stays far from
 * overflow and adds it to the totals. name is copied. */
int table_add(struct table *t, const struct table_entry *row, struct glm_error *err);

#endif
