#include "launched.h"

#include "plugin/registry.h"

static tn_group launched;
static void (*leave)(void *self);

const tn_group *launched_open(tn_error *err)
{
    static const double PATIENCE = 600; /* rank 0 runs a case alone, too                                   */
    const char *file;
    const tn_group_kind *kind = registry_group(&file);
    if (!kind) {
        tn_fail(err, TN_E_KERNEL, "--parallel", "no plugin connects ranks");
        return NULL;
    }
    launched = (tn_group){.size = sizeof launched};
    if (kind->open(&launched, PATIENCE, err) != TN_OK)
        return NULL;
    leave = launched.close;
    launched.close = NULL; /* models come and go                                                       */
    return &launched;
}

void launched_close(void)
{
    if (leave)
        leave(launched.self);
}
