/* A library for LD_PRELOAD: PCRE2 interprets. What its compiled expressions read beyond a text, and do not use,
 * valgrind takes for a mistake. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

__attribute__((visibility("default"))) int pcre2_jit_compile(pcre2_code *code, uint32_t options)
{
    (void)code;
    (void)options;
    return PCRE2_ERROR_JIT_BADOPTION;
}
