/* Built for another major version of the interface. */
#include "honest.h"

#undef TN_ABI_MAJOR
#define TN_ABI_MAJOR 99

HONEST_PLUGIN("abi_major", "test_abi_major", honest_forward);
