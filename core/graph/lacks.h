/* Inside core: what of a model over borrowed memory cannot be used, and why: tensors that are not lent or do not lie as
 * they must, and those that would have to be copied while the copy would not follow what is written to them. Addresses
 * of zeros stand for them, so that a model is built as ever; the sites that have one are declined with its reason. */
#ifndef TENON_CORE_LACKS_H
#define TENON_CORE_LACKS_H

#include "graph/build.h"

/* One of them: the addresses that stand for it, or the path of the module whose number it is. */
typedef struct build_lack {
    char *why, *path;
    const char *data;
    size_t bytes;
} build_lack;

/* Of a model that was borrowed; its options, as of tn_model_options. Owned by the model. */
typedef struct build_lacks {
    bool partial, weights_change, per_module;
    tn_dtype dtype; /* of most lent bytes                                                          */
    char *zeros;    /* read-only, or NULL                                                          */
    size_t used;
    build_lack *list; /* by address                                                                  */
    size_t count, capacity;
} build_lacks;

/* Can the tensor called name, which the model takes as dtype, be used as it lies? found false: it is not lent. True
 * also where it is an error, which sticks. False: *t is made of the addresses that stand for it, with ndim and shape.
 */
bool lacks_usable(graph_builder *b, const char *name, bool found, tn_dtype dtype, bool turned, int32_t ndim,
                  const int64_t *shape, tn_tensor *t);

/* The number that module has is read once, here. */
void lacks_number(graph_builder *b, const graph_module *module, const char *name);

/* Vectors that would be copied to lie side by side. False: *out stands for them. */
bool lacks_stack(graph_builder *b, const tn_tensor *rows, int64_t count, tn_tensor *out);

/* The graph is complete: its sites learn what they lack. */
void lacks_settle(graph_builder *b);

/* The first of them; NULL: nothing is lacking. */
const char *lacks_first(const build_lacks *lacks);
void lacks_free(build_lacks *lacks);

#endif
