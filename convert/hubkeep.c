#include "convert/hubkeep.h"
int hubkeep_open(
    struct hubkeep **out, const struct hubkeep_options *o, struct glm_error *err)
{
    (void)o;
    *out = NULL;
    return glm_fail(err, GLM_EUSAGE, "not here yet");
}
struct flow_source hubkeep_source(struct hubkeep *k)
{
    (void)k;
    return (struct flow_source){0};
}
void hubkeep_close(struct hubkeep *k)
{
    (void)k;
}
