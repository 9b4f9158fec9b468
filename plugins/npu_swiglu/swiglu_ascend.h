/* The implementations of npu_fused_swiglu on an Ascend device. */
#ifndef SWIGLU_ASCEND_H
#define SWIGLU_ASCEND_H

#include <tenon/kernel.h>

enum { SWIGLU_ASCEND_IMPLS = 2 };
extern const tn_impl swiglu_ascend_impls[SWIGLU_ASCEND_IMPLS];

#endif
