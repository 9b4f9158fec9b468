/* Operators that older versions of the vendor's libraries lack: the simulator is also built without this file. */
#include "ops.h"

#define NEEDED(operator, chips, arguments)
#define OPTIONAL(operator, chips, arguments)
#define NEWER SIM_BOTH_PHASES
#define ACL_OP(operator, need, chips, arguments) need(operator, chips, arguments)
#include "acl_ops.def"
