/* Inside core/plugin: SHA-256, for pins and verdicts. */
#ifndef TENON_CORE_SHA256_H
#define TENON_CORE_SHA256_H

#include <stdbool.h>
#include <stddef.h>

/* Lower-case hexadecimal and a NUL; false when the library cannot. */
bool sha256_hex(const void *data, size_t size, char hex[65]);

#endif
