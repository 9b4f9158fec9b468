/* Selecting, step by step: who may take part (candidates.c, patterns.c), which sites are alike (alike.c), who takes
 * them (ask.c), who of these has them (choose.c, by rank.c); then what is chosen is checked (check_plan.c) and measured
 * (measure.c). Whoever fails or does not gain takes nothing any more, and it is chosen again. */
#include "select/select.h"

#include "plugin/kernels_config.h"
#include "select/alike.h"
#include "select/ask.h"
#include "select/candidates.h"
#include "select/check_plan.h"
#include "select/choose.h"
#include "select/measure.h"
#include "select/patterns.h"
#include "select/plan.h"
#include "select/progress.h"

#include <stdlib.h>

tn_status select_plan(plan *p, apply_target *target, const tn_config *config, const plan_request *request,
                      tn_error *err)
{
    *p = (plan){
        .target = target, .config = config, .adds = request->adds, .tells = request->tells, .packed_limit = SIZE_MAX};
    if (config)
        p->packed_limit = kernels_config_max_packed(config);
    tn_status status = plan_find_candidates(p, request, err);
    if (status == TN_OK)
        status = plan_check_patterns(p, request, err);
    if (status == TN_OK)
        status = plan_find_shapes(p, err);
    if (status == TN_OK)
        status = plan_ask(p, err);
    p->choices = calloc(target->graph->site_count + 1, sizeof *p->choices);
    p->asked = calloc(target->graph->site_count + 1, sizeof *p->asked);
    if (status == TN_OK && !(p->choices && p->asked))
        status = plan_no_memory(err);
    if (status != TN_OK)
        return status;
    bool changed;
    plan_choose(p);
    return plan_settle(p, &changed, err);
}

tn_status select_settle(plan *p, tn_error *err)
{
    bool again = true;
    tn_status status = TN_OK;
    plan_count_checks(p);
    while (again && status == TN_OK) {
        bool measured = false;
        status = plan_check(p, err);
        if (status == TN_OK)
            status = plan_settle(p, &again, err);
        if (status == TN_OK && !again)
            status = plan_measure(p, &measured, err);
        again |= measured;
    }
    return status == TN_OK ? plan_tell(p, &p->checks, p->checks.total, err) : status;
}
