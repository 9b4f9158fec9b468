/* Tenon: what an author of a device includes. A device owns memory and performs the operations of operation.h as
 * transformers' eager mode does. The CPU is built in; others come from plugins, by any name, and compute only where
 * somebody asks for them. When a model is opened its operations are compared with the CPU's first. */
#ifndef TENON_DEVICE_H
#define TENON_DEVICE_H

#include <tenon/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kind of machine. Work may be asynchronous: it is lined up in a queue, in the order of the calls, and sync waits for
 * it. A queue belongs to one model, and calls with one queue come from one thread at a time: [one thread] below. */
typedef struct tn_device {
    uint32_t size;
    const char *name, *summary; /* "npu": lower case letters, digits, '_' and '-'                      */
    bool host_memory;           /* the host may dereference its memory; weights are used where they are mapped */

    /* Optional: is the device here? Says what is missing. Asked in a child process first. [any thread] */
    tn_status (*available)(tn_error *err);

    /* Opens unit `ordinal` (0: the first) for one model; one that is not there is an error that says how many there
     * are. queue may be left NULL by a device that needs none. close releases it, after everything that was made with
     * it. Both optional: there is one unit, and no queue. [any thread] */
    tn_status (*open)(int32_t ordinal, tn_queue **queue, tn_error *err);
    void (*close)(tn_queue *queue);

    /* Memory, 64-byte aligned, zeroed. Released with free and the same size. [one thread] */
    tn_status (*alloc)(tn_queue *queue, size_t bytes, void **out, tn_error *err);
    void (*free)(tn_queue *queue, void *memory, size_t bytes);

    /* Copies between host and device, in the order of the queue. When upload returns the host's memory may be reused;
     * when download returns the bytes are there. [one thread] */
    tn_status (*upload)(tn_queue *queue, void *device, const void *host, size_t bytes, tn_error *err);
    tn_status (*download)(tn_queue *queue, void *host, const void *device, size_t bytes, tn_error *err);

    /* Waits until everything in the queue is done, and reports what failed on the way. Optional: calls return when they
     * are done. [one thread] */
    tn_status (*sync)(tn_queue *queue, tn_error *err);

    /* Does it perform the site's operation? TN_DECLINED with a reason if not. Asked about every site when a model is
     * opened, for operations that the graph composes about their parts. Optional: it performs all. [any thread] */
    tn_status (*supports)(const tn_site *site, tn_error *err);

    /* Scratch bytes that eager and backward need for this call; shapes are set, data pointers may be NULL. Optional:
     * none. [any thread] */
    size_t (*scratch)(const tn_call *call);
    size_t (*backward_scratch)(const tn_call *call);

    /* The plain implementation of every primitive operation: not of MLP, MOE_BLOCK, ADD_RMS_NORM and the layers, which
     * the graph composes. Rounds where transformers rounds. call->queue is the model's. [one thread] */
    tn_status (*eager)(const tn_call *call, tn_error *err);

    /* The gradients of a primitive operation, and of ADD_RMS_NORM. Optional: none. [one thread] */
    tn_status (*backward)(const tn_call *call, tn_error *err);
} tn_device;

#ifdef __cplusplus
}
#endif
#endif
