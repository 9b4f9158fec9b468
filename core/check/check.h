/* Inside core: is a kernel right at a site? */
#ifndef TENON_CORE_CHECK_H
#define TENON_CORE_CHECK_H

#include "check/compare.h"
#include "check/fenced.h"
#include "check/inputs.h"
#include "run/run.h"

/* What checks have covered, for people; grows by check_coverage_add. */
typedef struct check_coverage {
    int64_t least_tokens, most_tokens; /* of a call                                               */
    int64_t most_cached;               /* positions behind a query; 0: no attention                */
    int32_t threads;                   /* one and so many                                          */
    bool other_weights;                /* another site's weights before, in the same process       */
    bool gradients;
    bool busy; /* the machine never let the whole team run at one time: what goes wrong between threads was not seen */
    bool any;
} check_coverage;

void check_coverage_add(check_coverage *c, const check_coverage *more);

/* "0 to 600 tokens, 1 and 2 threads, normal, scaled and outlying inputs, after other weights". */
void check_coverage_text(const check_coverage *c, char *text, size_t size);

/* An implementation at a site. */
typedef struct check_subject {
    const device *device;
    const tn_site *site;
    const tn_impl *impl;
    const graph_binding *bound; /* what is applied there: its plan and packed memory are used; NULL: they are made in
                                   the child                                                         */
    bool gradients;             /* backward is checked, too                                      */
    bool cut;                   /* what it gives for some rows or heads must not hang on how many there are */
    bool all_gradients;         /* ... in every case: else not in those of many tokens, or heavy ones */
    const tn_site *other;       /* one of the same shape with other weights; NULL: a copy is made up   */
    const tn_site *unlike;      /* one of another shape that it takes, or NULL                        */
    const tn_site *const *each; /* more of the same shape, each of which gets a few tokens; each_count of them */
    size_t each_count;
    check_coverage *coverage;           /* what was tried is added when it passed; or NULL                   */
    compare_gradient *gradient_figures; /* of each gradient, COMPARE_GRADIENTS of them, or NULL             */
    bool *loads;                        /* set where it loads libraries when it is called; or NULL     */
    double *patience;                   /* as fenced_trial's                                           */
    bool (*go_on)(void *ctx);           /* as fenced_trial's, with go_on_ctx                          */
    void *go_on_ctx;
    const device *cpu; /* computes eagerly where device's memory is not the host's         */
} check_subject;

/* Runs the implementation on made-up inputs, in one child process, and compares it with eager: each case on one thread
 * and on all of them, the same bits; a heavy one on all of them only. In between the other sites are called. Returns
 * TN_OK, TN_E_VERIFY (wrong numbers), TN_E_KERNEL (crashed, hung, wrote outside its memory, failed), TN_DECLINED (this
 * site cannot be checked) or another error; the message says with how many tokens. figures may be NULL. */
tn_status check_site(const check_subject *s, const check_case *cases, size_t case_count, compare_figures *figures,
                     tn_error *err);

/* check_far.c: the same where the host cannot touch the device's memory. An opened device cannot be taken into a child,
 * so its kernel runs in this process; cases are those of check_device. Without s->cpu TN_DECLINED. */
tn_status check_far(const check_subject *s, compare_figures *figures, tn_error *err);

enum { CHECK_FIRST_USE = 64, CHECK_MOST_CASES = 64 };

/* Every site of a first use sees a call of so many tokens, attention so many positions behind a query. */
enum { CHECK_CHUNK = 512, CHECK_CACHED = 4200 };

/* check_cases.c: the calls that a first use is checked with: none, one to nine, around powers of two, and some numbers
 * of tokens that follow from the site's path, a session's chunk; attention behind short and long caches; inputs of
 * every profile. Heavy sites get fewer in the middle. Returns how many. */
size_t check_first_use_cases(const tn_site *site, check_case cases[CHECK_FIRST_USE]);

/* ---- check_run.c: what checks are made of ---- */

/* The eager results of one call. Outputs are owned by it; optional: the optional ones that it has too, as
 * tn_impl.optional_outputs. */
typedef struct check_reference {
    inputs in;
    tn_call call;
    void *memory;
} check_reference;

tn_status check_reference_open(check_reference *r, const device *device, const tn_site *site, uint32_t optional,
                               check_case size, tn_error *err);
void check_reference_close(check_reference *r);

/* How a call in a child is made. */
typedef struct check_manner {
    bool apart;      /* at the start of its memory, with rows apart and in place; else at the end of it  */
    int32_t team;    /* threads that take part                                                    */
    int32_t threads; /* that scratch is planned for; 0: as many                                    */
    bool whole;      /* with the plan that a model would call it with, whatever the number of tokens */
    bool off;        /* everything one element off a multiple of anything larger                         */
    bool only;       /* its site is met in this call and in no other                                     */
} check_manner;

/* Maps the memory of a call, forward or (wanted) with gradients, and gives it a time limit. fenced_close_run. */
tn_status check_open_run(fenced_run *run, const inputs *in, const gradients *wanted, check_manner manner,
                         tn_error *err);

/* The same bits in every output, or gradient? Otherwise detail says where they differ. */
bool check_same_bits(const fenced_run *a, const fenced_run *b, char *detail, size_t detail_size);

/* Makes the calls, and notes for the subject what they showed of the kernel. */
tn_status check_execute(const check_subject *s, fenced_trial *t, tn_error *err);

/* Out of memory while checking. */
tn_status check_no_memory(tn_error *err);

/* ---- parts of a check ---- */

/* A call whose forward was found right. */
typedef struct check_passed {
    inputs_profile profile;
    const check_reference *eager;
    const fenced_run *forward; /* the kernel's                                                      */
} check_passed;

/* check_gradients.c: the gradients of an implementation at a site. */
typedef struct check_backward {
    const check_subject *subject;
    const check_passed *cases;
    size_t case_count;
    int32_t team;    /* besides one thread                                                       */
    bool everywhere; /* the same bits with rows apart, too                                        */
    /* The worst figure of those that passed, with its call's tokens.                              */
    compare_figures figures;
    int64_t worst_tokens;
} check_backward;

/* All gradients of each case, on one thread and on a team; of the case of three tokens also each alone, and without the
 * gradients of the outputs. Messages as check_site's. */
tn_status check_gradients(check_backward *b, tn_error *err);

/* check_other.c: a site like another, of the same shape with other weights. */
typedef struct check_other {
    tn_site site;
    tn_tensor *tensors;
    void *memory;
} check_other;

/* Its tensors begin one element behind a multiple of 64 bytes. TN_DECLINED where that would take too much memory, or
 * more than most bytes. Close with check_other_close in any case. */
tn_status check_other_open(check_other *o, const tn_site *like, size_t most, tn_error *err);
void check_other_close(check_other *o);

#endif
