/* Inside core: which sizes of calls were met. A kernel may go another way with any number that it sees of a call, so
 * each of them is noted: exactly while it is small, then by its order of magnitude and by what is left over behind
 * whole blocks. */
#ifndef TENON_CORE_SIZES_H
#define TENON_CORE_SIZES_H

#include "base/text.h"

#include <tenon/operation.h>

enum { SIZES_WORDS = 110 };

typedef struct sizes {
    uint64_t bits[SIZES_WORDS];
} sizes;

/* Was every number of the call met before? add: they are from now on. The inputs of experts are read, so the tensors
 * are in host memory. */
bool sizes_meet(sizes *s, const tn_call *call, bool add);

/* As one word of text, and back; false: it is none. */
void sizes_write(const sizes *s, text *out);
bool sizes_read(sizes *s, const char *word);

/* Those of more are met, too. */
void sizes_join(sizes *s, const sizes *more);

#endif
