/* Operators that older versions of the vendor's libraries lack: the simulator is also built without this file. */
#include "ops.h"

#define NEEDED(operator, chips, types, strides, arguments)
#define OPTIONAL(operator, chips, types, strides, arguments)
#define NEWER SIM_BOTH_PHASES
#define ACL_OP(operator, need, chips, known, types, strides, arguments) need(operator, chips, types, strides, arguments)
#include "acl_ops.def"
