/* Inside core: addresses that take memory when they are written to, for what nobody knows the size of. */
#ifndef TENON_CORE_RESERVED_H
#define TENON_CORE_RESERVED_H

#include <stddef.h>

/* Zeros; NULL: the system has not so many addresses. Owned: reserved_free. */
void *reserved_new(size_t bytes);
void *reserved_zeros(size_t bytes); /* the same, which nobody may write to: no memory                       */
void reserved_free(void *memory, size_t bytes); /* NULL is allowed                                       */

/* Zeros again, and the memory of the whole pages between is given back. */
void reserved_clear(void *memory, size_t bytes);

#endif
