/* Inside core: a run remembered call by call, and the gradients of all that went into it. Memory is the host's. */
#ifndef TENON_CORE_TAPE_H
#define TENON_CORE_TAPE_H

#include "run/run.h"

/* Where gradients of parameters are added up, in f32. find gives that of t's first element, from which the others lie
 * as t's own do, counted in elements; NULL: t is no parameter, or its gradient is not wanted. */
typedef struct tape_sums {
    float *(*find)(void *ctx, const tn_tensor *t);
    void *ctx;
} tape_sums;

/* Gradients that take more bytes are given back as memory where they are forgotten: a page that is taken again costs as
 * much as two that are written to. */
enum { TAPE_MUCH = 32 << 20 };

/* A call, and its inputs as they were: where they lie, or in a copy where something was written over them. */
typedef struct tape_call {
    const graph_site *site; /* NULL: a step                                                        */
    tn_call call;
    tn_tensor read[TN_CALL_TENSORS];
    size_t mark; /* of the arena: what lies behind it came later                                   */
} tape_call;

/* While a tape runs its arena takes nothing back of what forward calls made (steps_release). The gradient of an element
 * of the arena lies at the same place of a second one, which is zero where nothing has come yet. */
typedef struct tape {
    arena *arena;
    tape_sums sums;
    const void *tokens; /* ids at this address are tokens, of which this one's row of an embedding ...    */
    int64_t padding;    /* ... has no gradient; -1: there is none                                        */
    tape_call *calls;
    size_t count, capacity;
    size_t high;            /* of the arena: nothing that was met lies behind it                      */
    char *gradients;        /* arena->size bytes                                                    */
    unsigned char *touched; /* for each ARENA_ALIGN bytes: not zero any more                     */
} tape;

/* Memory for activations and gradients is taken as it is used, bytes of addresses of either. a is initialised, and
 * closed by tape_close. */
tn_status tape_open(tape *t, arena *a, const device *device, size_t bytes, tape_sums sums, tn_error *err);
void tape_close(tape *t);

/* Forgets all calls, and gives memory back. */
void tape_reset(tape *t);

/* Remembers a call that is about to be performed, and saves what it will write over and backward reads. */
tn_status tape_record(tape *t, const graph_site *site, const tn_call *call, tn_error *err);

/* Where the gradient of x lies, which is in the arena: marked as not zero, for the caller to write. */
tn_tensor tape_gradient(tape *t, const tn_tensor *x);

/* The same of any view there: without marking; is anything of it not zero; mark it; make it zero. */
tn_tensor tape_place(const tape *t, const tn_tensor *x);
bool tape_is_touched(tape *t, const tn_tensor *g);
void tape_touch(tape *t, const tn_tensor *g);
void tape_clear(tape *t, const tn_tensor *g);

/* No gradients of what lies from mark on. */
void tape_forget(tape *t, size_t mark);

/* Does x lie in the arena? Do two views have bytes in common, as far as their first and last ones tell? */
bool tape_holds(const tape *t, const tn_tensor *x);
bool tape_overlap(const tn_tensor *a, const tn_tensor *b);

/* Performs the backward of all calls but the first `count`, the last one first, and forgets them. What of the arena was
 * taken since `mark` is free again. */
tn_status tape_backward(tape *t, size_t count, size_t mark, tn_error *err);

#endif
