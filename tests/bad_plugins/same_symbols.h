/* Two plugins export functions of the same names: each says through available which it called. */
#ifndef SAME_SYMBOLS_H
#define SAME_SYMBOLS_H

#include "honest.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default"), noinline))

EXPORTED int helper(void);

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Not by tn_fail: one of the plugins has its own. */
static tn_status say_helper(tn_error *err)
{
    int list[] = {3, 1, 2};
    /* By name at run time: clang would look into a qsort of this file and see what it does. */
    void (*volatile sort)(void *, size_t, size_t, int (*)(const void *, const void *)) = qsort;
    sort(list, 3, sizeof *list, compare_ints);
    err->code = TN_DECLINED;
    snprintf(err->message, sizeof err->message, "helper gives %d, qsort gives %d %d %d", helper(), list[0], list[1],
             list[2]);
    return TN_DECLINED;
}

static const tn_impl impls[] = {HONEST_IMPL(honest_forward)};

/* Its kernel. */
#define SAYS_HELPER(name)                                                                                              \
    {                                                                                                                  \
        .size = sizeof(tn_kernel), .id = name, .version = "1.0.0", .device = "cpu", .available = say_helper,           \
        .impls = impls, .impl_count = 1,                                                                               \
    }

#endif
