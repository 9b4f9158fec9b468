/* Inside core/plugin: what a constructor did to the process that nobody can put right. */
#ifndef TENON_CORE_CONDUCT_H
#define TENON_CORE_CONDUCT_H

#include <tenon/error.h>

/* Notes how the process is. In a trial's child, before its plugin is opened; no descriptors are needed there. */
void conduct_begin(void);

/* TN_E_KERNEL with what the plugin did since. */
tn_status conduct_check(tn_error *err);

#endif
