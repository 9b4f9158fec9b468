/* Which machinery answers: a text that differs where answers may. */
#ifndef TENON_SERVE_FINGERPRINT_H
#define TENON_SERVE_FINGERPRINT_H

#include "state.h"

/* Writes "fp_" and a hash of the library's version, the checkpoint, the kernels that are applied, the numbers' type and
 * the instruction set into a->fingerprint. */
void fingerprint_make(api *a, const char *folder, const char *kernels, bool same_bits);

#endif
