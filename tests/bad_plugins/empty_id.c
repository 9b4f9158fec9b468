/* A kernel without a name. */
#include "honest.h"

HONEST_PLUGIN("empty_id", "", honest_forward);
