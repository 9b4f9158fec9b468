/* Norms whose plan or pack is right when it is tried in a child, and not when it is asked again: there, in the process
 * that opened this file, or at one site only. Beside them two that keep to what they said. */
#include "honest.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The process that opened the file: children have other ids. */
static pid_t opener;

__attribute__((constructor)) static void remember(void)
{
    opener = getpid();
}

static bool here(void)
{
    return getpid() == opener;
}

static tn_status sizes(tn_plan *plan, size_t scratch, size_t packed)
{
    plan->scratch_bytes = scratch;
    plan->packed_bytes = packed;
    return TN_OK;
}

/* ---- plan ------------------------------------------------------------------------------------------------------ */

static int declines_calls, fails_calls, sizes_calls, crashes_calls, table_calls;

static tn_status plan_declines(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return declines_calls++ ? tn_fail(err, TN_DECLINED, site->path, "not twice") : sizes(plan, 64, 0);
}

static tn_status plan_fails(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return fails_calls++ ? tn_fail(err, TN_E_INTERNAL, site->path, "its table is used up") : sizes(plan, 64, 0);
}

static tn_status plan_sizes(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    return sizes(plan, sizes_calls++ ? 64 : 4096, 0);
}

static tn_status plan_crashes(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    if (crashes_calls++)
        abort();
    return sizes(plan, 64, 0);
}

static tn_status plan_declines_here(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return here() ? tn_fail(err, TN_DECLINED, site->path, "not in this process") : sizes(plan, 64, 0);
}

static tn_status plan_fails_here(const tn_site *site, tn_plan *plan, tn_error *err)
{
    return here() ? tn_fail(err, TN_E_MEMORY, site->path, "no memory for its table") : sizes(plan, 64, 0);
}

static tn_status plan_sizes_here(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    return sizes(plan, here() ? 0 : 4096, 0);
}

/* ---- pack ------------------------------------------------------------------------------------------------------ */

static tn_status plan_packed(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->user[0] = (uint64_t)site->dim[TN_DIM_WIDTH] * sizeof(float);
    return sizes(plan, 0, (size_t)plan->user[0]);
}

static tn_status pack(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    (void)err;
    memcpy(packed, site->param[TN_ROLE_WEIGHT].tensors[0].data, (size_t)plan->user[0]);
    return TN_OK;
}

static tn_status pack_fails_here(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    return here() ? tn_fail(err, TN_E_INTERNAL, site->path, "the weight does not fold")
                  : pack(site, plan, packed, queue, err);
}

static tn_status pack_declines_here(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue,
                                    tn_error *err)
{
    return here() ? tn_fail(err, TN_DECLINED, site->path, "not today") : pack(site, plan, packed, queue, err);
}

static tn_status pack_fails_there(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue,
                                  tn_error *err)
{
    return here() && strstr(site->path, "layers.1.input") ? TN_E_INTERNAL : pack(site, plan, packed, queue, err);
}

/* The packed weights are what it multiplies with. */
static tn_status packed_forward(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    tn_tensor weight = site.param[TN_ROLE_WEIGHT].tensors[0];
    tn_call with = *call;
    weight.data = (void *)(uintptr_t)call->packed;
    site.param[TN_ROLE_WEIGHT].tensors = &weight;
    with.site = &site;
    return honest_forward(&with, err);
}

/* ---- right ------------------------------------------------------------------------------------------------------ */

/* Uses all the scratch that it asked for. */
static tn_status scratch_forward(const tn_call *call, tn_error *err)
{
    memset(call->scratch, 1, call->plan->scratch_bytes);
    return honest_forward(call, err);
}

static tn_status plan_table(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->user[1] = (uint64_t)++table_calls; /* a note of its own, another one each time                   */
    return sizes(plan, 4096, 0);
}

#define NORM(plan_fn, pack_fn, forward_fn)                                                                             \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = TN_OP_RMS_NORM, .match = HONEST_MATCH, .tolerance = {.ulps_f32 = 64},           \
        .plan = plan_fn, .pack = pack_fn, .forward = forward_fn, .traits = TN_KEEPS_STATE,                             \
    }

static const tn_impl impls[] = {NORM(plan_declines, NULL, scratch_forward),
                                NORM(plan_fails, NULL, scratch_forward),
                                NORM(plan_sizes, NULL, scratch_forward),
                                NORM(plan_crashes, NULL, scratch_forward),
                                NORM(plan_declines_here, NULL, scratch_forward),
                                NORM(plan_fails_here, NULL, scratch_forward),
                                NORM(plan_sizes_here, NULL, scratch_forward),
                                NORM(plan_packed, pack_fails_here, packed_forward),
                                NORM(plan_packed, pack_declines_here, packed_forward),
                                NORM(plan_packed, pack_fails_there, packed_forward),
                                NORM(plan_packed, pack, packed_forward),
                                NORM(plan_table, NULL, scratch_forward)};

static const tn_kernel kernels[] = {
    HONEST_KERNEL("plan_declines", &impls[0]),      HONEST_KERNEL("plan_fails", &impls[1]),
    HONEST_KERNEL("plan_sizes", &impls[2]),         HONEST_KERNEL("plan_crashes", &impls[3]),
    HONEST_KERNEL("plan_declines_here", &impls[4]), HONEST_KERNEL("plan_fails_here", &impls[5]),
    HONEST_KERNEL("plan_sizes_here", &impls[6]),    HONEST_KERNEL("pack_fails_here", &impls[7]),
    HONEST_KERNEL("pack_declines_here", &impls[8]), HONEST_KERNEL("pack_fails_there", &impls[9]),
    HONEST_KERNEL("right_packed", &impls[10]),      HONEST_KERNEL("right_table", &impls[11])};

TN_PLUGIN("second_time", "1.0.0", .kernels = kernels, .kernel_count = sizeof kernels / sizeof kernels[0]);
