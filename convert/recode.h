/* One job of a tensor whose type changes, and the scales that its jobs make together. */
#ifndef CONVERT_RECODE_H
#define CONVERT_RECODE_H

#include "convert/flow.h"

/* State of one member (a matrix) of a recoded tensor: scales collect here until its last job. */
struct recode_member;

int recode_members_new(struct recode_member **out, int64_t count, struct glm_error *err);
void recode_members_free(struct recode_member *members, int64_t count);
struct recode_member *recode_member_at(struct recode_member *members, int64_t i);
void recode_member_expect(struct recode_member *member); /* one more job of it will run */

/* Reads `at` (rows of one member, whole width), changes its type, puts it; the member's last job
 * puts the scales. *error: what the values lost. */
int recode_job(const struct flow_source *source, const struct flow_sink *sink,
    const struct flow_item *item, int64_t tensor, const struct rect *at,
    struct recode_member *member, struct codec_error *error, struct flow_thread *t,
    struct glm_error *err);

/* The items of a sink's tensors, by name, section and type. */
int recode_plan(const struct manifest *source, const struct manifest *sink,
    enum codec_rule rule, struct flow_item **items, struct glm_error *err);

#endif
