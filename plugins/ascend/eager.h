/* The plain implementations of operations on the device "npu", one file each, composed of the vendor's operators. */
#ifndef ASCEND_EAGER_H
#define ASCEND_EAGER_H

#include "ascend.h"

/* Of one operation, with the contracts that tn_device has for all: supports declines a site with a reason, scratch says
 * how many bytes of device memory a call needs (NULL: none), forward lines the work up. */
typedef struct ascend_operation {
    tn_op op;
    tn_status (*supports)(const tn_site *site, tn_error *err);
    size_t (*scratch)(const tn_call *call);
    tn_status (*forward)(const tn_call *call, tn_error *err);
} ascend_operation;

#endif
