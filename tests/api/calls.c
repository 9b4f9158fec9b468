/* What calls.awk writes. */
#include "api.h"

#include <stddef.h>
#include <string.h>
#include <tenon/dlpack.h>
#include <tenon/tenon.h>

/* A format is handed through as the test gives it. */
#pragma GCC diagnostic ignored "-Wformat-security"

#include "api_calls.h"

const api_function *api_functions(size_t *count)
{
    *count = sizeof functions / sizeof *functions;
    return functions;
}

const api_member *api_members(size_t *count)
{
    *count = sizeof members / sizeof *members;
    return members;
}
