/* Inside core: memory of a device that is as large as it may ever become in addresses, and no larger than what is in
 * use in fact: it grows where it lies, so nothing is copied. */
#ifndef TENON_CORE_GROWING_H
#define TENON_CORE_GROWING_H

#include "device/device.h"

typedef struct growing {
    const device *device;
    char *data;   /* zeros where nobody has written; 64-byte aligned                             */
    size_t bytes; /* the most                                                                    */
    size_t held;  /* that may be used now; bytes, where the device's memory is not the host's     */
    /* Of a reservation; granule 0: the device allocated all of it. */
    void *mapping;
    size_t mapping_bytes, granule, page; /* page: what it grows by beyond the first one                  */
    uint8_t *is_held;                    /* per granule                                              */
} growing;

/* Reserves addresses, which takes no memory; bytes 0: nothing. growing_free is due also after a failure. */
tn_status growing_init(growing *g, const device *device, size_t bytes, tn_error *err);
void growing_free(growing *g); /* nothing lined up may use it                                     */

/* Makes bytes from .. to - 1 usable; what is already stays as it is. TN_E_MEMORY: the system refuses, nothing is lost.
 */
tn_status growing_hold(growing *g, size_t from, size_t to, tn_error *err);

/* What is held once they are. */
size_t growing_would_hold(const growing *g, size_t from, size_t to);

#endif
