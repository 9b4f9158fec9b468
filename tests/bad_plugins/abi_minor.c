/* Needs a minor version that is to come. */
#define TN_ABI_NEEDED 99
#include "honest.h"

HONEST_PLUGIN("abi_minor", "test_abi_minor", honest_forward);
