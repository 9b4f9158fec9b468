/* Inside core: asking implementations what they need at a site. */
#ifndef TENON_CORE_PLANNING_H
#define TENON_CORE_PLANNING_H

#include "device/device.h"

/* Calls the implementation's plan, which it has, and judges the answer. TN_E_KERNEL with the figure and the limit where
 * it asks for more memory than a kernel can need there, or changes what it was given (threads, max_tokens); otherwise
 * what plan returned. */
tn_status planning_ask(const tn_impl *impl, const tn_site *site, tn_plan *plan, tn_error *err);

/* The judgement alone, of what plan made of the given one. */
tn_status planning_judge(const tn_site *site, const tn_plan *given, const tn_plan *plan, tn_error *err);

/* The same of what a plugin's device asks for an operation of its own. */
tn_status planning_judge_device(const device *device, const tn_call *call, size_t scratch_bytes, tn_error *err);

/* Beyond this, memory that cannot be had is the fault of who asks for so much. */
enum { PLANNING_LARGE = 64 << 20 };

#endif
