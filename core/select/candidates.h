/* Inside core: which kernels a SPEC lets take part. */
#ifndef TENON_CORE_CANDIDATES_H
#define TENON_CORE_CANDIDATES_H

#include "select/plan.h"
#include "select/select.h"

/* The kernels of the device, each with the reason why the SPEC leaves it out. */
tn_status plan_find_candidates(plan *p, const plan_request *request, tn_error *err);
tn_status plan_unknown_id(const char *device, const char *id, tn_error *err);

#endif
