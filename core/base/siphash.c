/* Keys for SipHash. */
#include "base/siphash.h"

#include <sys/auxv.h>
#include <sys/random.h>

siphash_key siphash_draw(void)
{
    siphash_key key;
    if (getrandom(&key, sizeof key, GRND_NONBLOCK) == (ssize_t)sizeof key)
        return key;
    const void *start = (const void *)getauxval(AT_RANDOM);         /* 16 bytes that the kernel drew                */
    key = (siphash_key){(uintptr_t)&key, (uintptr_t)&siphash_draw}; /* where neither is: what the loader drew */
    if (start)
        memcpy(&key, start, sizeof key);
    return key;
}
