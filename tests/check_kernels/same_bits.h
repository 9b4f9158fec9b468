/* What TN_SAME_BITS promises: a call's tokens alone, in pairs and in parts. */
#ifndef TENON_CHECK_SAME_BITS_H
#define TENON_CHECK_SAME_BITS_H

#include "attempt.h"

/* Parts of the case's call have the bits that the whole call gave, on one thread and on two. */
void same_bits(check_state *s, const check_case *c, const tn_impl *impl, const attempt *whole);

#endif
