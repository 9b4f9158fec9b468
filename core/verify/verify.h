/* Inside core: kernels against eager at the sites of a model, with figures. */
#ifndef TENON_CORE_VERIFY_H
#define TENON_CORE_VERIFY_H

#include "check/check.h"
#include "plugin/registry.h"
#include "select/target.h"

/* The worst of one gradient. */
typedef struct verify_gradient {
    compare_gradient figures;
    const char *site;
} verify_gradient;

/* One kernel at the sites of one operation. */
typedef struct verify_record {
    const registry_kernel *kernel;
    tn_verify_row row;
    check_coverage coverage;
    const graph_site *last; /* the site tried last                                                  */
    verify_gradient gradients[COMPARE_GRADIENTS];
    double gradient_ulps; /* their tolerance                                                        */
} verify_record;

/* verify_site.c: tries an implementation at a site and adds the figures. bound: what is applied there, or NULL. whole:
 * with all the calls of a first use, and not with one. *how is what the check said. An error is only what is not the
 * kernel's fault. */
typedef struct verify_subject {
    const apply_target *target;
    const graph_site *site;
    const tn_impl *impl;
    const graph_binding *bound;
    bool whole;
    const tn_site *unlike; /* one of another shape that the implementation takes, or NULL              */
} verify_subject;

tn_status verify_site(const verify_subject *s, verify_record *record, tn_status *how, tn_error *why);

/* It failed before it could be tried. */
void verify_site_refused(verify_record *record, const graph_site *site, const char *reason);

/* verify_rows.c: records, one for each kernel and operation, as rows of the interface. */
typedef struct verify_records {
    verify_record **list;
    size_t count, capacity;
} verify_records;

/* The record, made when there is none; NULL: no memory. */
verify_record *verify_rows_find(verify_records *records, const registry_kernel *kernel, const tn_site *site,
                                const tn_impl *impl);

/* The rows; TN_E_VERIFY when one failed. */
tn_status verify_rows_give(const verify_records *records, tn_verify_row ***rows, size_t *count, tn_error *err);
void verify_rows_close(verify_records *records);

enum { VERIFY_TOKENS = 16 };

#endif
