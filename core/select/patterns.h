/* Inside core: patterns of module paths. */
#ifndef TENON_CORE_PATTERNS_H
#define TENON_CORE_PATTERNS_H

#include "select/plan.h"
#include "select/select.h"

/* patterns: separated by commas; NULL: any path. */
bool plan_modules_match(const char *patterns, const char *path);

/* Patterns that match no module of the model are notes, or an error where a named kernel has no other. */
tn_status plan_check_patterns(plan *p, const plan_request *request, tn_error *err);

#endif
