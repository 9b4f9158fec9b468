/* Nothing is wrong with this one. */
#include "honest.h"

HONEST_PLUGIN("good", "test_rms_norm", honest_forward);
