/* Inside core: some rows of what a site gives, or some of its heads, as a site of their own, as a rank has them
 * (--parallel tensor): they must have the same bits as in the whole. */
#ifndef TENON_CORE_CUT_H
#define TENON_CORE_CUT_H

#include "check/inputs.h"

enum { CUT_PARTS = 2 };

/* Views of the whole's parameters; close with cut_close. */
typedef struct cut {
    tn_site site;
    tn_tensor *params;
    int part;
} cut;

/* Part 0 or 1 of a site, uneven where it goes. false: it cannot be cut into views, the implementation does not match
 * the part, or there is no memory. cut_close in any case. */
bool cut_open(cut *c, const tn_site *whole, const tn_impl *impl, int part);
void cut_close(cut *c);

/* A call of the part: views of the whole's tensors. */
tn_call cut_call(const cut *c, const tn_call *whole);

/* The same with inputs of its own. inputs_close in any case. */
tn_status cut_inputs(const cut *c, const inputs *whole, inputs *in, tn_error *err);

#endif
