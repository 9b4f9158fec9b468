/* Structs of callers that were compiled with other versions of the headers. */
#include "base/structs.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t MOST = 1 << 16; /* bytes; a larger size is a mistake, not a later version      */

tn_status structs_missing(const char *name, tn_error *err)
{
    return tn_fail(err, TN_E_USAGE, name, "is NULL; pass one");
}

static uint32_t size_of(const void *given)
{
    uint32_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

tn_status structs_check(const void *given, const char *name, tn_error *err)
{
    if (!given)
        return structs_missing(name, err);
    uint32_t size = size_of(given);
    if (size == 0)
        return tn_fail(err, TN_E_USAGE, name, "its size is 0; set .size = sizeof(%s)", name);
    if (size < sizeof size || size > MOST)
        return tn_fail(err, TN_E_USAGE, name, "its size is %u, which no version has; set .size = sizeof(%s)", size,
                       name);
    return TN_OK;
}

tn_status structs_take(void *to, size_t size, const void *from, const char *name, tn_error *err)
{
    tn_status status = structs_check(from, name, err);
    if (status != TN_OK)
        return status;
    uint32_t given = size_of(from), own = (uint32_t)size;
    const char *bytes = from;
    for (size_t i = size; i < given; i++)
        if (bytes[i] != 0)
            return tn_fail(err, TN_E_USAGE, name, "byte %zu is in use and unknown to this library; use a newer one", i);
    memset(to, 0, size);
    memcpy(to, from, given < size ? given : size);
    memcpy(to, &own, sizeof own);
    return TN_OK;
}

tn_status structs_give(void *to, const void *from, size_t size, const char *name, tn_error *err)
{
    tn_status status = structs_check(to, name, err);
    if (status != TN_OK)
        return status;
    uint32_t given = size_of(to);
    size_t count = given < size ? given : size;
    memcpy((char *)to + sizeof given, (const char *)from + sizeof given, count - sizeof given);
    memset((char *)to + count, 0, given - count);
    return TN_OK;
}

void *structs_list(size_t count, size_t size)
{
    void **list = calloc(1, sizeof *list + count * (sizeof *list + size));
    char *at = list ? (char *)(list + count + 1) : NULL;
    uint32_t own = (uint32_t)size;
    for (size_t i = 0; list && i < count; i++, at += size) {
        memcpy(at, &own, sizeof own);
        list[i] = at;
    }
    return list;
}
