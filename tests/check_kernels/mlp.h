/* The parts of the test of gated MLPs. */
#ifndef TENON_CHECK_MLP_H
#define TENON_CHECK_MLP_H

#include "check_kernels.h"

bool mlp_golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype);

#endif
