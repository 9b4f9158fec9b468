/* An RMS norm as right as the library that it calls: the one that it was linked with or, where BAD_FILE names one, that
 * which it opens in forward, or in available where BAD_PLUGIN says so. */
#include "honest.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

float test_factor(void);

static float (*opened)(void);

static void open_named(void)
{
    const char *file = getenv("BAD_FILE");
    void *library = file && !opened ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library)
        *(void **)(void *)&opened = dlsym(library, "test_factor");
}

static tn_status available(tn_error *err)
{
    const char *where = getenv("BAD_PLUGIN");
    (void)err;
    if (where && !strcmp(where, "opens in available"))
        open_named();
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    const tn_tensor *y = &call->out[0];
    int64_t n = y->shape[y->ndim - 1], rows = tn_tensor_count(y) / n;
    tn_status status = honest_forward(call, err);
    open_named();
    float factor = opened ? opened() : test_factor();
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            honest_place(y, r)[i] *= factor;
    return status;
}

HONEST_PLUGIN_IF("calls_library", "test_calls_library", forward, available);
