/* Text that grows. */
#ifndef TENON_SERVE_GROWN_H
#define TENON_SERVE_GROWN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct grown {
    char *at; /* ended by a NUL once something was added; NULL before                            */
    size_t length, capacity;
} grown;

bool grown_add(grown *c, const char *text, size_t length); /* false: no memory, and nothing has changed      */
bool grown_format(grown *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void grown_free(grown *c);

#endif
