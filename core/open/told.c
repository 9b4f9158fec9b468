/* Kernels that rank 0 tells other ranks to apply. */
#include "open/parallel.h"

tn_status parallel_apply_told(tn_model *m, tn_config *config, const parallel_order *order, const char *spec,
                              tn_error *err)
{
    tn_status status = tn_config_set_same_bits(config, order->number[0], err);
    if (status == TN_OK)
        status = tn_config_set_exact(config, order->number[1], err);
    if (status == TN_OK)
        status = tn_apply_kernels(m, config, spec, NULL, err);
    if (m->group->failed)
        return status;
    tn_error_clear(err);
    return TN_OK;
}
