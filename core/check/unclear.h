/* Inside core: rows of live results whose value rounding decides, so that two right kernels may differ. */
#ifndef TENON_CORE_UNCLEAR_H
#define TENON_CORE_UNCLEAR_H

#include <stdbool.h>
#include <tenon/kernel.h>

/* For compare_call: skip[row] of what cannot be compared, or NULL where everything can. Made-up inputs are drawn so
 * that there are hardly any; live ones have tokens whose last chosen and first rejected expert are nearly equal, and in
 * 16 bits attention scores so large that the rounding of a score changes the result. Owned: free(). */
tn_status unclear_find(const tn_call *call, bool **skip, tn_error *err);

#endif
