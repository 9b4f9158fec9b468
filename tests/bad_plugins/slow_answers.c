/* RMS norms of many implementations, of which the host hears little: BAD_PLUGIN says what hangs or is slow. */
#include "honest.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is(const char *name)
{
    const char *deed = getenv("BAD_PLUGIN");
    return deed && !strcmp(deed, name);
}

static void hang(void)
{
    for (;;)
        pause();
}

static tn_status available(tn_error *err)
{
    (void)err;
    if (is("hangs in available"))
        hang();
    return TN_OK;
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    (void)err;
    if (is("hangs in plan"))
        hang();
    if (is("slow in plan"))
        usleep(400000);
    if (is("slow for each call"))
        usleep(20000);
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    if (is("hangs in forward"))
        hang();
    return honest_forward(call, err);
}

#define IMPL                                                                                                           \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = TN_OP_RMS_NORM, .match = HONEST_MATCH, .tolerance = {.ulps_f32 = 64},           \
        .plan = plan, .forward = forward,                                                                              \
    }

static const tn_impl impls[] = {IMPL, IMPL, IMPL, IMPL, IMPL, IMPL, IMPL, IMPL, IMPL, IMPL, IMPL, IMPL};
static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel),
                                     .id = "test_slow_answers",
                                     .version = "1.0.0",
                                     .summary = "RMS norm",
                                     .device = "cpu",
                                     .available = available,
                                     .impls = impls,
                                     .impl_count = sizeof impls / sizeof *impls}};

TN_PLUGIN("slow_answers", "1.0.0", .kernels = kernels, .kernel_count = 1);
