/* Both phases of all operators but those of op_newer.c. */
#include "ops.h"

#define NEEDED SIM_BOTH_PHASES
#define OPTIONAL SIM_BOTH_PHASES
#define NEWER(operator, chips, types, strides, arguments)
#define ACL_OP(operator, need, chips, known, types, strides, arguments) need(operator, chips, types, strides, arguments)
#include "acl_ops.def"
