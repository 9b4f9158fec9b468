/* Leaves threads behind where BAD_PLUGIN says so: "available" or "plan". */
#include "honest.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *stay(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void *end(void *unused)
{
    usleep(10000);
    return unused;
}

/* One that ends soon is started in any case. */
static void act(const char *where)
{
    pthread_t thread;
    const char *deed = getenv("BAD_PLUGIN");
    if (pthread_create(&thread, NULL, deed && !strcmp(deed, where) ? stay : end, NULL) == 0)
        pthread_detach(thread);
}

static tn_status available(tn_error *err)
{
    (void)err;
    act("available");
    return TN_OK;
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site, (void)plan, (void)err;
    act("plan");
    return TN_OK;
}

static const tn_impl impls[] = {{.size = sizeof(tn_impl),
                                 .op = TN_OP_RMS_NORM,
                                 .match = HONEST_MATCH,
                                 .tolerance = {.ulps_f32 = 64},
                                 .plan = plan,
                                 .forward = honest_forward}};
static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel),
                                     .id = "test_leaves_thread",
                                     .version = "1.0.0",
                                     .device = "cpu",
                                     .available = available,
                                     .impls = impls,
                                     .impl_count = 1}};
TN_PLUGIN("leaves_thread", "1.0.0", .kernels = kernels, .kernel_count = 1);
