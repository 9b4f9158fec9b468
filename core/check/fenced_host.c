/* A product of the host's between the calls of a kernel. Kernels that leave the processor in another state than they
 * found it (tiles of AMX that stay configured, a rounding mode) are right by themselves; what is computed after them
 * crashes, or is wrong. */
#include "check/draw_site.h"
#include "check/fenced_child.h"
#include "check/inputs.h"
#include "eager/eager.h"
#include "run/run.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { WIDTH = 64, TOKENS = 64, OUTPUT = WIDTH * TOKENS * 2 };

struct fenced_host {
    draw_site site;
    inputs in;
    unsigned char expected[OUTPUT];
    atomic_bool differs;
    bool works;
};

static bool compute(struct fenced_host *h, unsigned char result[OUTPUT])
{
    tn_call call = h->in.call;
    call.out[0].data = result;
    return run_alone(&cpu_device, NULL, NULL, &call, NULL) == TN_OK;
}

static struct fenced_host host;

static void open_host(void)
{
    tn_site like = draw_site_plain(TN_OP_LINEAR);
    like.meaning[TN_AXIS_DTYPE] = TN_BF16;
    like.dim[TN_DIM_HIDDEN] = like.dim[TN_DIM_OUT] = WIDTH;
    if (draw_site_open(&host.site, &like, 1, NULL) == TN_OK &&
        inputs_draw(&host.in, &host.site.site, 1, TOKENS, 1, NULL) == TN_OK)
        host.works = compute(&host, host.expected);
    if (host.works)
        return;
    inputs_close(&host.in);
    draw_site_close(&host.site);
}

struct fenced_host *fenced_host_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_host);
    return host.works ? &host : NULL;
}

static void compare(void *ctx, int32_t thread, int32_t threads)
{
    struct fenced_host *h = ctx;
    unsigned char result[OUTPUT];
    (void)thread;
    (void)threads;
    if (compute(h, result) && memcmp(result, h->expected, OUTPUT) != 0)
        atomic_store(&h->differs, true);
}

bool fenced_host_same(struct fenced_host *h, bool on_team)
{
    if (h && on_team)
        tn_parallel(compare, h);
    else if (h)
        compare(h, 0, 1);
    return !h || !atomic_load(&h->differs);
}
