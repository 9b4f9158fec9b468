/* Asking implementations what they need. Whoever asks for more memory than any kernel of its kind needs has
 * miscalculated: it is to blame, and not a host that has no such memory. */
#include "run/planning.h"

#include "base/memory.h"
#include "base/text.h"

#include <inttypes.h>

static const size_t MOST_SCRATCH = (size_t)4 << 30, MOST_PACKED = PLANNING_LARGE; /* beyond 16 times the weights */
static const size_t MOST_OF_DEVICE = (size_t)1 << 36; /* its memory is not this machine's                */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t most_packed(const tn_site *site)
{
    size_t bytes = MOST_PACKED;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++)
            bytes +=
                16 * tn_dtype_bytes(site->param[role].tensors[i].dtype, tn_tensor_count(&site->param[role].tensors[i]));
    return least(bytes, memory_of_machine(SIZE_MAX));
}

tn_status planning_judge(const tn_site *site, const tn_plan *given, const tn_plan *plan, tn_error *err)
{
    size_t scratch =
        plan->scratch_bytes > plan->backward_scratch_bytes ? plan->scratch_bytes : plan->backward_scratch_bytes;
    size_t most = least(MOST_SCRATCH, memory_of_machine(SIZE_MAX) / 4), packed = most_packed(site);
    if (plan->size != given->size || plan->threads != given->threads || plan->max_tokens != given->max_tokens)
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "it changes what it is given: %" PRId64 " tokens on %d threads to %" PRId64 " on %d",
                       given->max_tokens, (int)given->threads, plan->max_tokens, (int)plan->threads);
    if (scratch > most)
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "it asks for %zu bytes of scratch for %" PRId64 " tokens; at most %zu are given", scratch,
                       given->max_tokens, most);
    if (plan->packed_bytes > packed)
        return tn_fail(err, TN_E_KERNEL, NULL, "it asks for %zu bytes of packed weights; at most %zu are given here",
                       plan->packed_bytes, packed);
    return TN_OK;
}

tn_status planning_judge_device(const device *device, const tn_call *call, size_t scratch_bytes, tn_error *err)
{
    char where[64];
    if (scratch_bytes <= MOST_OF_DEVICE)
        return TN_OK;
    text_cut(where, sizeof where, "device %s", device->ops->name);
    return tn_fail(err, TN_E_KERNEL, where, "%s asks for %zu bytes of scratch; at most %zu are given",
                   tn_op_name(call->op), scratch_bytes, MOST_OF_DEVICE);
}

tn_status planning_ask(const tn_impl *impl, const tn_site *site, tn_plan *plan, tn_error *err)
{
    const tn_plan given = *plan;
    tn_status status = impl->plan(site, plan, err);
    return status == TN_OK ? planning_judge(site, &given, plan, err) : status;
}
