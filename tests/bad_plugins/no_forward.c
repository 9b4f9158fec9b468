/* An impl that cannot be called. */
#include "honest.h"

HONEST_PLUGIN("no_forward", "test_no_forward", NULL);
