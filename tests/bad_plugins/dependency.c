/* No plugin: a library that one needs. */
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int test_dependency(void);
int test_dependency(void)
{
    return 1;
}

__attribute__((constructor)) static void begin(void)
{
    const char *fault = getenv("BAD_PLUGIN");
    if (fault && !strcmp(fault, "its library crashes"))
        abort();
}
