/* The scan of Mamba-2 for a whole call. */
#ifndef SELECTIVE_SCAN_H
#define SELECTIVE_SCAN_H

#include "kernels.h"

size_t selective_scan_scratch_size(const tn_site *site, int32_t threads);
void selective_scan_forward(const tn_call *call, uint64_t cpu_flags);

#endif
