/* Inside core: which function of which plugin is being called. */
#ifndef TENON_CORE_VISIT_H
#define TENON_CORE_VISIT_H

#include <tenon/error.h>

/* The texts are borrowed until the call is over. file: may be NULL. */
typedef struct visit {
    const char *who, *file, *where; /* "npu_x", "/folder/x.so", "forward"                                  */
} visit;

/* Around a call of a plugin's function. begin returns what is to be handed to end, which also seals err. */
visit visit_begin(const char *who, const char *file, const char *where);
void visit_end(visit before, tn_error *err);

/* Puts right what a plugin's function wrote to err, which may be NULL: both texts end, and hold nothing that a terminal
 * cannot bear. */
void visit_seal(tn_error *err);

#endif
