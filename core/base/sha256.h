/* Inside core: SHA-256, for pins, verdicts and locks. */
#ifndef TENON_CORE_SHA256_H
#define TENON_CORE_SHA256_H

#include <stdbool.h>
#include <stddef.h>

/* Of a digest in hexadecimal, with the NUL. */
#define SHA256_HEX 65

/* Lower-case hexadecimal and a NUL; false when the library cannot. */
bool sha256_hex(const void *data, size_t size, char hex[SHA256_HEX]);

#endif
