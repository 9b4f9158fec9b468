/* Inside core: the plain implementation of every primitive operation on the CPU, as transformers' eager mode computes
 * it: the same order of operations, the same roundings. One file per contract. */
#ifndef TENON_CORE_EAGER_H
#define TENON_CORE_EAGER_H

#include "base/convert.h"
#include "device/device.h"

/* One operation. scratch may be NULL: none is needed. Shapes and types are the caller's duty: the graph and the check
 * tools only make calls that fit the contract; what data can cause (an id out of range) is an error. */
typedef struct eager_op {
    tn_op op;
    size_t (*scratch)(const tn_call *call);
    tn_status (*forward)(const tn_call *call, tn_error *err);
    size_t (*backward_scratch)(const tn_call *call);           /* as scratch, of backward                  */
    tn_status (*backward)(const tn_call *call, tn_error *err); /* NULL: none                      */
} eager_op;

extern const eager_op eager_rms_norm, eager_add_rms_norm, eager_layer_norm, eager_rope, eager_moe_route,
    eager_moe_experts, eager_linear, eager_grouped_matmul, eager_attention, eager_embedding, eager_add, eager_glu,
    eager_cache_append, eager_softcap, eager_act, eager_scale, eager_clamp, eager_copy, eager_row_scale,
    eager_short_conv, eager_gated_delta_rule, eager_selective_scan, eager_embedding_bag, eager_stream_mix,
    eager_stream_add, eager_stream_mean, eager_rms_match, eager_choose_keys, eager_depthwise;

/* cpu.c: the built-in device, which performs these, and that opened: it has one unit and needs no queue. */
extern const tn_device eager_cpu;
extern const device cpu_device;

/* The entry for op, or NULL. eager.c */
const eager_op *eager_find(tn_op op);

/* elementwise.c: the elements of from, rounded to the type of to; zeros where it has no data. They may be one. */
void elementwise_copy(const tn_tensor *from, const tn_tensor *to);

/* grouped_matmul.c: where each group begins, [groups + 1] (start may be NULL). Refuses counts (i64, at any address)
 * that are negative or do not add up to rows. */
tn_status grouped_starts(const void *counts, int64_t groups, int64_t rows, int64_t *start, const char *path,
                         tn_error *err);

#endif
