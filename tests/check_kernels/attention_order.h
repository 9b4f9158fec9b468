/* ATTENTION: the same bits whatever else is in the call. */
#ifndef TENON_CHECK_ATTENTION_ORDER_H
#define TENON_CHECK_ATTENTION_ORDER_H

#include "check_kernels.h"

/* The groups of one type. */
void check_attention_order(check_state *s, tn_dtype dtype);

#endif
