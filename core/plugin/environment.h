/* Inside core: variables of the environment that say how this library works. A value that it does not know is an
 * error: one that is passed over changes nothing without a word. */
#ifndef TENON_CORE_ENVIRONMENT_H
#define TENON_CORE_ENVIRONMENT_H

#include <tenon/error.h>

#include <stdbool.h>
#include <stdint.h>

/* TN_E_KERNEL with the variable and what it may be, when TENON_CPU, TENON_MEASURE or TENON_TRIAL_SECONDS has another
 * value. Unset and
 * empty ones are fine. */
tn_status environment_check(tn_error *err);

/* TENON_MEASURE: "yes", the usual, or "no". */
bool environment_measure(void);

/* TENON_TRIAL_SECONDS, or 5. */
double environment_trial_seconds(void);

/* A number made of all variables but such as follow the user around and that no plugin goes by. */
uint64_t environment_hash(void);

#endif
