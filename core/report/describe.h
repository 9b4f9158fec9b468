/* Inside core: the module tree as text. */
#ifndef TENON_CORE_DESCRIBE_H
#define TENON_CORE_DESCRIBE_H

#include "base/text.h"
#include "select/target.h"

typedef struct describe_view {
    const apply_target *target;
    const tn_report *report;
    bool explain;
} describe_view;

/* What the report says of a module's site, or NULL when it has none. */
const tn_site_report *describe_site(const describe_view *view, const graph_module *module);

/* The same of the site around it that is the module's too (the norm of a sum), or NULL. */
const tn_site_report *describe_outer_site(const describe_view *view, const graph_module *module);

/* That one where there is something to say of it: a kernel has it, or reasons are asked for. */
const tn_site_report *describe_shown_outer(const describe_view *view, const graph_module *module);

/* The kernel whose work covers the site, or NULL. */
const char *describe_covering(const describe_view *view, const tn_site_report *site);

/* describe_explain.c: has the kernel an implementation of the site's operation? */
bool describe_decides(const describe_view *view, const tn_site_report *site, const char *kernel);

/* Lines on the operations that no kernel implements, and on the kernels whose operations no site has. */
void describe_undecided(const describe_view *view, text *out);

/* Modules with the same parent, numbered names and equal insides; or a single one. */
typedef struct describe_group {
    const graph_module *first;
    size_t count;
    text name; /* "self_attn", "0-27", "0,2,4-6"; owned                                          */
} describe_group;

/* The children of a module, in order, equal ones together. describe_fold.c. Owned: describe_groups_free. */
describe_group *describe_fold(const describe_view *view, const graph_module *parent, size_t *count);
void describe_groups_free(describe_group *groups, size_t count);

/* describe.c: the text of a report (NULL: of what is applied). Owned: free(). */
char *describe_target(apply_target *target, const tn_report *report, tn_graph_format format, bool explain,
                      tn_error *err);

/* One measurement: of a kernel at the sites of a shape. Starts as {0}. */
typedef struct describe_measured {
    size_t next_site, next_verdict;
    tn_op op;
    size_t sites;
    const tn_verdict *verdict;
} describe_measured;

/* The next one that a report tells; false: there is no more. describe_measured.c */
bool describe_measured_next(const tn_report *report, describe_measured *m);

void describe_text(const describe_view *view, text *out);
void describe_json(const describe_view *view, text *out);
void describe_dot(const describe_view *view, text *out);

#endif
