/* Kernels of a device whose memory the host cannot touch: inputs are copied there, results back, and compared with what
 * the CPU makes of the same. */
#include "check/check.h"

#include "check/check_device.h"
#include "check/timing.h"

/* What check_device tries in any case; more tokens only where that is not too much work. */
enum { LEAST_TOKENS = 0, SURE_TOKENS = 24 };

static void cover(const check_subject *s)
{
    check_coverage here = {
        .least_tokens = LEAST_TOKENS, .most_tokens = SURE_TOKENS, .threads = 1, .gradients = s->gradients, .any = true};
    check_coverage_add(s->coverage, &here);
}

tn_status check_far(const check_subject *s, compare_figures *figures, tn_error *err)
{
    graph_binding own = {0};
    if (!s->cpu)
        return tn_fail(err, TN_DECLINED, s->site->path, "kernels on the memory of device %s cannot be tried in a child",
                       s->device->ops->name);
    tn_status status = s->bound ? TN_OK : timing_bind(s->device, s->site, s->impl, &own, err);
    const check_device_subject subject = {.device = s->device,
                                          .cpu = s->cpu,
                                          .site = s->site,
                                          .op = s->site->op,
                                          .gradients = s->gradients && s->impl->backward,
                                          .bound = s->bound ? s->bound : &own,
                                          .figures = figures};
    if (status == TN_OK)
        status = check_device(&subject, err);
    if (own.packed) {
        device_sync(s->device, NULL);
        device_free(s->device, (void *)(uintptr_t)own.packed, own.plan.packed_bytes);
    }
    if (status == TN_OK && s->coverage)
        cover(s);
    return status;
}
