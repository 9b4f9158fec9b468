/* Tenon: what an author of a device includes. A device owns memory and performs the operations of
 * kernel.h as transformers' eager mode does. The CPU is built in; others come from plugins. */
#ifndef TENON_DEVICE_H
#define TENON_DEVICE_H

#include <tenon/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_device {
    uint32_t size;
    tn_device_kind kind;
    const char *name, *summary;
    bool host_memory; /* the host may dereference its memory; weights are used where they are mapped */

    /* Optional: is the device here? Says what is missing. */
    tn_status (*available)(tn_error *err);

    /* Memory, 64-byte aligned, zeroed. Released with free and the same size. */
    tn_status (*alloc)(size_t bytes, void **out, tn_error *err);
    void (*free)(void *memory, size_t bytes);

    /* Copies between host and device, ordered with the operations; download waits for them. */
    tn_status (*upload)(void *device, const void *host, size_t bytes, tn_error *err);
    tn_status (*download)(void *host, const void *device, size_t bytes, tn_error *err);

    /* Does it perform the call's operation for this site at all? TN_DECLINED with a reason if not. */
    tn_status (*supports)(const tn_site *site, tn_error *err);

    /* Scratch bytes that eager needs for this call; shapes are set, data pointers may be NULL. */
    size_t (*scratch)(const tn_call *call);

    /* The plain implementation: every primitive operation (not MLP, MOE_BLOCK and the layer
     * operations, which the graph composes). Rounds where transformers rounds. */
    tn_status (*eager)(const tn_call *call, tn_error *err);

    /* Waits until everything before is done. */
    tn_status (*sync)(tn_error *err);

    /* ABI 1.1, optional: the gradients of a primitive operation, and the scratch bytes that takes. */
    size_t (*backward_scratch)(const tn_call *call);
    tn_status (*backward)(const tn_call *call, tn_error *err);
} tn_device;

#ifdef __cplusplus
}
#endif
#endif
