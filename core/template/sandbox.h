/* Inside core: what a template may take from its host. A template comes from the same place as a checkpoint and is
 * trusted as little: its memory, its steps and its depth are bounded. Whatever fails leaves by sandbox_fail to the one
 * setjmp of chat_template.c; all memory is the sandbox's, so nothing is lost on the way. */
#ifndef TENON_CORE_SANDBOX_H
#define TENON_CORE_SANDBOX_H

#include <tenon/error.h>

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most bytes, steps, levels of evaluation, and bytes of output. Python's own limit of 1,000 calls is about as deep. A
 * step is some forty nanoseconds of work: an expression, a character looked at, an item, 64 bytes that are compared,
 * counted or copied at once. What is walked through is charged where it is walked (chars.h, value.h), what is made
 * where it is made (sandbox_alloc, repr_add), and every call for the texts that it is given. */
#define SANDBOX_MEMORY ((size_t)256 << 20)
#define SANDBOX_STEPS INT64_C(10000000)
#define SANDBOX_DEPTH 1000
#define SANDBOX_OUTPUT ((size_t)16 << 20)

typedef struct sandbox_piece sandbox_piece;

typedef struct sandbox {
    jmp_buf out;
    tn_error *err;
    tn_status status;     /* what it failed with                                                    */
    const char *name;     /* of the template, for messages                                          */
    int line;             /* where parsing or rendering is                                          */
    int depth, deepest;   /* levels open now; how many there may be                                 */
    int64_t steps;        /* left                                                                   */
    size_t memory;        /* bytes left                                                             */
    int64_t now;          /* seconds since 1970                                                     */
    sandbox_piece *piece; /* the newest                                                             */
    char *next;           /* free bytes of it                                                       */
    size_t left;
    const struct builtin_table *builtins; /* what the host offers; the last has no rows */
} sandbox;

/* Ready for use; out is to be set by setjmp before anything else. */
void sandbox_start(sandbox *s, const char *name, tn_error *err);
void sandbox_free(sandbox *s);

/* Zeroed, aligned to 16 bytes, and never freed before the sandbox is. */
void *sandbox_alloc(sandbox *s, size_t bytes);
void *sandbox_array(sandbox *s, size_t count, size_t each);

void sandbox_step(sandbox *s, size_t count);
void sandbox_enter(sandbox *s); /* one level deeper */
void sandbox_leave(sandbox *s);

/* An error at the present line; "what is wrong; what to do". */
_Noreturn void sandbox_fail(sandbox *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void sandbox_out_of_memory(sandbox *s);

#endif
