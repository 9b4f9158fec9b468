/* No plugin: a library that one multiplies by. Tests write another number over its own. */
#include <stdlib.h>

__attribute__((visibility("default"))) float test_factor(void);
float test_factor(void)
{
    static const volatile char number[] = "factor=1.00";
    char text[sizeof number];
    for (size_t i = 0; i < sizeof number; i++)
        text[i] = number[i];
    return strtof(text + sizeof "factor", NULL);
}
