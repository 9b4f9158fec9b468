/* What happens to the file of a library while a program uses it. */
#ifndef TEST_REWRITE_H
#define TEST_REWRITE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rewrite {
    const char *name;
    void (*act)(const char *path);
    bool another; /* there is a file afterwards, with another content                                */
} rewrite;

/* All of them. Failures of the system abort the test. Those that write other numbers look for "IN_USE_". */
extern const rewrite rewrites[];
enum { REWRITES = 8 };

#endif
