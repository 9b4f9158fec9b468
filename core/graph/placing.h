/* Inside core/graph: tensors of files on their way to where the device computes. The first error sticks in b. */
#ifndef TENON_CORE_PLACING_H
#define TENON_CORE_PLACING_H

#include "graph/build.h"

/* Memory of the device for a tensor, and of the host to fill it in: the same where the host can address it. */
typedef struct placing {
    void *memory, *host;
    size_t bytes;
} placing;

bool placing_begin(graph_builder *b, const char *name, size_t bytes, placing *p);
bool placing_end(graph_builder *b, const placing *p);

/* Leaves t where it is mapped when it can be used there, else copies it into the device's memory in that dtype. */
bool placing_tensor(graph_builder *b, const char *name, tn_dtype dtype, bool copies, tn_tensor *t);

/* Places t with its last two dimensions changed over: [..,m,n] in the file becomes [..,n,m]. */
bool placing_turned(graph_builder *b, const char *name, tn_dtype dtype, tn_tensor *t);

/* The same of some ranges of its dimension dim, which become one tensor. */
bool placing_ranges(graph_builder *b, const char *name, tn_dtype dtype, const build_ranges *ranges, int32_t dim,
                    tn_tensor *t);

/* Notes which bytes of the file's tensor called name will be read for form, with what tells how it is quantised. */
void placing_mark(graph_builder *b, const char *name, const build_form *form, const tn_tensor *t);

/* A tensor as a graph in mixed precision has it, of which sites will have views. */
void placing_note(graph_builder *b, const tn_tensor *t);

/* Tensors of a site's role in the site's type, if they are in the graph's. */
void placing_narrow(graph_builder *b, const tn_site *site, tn_role role, tn_tensor *tensors, int64_t count);

#endif
