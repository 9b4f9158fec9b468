/* What a device and a kernel need to be complete, doing nothing. */
#ifndef TENON_TESTS_EMPTY_DEVICE_H
#define TENON_TESTS_EMPTY_DEVICE_H

#include <tenon/tenon.h>

static inline tn_status empty_forward(const tn_call *call, tn_error *err)
{
    (void)call, (void)err;
    return TN_OK;
}

static inline tn_status empty_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    (void)queue, (void)bytes, (void)err;
    *out = NULL;
    return TN_OK;
}

static inline void empty_free(tn_queue *queue, void *memory, size_t bytes)
{
    (void)queue, (void)memory, (void)bytes;
}

static inline tn_status empty_copy(tn_queue *queue, void *to, const void *from, size_t bytes, tn_error *err)
{
    (void)queue, (void)to, (void)from, (void)bytes, (void)err;
    return TN_OK;
}

#endif
