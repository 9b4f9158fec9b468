/* Inside core: structs that cross the public interface. Each begins with its size as its author's compiler saw it. */
#ifndef TENON_CORE_STRUCTS_H
#define TENON_CORE_STRUCTS_H

#include <tenon/error.h>

#include <stddef.h>

/* Copies a struct that the caller filled to the host's, which has `size` bytes: what the caller's lacks is zero, and
 * what the host does not know must be. name: for messages. TN_E_USAGE where from is NULL, has size 0 or one that cannot
 * be. */
tn_status structs_take(void *to, size_t size, const void *from, const char *name, tn_error *err);

/* Copies the host's struct to one of the caller's, who set its size: no more than that, and zeros beyond the host's. */
tn_status structs_give(void *to, const void *from, size_t size, const char *name, tn_error *err);

/* Is the size of a struct that the caller wants filled one that can be? */
tn_status structs_check(const void *given, const char *name, tn_error *err);

/* count pointers to zeroed structs of `size` bytes, whose size is set, in one allocation: free(). NULL: no memory. */
void *structs_list(size_t count, size_t size);

/* TN_E_USAGE: this argument is NULL. */
tn_status structs_missing(const char *name, tn_error *err);

#endif
