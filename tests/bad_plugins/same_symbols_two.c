/* Exports helper, as same_symbols_one does, and names of libtenon and of the C library. */
#include "same_symbols.h"

int helper(void)
{
    return 2;
}

/* Whoever calls these gets nonsense. */
EXPORTED void qsort(void *list, size_t count, size_t size, int (*compare)(const void *, const void *))
{
    (void)compare;
    for (size_t i = 0; i < count * size; i++)
        ((char *)list)[i] = 0x7f;
}

EXPORTED tn_status tn_fail(tn_error *err, tn_status code, const char *where, const char *format, ...)
{
    (void)err, (void)code, (void)where, (void)format;
    abort();
}

static const tn_kernel kernels[] = {SAYS_HELPER("test_same_two")};
TN_PLUGIN("same_symbols_two", "1.0.0", .kernels = kernels, .kernel_count = 1);
