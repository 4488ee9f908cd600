/* One row of the table each, in its order. */
#include "train/modelparams.h"

void modelparams_link(const struct params *p, struct model_param *out)
{
    for (int64_t i = 0; i < p->count; i++)
        out[i] = (struct model_param){.w = p->p[i].w, .dw = p->p[i].grad};
}

int modelparams_count(const struct model *m, struct params *p, struct glm_error *err)
{
    for (int64_t i = 0; i < p->count; i++)
        if (p->p[i].routed && p->p[i].entry->layer < model_losses(m)->layers
            && model_add_loads(m, p->p[i].entry->layer, p->p[i].routed, err) != 0)
            return (int)err->code;
    return 0;
}
