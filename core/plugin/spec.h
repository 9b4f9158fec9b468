/* Inside core: a SPEC, which says which kernels. */
#ifndef TENON_CORE_SPEC_H
#define TENON_CORE_SPEC_H

#include "base/text.h"
#include "plugin/registry.h"

/* A parsed SPEC. AUTO: all but those left out, ids before the others. */
typedef struct kernel_spec {
    enum { SPEC_NONE, SPEC_AUTO, SPEC_IDS } mode;
    char **ids; /* by name, in the order of preference                                            */
    size_t count;
    char **without; /* those of "-id"; with AUTO only                                             */
    size_t without_count;
    text_list notes; /* what of it has no effect here                                             */
} kernel_spec;

tn_status spec_parse_list(const char *text, kernel_spec *spec, tn_error *err);

/* kernels_config_object.c: the same; or, where text begins with '{', LLaMA-Factory's kernel_config in JSON. */
tn_status spec_parse(const char *text, kernel_spec *spec, tn_error *err);
char *spec_text(const kernel_spec *spec); /* in one way of writing it; owned; NULL: no memory */
void spec_free(kernel_spec *spec);

/* The kernel of the device that a name of a SPEC stands for, or NULL. The name is its id; or LLaMA-Factory's for those
 * of an operation, several of which may do. */
registry_kernel *spec_first_kernel(const char *device, const char *name);
bool spec_stands_for(const char *name, const registry_kernel *kernel);

/* The name for the kernels of an operation, kept as long as the process, and which; NULL: it is none. op may be NULL.
 */
const char *spec_shared_name(const char *name, tn_op *op);

/* What a name of LLaMA-Factory's is that nothing here stands in for ("is a ..."); NULL: it is none of these. */
const char *spec_declined(const char *name);

/* The name nearest to a misspelt one: an id of any device, or one for an operation; or NULL. */
const char *spec_nearest(const char *name);

/* flash-linear-attention, and behind it the operators that it has. */
enum { SPEC_LINEAR_ATTENTION = 3 };
extern const char *const spec_linear_attention[SPEC_LINEAR_ATTENTION];

#endif
