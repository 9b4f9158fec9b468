/* Inside core: the first use of a plugin's device. */
#ifndef TENON_CORE_TRUST_DEVICE_H
#define TENON_CORE_TRUST_DEVICE_H

#include "open/model.h"

/* Compares every distinct operation of a model that was just built with the CPU's, and the device's copies with what
 * they copy. TN_OK for the built-in device. TN_E_KERNEL with device, operation, site and both values. */
tn_status trust_device(tn_model *m, tn_error *err);

#endif
