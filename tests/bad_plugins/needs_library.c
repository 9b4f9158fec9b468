/* Right, and linked with dependency.so. Tests edit where it looks for that: its run path is long enough to hold others.
 */
#include "honest.h"

int test_dependency(void);

static tn_status available(tn_error *err)
{
    return test_dependency() == 1 ? TN_OK : tn_fail(err, TN_DECLINED, NULL, "another library than the tests' own");
}

HONEST_PLUGIN_IF("needs_library", "test_needs_library", honest_forward, available);
