/* The implementations of npu_fused_rope on an Ascend device. */
#ifndef ROPE_ASCEND_H
#define ROPE_ASCEND_H

#include <tenon/kernel.h>

enum { ROPE_ASCEND_IMPLS = 2 };
extern const tn_impl rope_ascend_impls[ROPE_ASCEND_IMPLS];

#endif
