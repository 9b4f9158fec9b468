/* Inside core/select: checks of a first use that passed in this process, of weights that are said to change
 * (tn_model_options.weights_change): no file is kept of them, and what lies in their memory is not what is asked. */
#ifndef TENON_CORE_PASSED_H
#define TENON_CORE_PASSED_H

#include "select/plan.h"

/* Did this implementation pass at a site of this shape and path, on as many threads, with the environment and the
 * processor's flags as they are now? */
bool passed_before(const plan *p, const plan_fit *fit, const tn_site *site);

/* It did. Nothing, unless weights change. */
void passed_note(const plan *p, const plan_fit *fit, const tn_site *site);

#endif
