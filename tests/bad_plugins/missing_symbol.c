/* It calls a function that nobody has; linked without -z defs. */
#include "honest.h"

void tn_function_that_nobody_has(void);

__attribute__((constructor)) static void call_it(void)
{
    tn_function_that_nobody_has();
}

HONEST_PLUGIN("missing_symbol", "test_missing", honest_forward);
