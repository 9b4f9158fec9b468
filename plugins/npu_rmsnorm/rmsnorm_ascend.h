/* The implementations of npu_fused_rmsnorm on an Ascend device. */
#ifndef RMSNORM_ASCEND_H
#define RMSNORM_ASCEND_H

#include <tenon/kernel.h>

enum { RMSNORM_ASCEND_IMPLS = 3 };
extern const tn_impl rmsnorm_ascend_impls[RMSNORM_ASCEND_IMPLS];

#endif
