/* Is a kernel right at a site? Eager computes in this process, the kernel in a child. */
#include "check/check.h"

#include "check/cut.h"
#include "check/part.h"
#include "op/op.h"

#include <stdlib.h>

/* Operations and elements of a call that is also made on one thread, and operations of one that is made there in
 * another place, too. */
static const double LIGHT = 1.5e9, LIGHT_ELEMENTS = 4e5, LIGHTEST = 4e8;

/* Each case alone, alone in another place, and on a team; the sites in between once each: another one, one that is made
 * up, one of another shape. */
enum { OTHERS = 3, OTHER_TOKENS = 3, WAYS = 3 };

/* Weights that are copied to make another site up, though there is one. */
static const size_t MOST_COPIED = (size_t)64 << 20;

/* Some tokens of a case alone, for what promises TN_SAME_BITS. */
enum { MOST_PARTS = 12 };
typedef struct check_part {
    size_t ref; /* of the case                                                                    */
    part part;
    inputs in;
    int64_t *counts;
    const fenced_run *run;
} check_part;

/* A case at a part of the site. */
enum { MOST_CUTS = 12 };
typedef struct check_cut {
    size_t ref;
    const cut *cut;
    inputs in;
    const fenced_run *run;
} check_cut;

/* A check under way. The cases come first among the references, then calls of other sites, then those of the sites that
 * are met once. */
typedef struct checking {
    const check_subject *subject;
    const check_case *cases;
    size_t case_count;
    int32_t team;
    check_other made_up;
    check_reference *refs;
    size_t ref_count, others; /* references to cases and other sites                                   */
    fenced_run *runs;
    size_t run_count;
    const fenced_run **first; /* of each reference                                                 */
    check_part parts[MOST_PARTS];
    size_t part_count;
    cut cut[CUT_PARTS];
    check_cut cuts[MOST_CUTS];
    size_t cut_count;
    bool busy; /* the team never ran at one time                                                  */
} checking;

/* With so many threads: two where there is only one, since tomorrow's machine has more. What is applied was planned for
 * as many as it may have. */
static int32_t team_of(const check_subject *s)
{
    int32_t threads = tn_thread_count();
    if (s->bound)
        return s->bound->plan.threads < threads ? s->bound->plan.threads : threads;
    return threads > 1 ? threads : 2;
}

static tn_status open_reference(checking *c, const tn_site *site, check_case size, tn_error *err)
{
    tn_status status = check_reference_open(&c->refs[c->ref_count], c->subject->device, site,
                                            c->subject->impl->optional_outputs, size, err);
    c->ref_count += status == TN_OK;
    return status;
}

/* A few tokens at another site. A router may be such that nothing can be checked there; then it is left out. */
static tn_status open_few(checking *c, const tn_site *site)
{
    check_case few = {.batch = 1, .tokens = OTHER_TOKENS, .seed = 5};
    tn_status status = site ? open_reference(c, site, few, NULL) : TN_OK;
    return status == TN_DECLINED ? TN_OK : status;
}

/* The same site with other weights, which lie one element off: real ones are never far from where files have them. */
static tn_status open_made_up(checking *c)
{
    const check_subject *s = c->subject;
    tn_status status = check_other_open(&c->made_up, s->site, s->other ? MOST_COPIED : SIZE_MAX, NULL);
    if (status == TN_OK)
        return open_few(c, &c->made_up.site);
    return status == TN_DECLINED ? TN_OK : status;
}

static tn_status open_references(checking *c, tn_error *err)
{
    const check_subject *s = c->subject;
    tn_status status = TN_OK;
    for (size_t i = 0; i < c->case_count && status == TN_OK; i++)
        status = open_reference(c, s->site, c->cases[i], err);
    if (status == TN_OK)
        status = open_few(c, s->other);
    if (status == TN_OK)
        status = open_made_up(c);
    if (status == TN_OK)
        status = open_few(c, s->unlike);
    c->others = c->ref_count;
    for (size_t i = 0; i < s->each_count && status == TN_OK; i++)
        status = open_few(c, s->each[i]);
    return status == TN_E_MEMORY ? check_no_memory(err) : status;
}

static tn_status open_run(checking *c, size_t ref, check_manner manner, tn_error *err)
{
    fenced_run *run = &c->runs[c->run_count++];
    if (!c->first[ref])
        c->first[ref] = run;
    return check_open_run(run, &c->refs[ref].in, NULL, manner, err);
}

static bool is_light(const checking *c, size_t ref, double most)
{
    const tn_call *call = &c->refs[ref].in.call;
    double elements = 0;
    for (int i = 0; i < call->in_count; i++)
        elements += (double)tn_tensor_count(&call->in[i]);
    return op_operations(call) <= most && elements <= LIGHT_ELEMENTS;
}

/* What is tried once is tried on one thread, unless it is heavy: others have shown by then what threads do. */
static int32_t team_for(const checking *c, size_t ref, bool once)
{
    return once && is_light(c, ref, LIGHTEST) ? 1 : c->team;
}

static tn_status open_part(checking *c, size_t ref, part p, tn_error *err)
{
    if (c->part_count == MOST_PARTS)
        return TN_OK;
    check_part *one = &c->parts[c->part_count++];
    const inputs *whole = &c->refs[ref].in;
    *one = (check_part){.ref = ref, .part = p, .run = &c->runs[c->run_count]};
    if (whole->call.op == TN_OP_GROUPED_MATMUL)
        one->counts = calloc((size_t)whole->call.in[1].shape[0] + 1, sizeof *one->counts);
    if (whole->call.op == TN_OP_GROUPED_MATMUL && !one->counts)
        return check_no_memory(err);
    one->in = (inputs){
        .call = part_call(&whole->call, &p, one->counts), .tokens = p.count, .cached = whole->cached, .skip = NULL};
    return check_open_run(&c->runs[c->run_count++], &one->in, NULL, (check_manner){.team = 1}, err);
}

/* The last token of the larger cases, and some in the midst. */
static tn_status open_parts(checking *c, tn_error *err)
{
    tn_status status = TN_OK;
    bool promised = c->subject->impl->traits & TN_SAME_BITS && part_by_token(c->subject->site->op);
    for (size_t i = c->case_count; promised && i-- > 0 && status == TN_OK;) {
        const tn_call *call = &c->refs[i].in.call;
        int64_t n = part_tokens(call), row = part_rows(call) - 1;
        if (c->cases[i].once || n < 2 || row < 0 || !is_light(c, i, LIGHT))
            continue;
        status = open_part(c, i, (part){row, n - 1, 1}, err);
        if (status == TN_OK && n > 2)
            status = open_part(c, i, (part){row, n / 3, (n + 1) / 2}, err);
    }
    return status;
}

static tn_status open_cut(checking *c, size_t ref, const cut *part, tn_error *err)
{
    check_cut *one = &c->cuts[c->cut_count++];
    *one = (check_cut){.ref = ref, .cut = part, .run = &c->runs[c->run_count]};
    tn_status status = cut_inputs(part, &c->refs[ref].in, &one->in, err);
    return status == TN_OK ? check_open_run(&c->runs[c->run_count++], &one->in, NULL, (check_manner){.team = 1}, err)
                           : status;
}

static bool is_cut_case(const checking *c, size_t i)
{
    return !c->cases[i].once && c->refs[i].in.tokens > 0 && is_light(c, i, LIGHT);
}

/* Few and many tokens, which go other ways, at each of the parts. */
static tn_status open_cuts(checking *c, tn_error *err)
{
    tn_status status = TN_OK;
    size_t count = 0, most = MOST_CUTS / CUT_PARTS, seen = 0;
    bool there = c->subject->cut;
    for (int part = 0; part < CUT_PARTS && there; part++)
        there = cut_open(&c->cut[part], c->subject->site, c->subject->impl, part);
    for (size_t i = 0; i < c->case_count; i++)
        count += is_cut_case(c, i);
    for (size_t i = 0; there && i < c->case_count && status == TN_OK; i++) {
        if (!is_cut_case(c, i) || seen++ % ((count + most - 1) / most) != 0)
            continue;
        for (int part = 0; part < CUT_PARTS && status == TN_OK; part++)
            status = open_cut(c, i, &c->cut[part], err);
    }
    return status;
}

/* On one thread, with scratch for one and for all; then calls of other sites; then the first again on the team, and the
 * others from the last to the first; among them what is tried once, off any multiple of more than an element. Last the
 * sites that are met once. */
static tn_status open_runs(checking *c, tn_error *err)
{
    tn_status status = TN_OK;
    const check_manner alone = {.team = 1}, apart = {.apart = true, .team = 1, .threads = c->team};
    for (size_t i = 0; i < c->case_count && status == TN_OK; i++) {
        if (!c->cases[i].once && is_light(c, i, LIGHT))
            status = open_run(c, i, alone, err);
        if (status == TN_OK && !c->cases[i].once && is_light(c, i, LIGHTEST))
            status = open_run(c, i, apart, err);
    }
    for (size_t i = c->case_count; i < c->others && status == TN_OK; i++)
        status = open_run(c, i, alone, err);
    if (status == TN_OK && c->case_count > 0)
        status = open_run(c, 0, (check_manner){.team = c->team, .whole = true}, err);
    for (size_t i = c->case_count; i-- > 1 && status == TN_OK;)
        status = open_run(c, i, (check_manner){.team = team_for(c, i, c->cases[i].once), .off = c->cases[i].once}, err);
    if (status == TN_OK)
        status = open_parts(c, err);
    if (status == TN_OK)
        status = open_cuts(c, err);
    for (size_t i = c->others; i < c->ref_count && status == TN_OK; i++)
        status = open_run(c, i, (check_manner){.team = team_for(c, i, true), .only = true}, err);
    return status;
}

/* ---- comparing -------------------------------------------------------------------------------------------------- */

static size_t ref_of(const checking *c, const fenced_run *run)
{
    size_t ref = 0;
    while (&c->refs[ref].in != run->in)
        ref++;
    return ref;
}

static bool is_part(const checking *c, const fenced_run *run)
{
    size_t i = 0, j = 0;
    while (i < c->part_count && c->parts[i].run != run)
        i++;
    while (j < c->cut_count && c->cuts[j].run != run)
        j++;
    return i < c->part_count || j < c->cut_count;
}

static tn_status compare_run(const checking *c, const fenced_run *run, compare_figures *figures, tn_error *err)
{
    const tn_site *site = c->subject->site;
    const check_reference *r = &c->refs[ref_of(c, run)];
    const fenced_run *first = c->first[ref_of(c, run)];
    double ulps = compare_ulps(&c->subject->impl->tolerance, (tn_dtype)site->meaning[TN_AXIS_DTYPE]);
    char detail[160];
    bool elsewhere = r->in.call.site != site;
    compare_call(&r->call, &run->call, ulps, r->in.skip, figures);
    if (figures->worst > 1)
        return tn_fail(err, TN_E_VERIFY, r->in.call.site->path,
                       "wrong numbers with %lld tokens: %.3g times the tolerance of %g ulps (%s)%s, %d thread%s",
                       (long long)r->in.tokens, figures->worst, ulps, figures->detail,
                       elsewhere ? " after calls with other weights" : "", (int)run->team, run->team == 1 ? "" : "s");
    if (run->team > 1 && first != run && !check_same_bits(first, run, detail, sizeof detail))
        return tn_fail(err, TN_E_VERIFY, site->path,
                       "other bits with %lld tokens on %d threads, after calls with other weights, than on one (%s)",
                       (long long)r->in.tokens, (int)run->team, detail);
    return TN_OK;
}

static tn_status compare_part(const checking *c, const check_part *p, tn_error *err)
{
    char detail[120];
    const tn_call whole = part_call(&c->first[p->ref]->call, &p->part, p->counts);
    for (int i = 0; i < whole.out_count; i++)
        if (!compare_bits(&whole.out[i], &p->run->call.out[i], detail, sizeof detail))
            return tn_fail(err, TN_E_VERIFY, c->subject->site->path,
                           "other bits for tokens %lld to %lld alone than among %lld (%s), which it declares to be the "
                           "same (TN_SAME_BITS)",
                           (long long)p->part.first, (long long)(p->part.first + p->part.count - 1),
                           (long long)part_tokens(&c->refs[p->ref].in.call), detail);
    return TN_OK;
}

static tn_status compare_cut(const checking *c, const check_cut *p, tn_error *err)
{
    char detail[120];
    const tn_call whole = cut_call(p->cut, &c->first[p->ref]->call);
    for (int i = 0; i < whole.out_count; i++)
        if (!compare_bits(&whole.out[i], &p->run->call.out[i], detail, sizeof detail))
            return tn_fail(err, TN_E_VERIFY, c->subject->site->path,
                           "other bits with %lld tokens for some rows or heads alone than among all (%s), where each "
                           "rank has some (tensor)",
                           (long long)p->in.tokens, detail);
    return TN_OK;
}

/* Gradients of the cases that they can be measured at, after forward was found right. */
static tn_status compare_gradients_of(const checking *c, compare_figures *figures, tn_error *err)
{
    enum { MOST_TOKENS = 300 };
    check_passed cases[CHECK_MOST_CASES];
    size_t count = 0;
    for (size_t i = 0; i < c->case_count; i++)
        if (!c->cases[i].once && c->cases[i].profile != INPUTS_OUTLIERS &&
            (c->subject->all_gradients || (c->refs[i].in.tokens <= MOST_TOKENS && is_light(c, i, LIGHT))))
            cases[count++] = (check_passed){c->cases[i].profile, &c->refs[i], c->first[i]};
    check_backward b = {.subject = c->subject, .cases = cases, .case_count = count, .team = c->team};
    tn_status status = check_gradients(&b, err);
    /* Figures in ulps are forward's, whose tolerance is another. */
    if (b.figures.worst > figures->worst)
        figures->worst = b.figures.worst;
    return status;
}

static bool has_weights(const tn_site *site)
{
    int role = 0;
    while (role < TN_ROLE_MAX && site->param[role].count == 0)
        role++;
    return role < TN_ROLE_MAX;
}

static void cover(const checking *c)
{
    check_coverage here = {.least_tokens = INT64_MAX,
                           .threads = c->team,
                           .other_weights = c->ref_count > c->case_count || !has_weights(c->subject->site),
                           .gradients = c->subject->gradients,
                           .busy = c->busy,
                           .any = c->case_count > 0};
    for (size_t i = 0; i < c->case_count; i++) {
        const inputs *in = &c->refs[i].in;
        here.least_tokens = in->tokens < here.least_tokens ? in->tokens : here.least_tokens;
        here.most_tokens = in->tokens > here.most_tokens ? in->tokens : here.most_tokens;
        here.most_cached = in->cached > here.most_cached ? in->cached : here.most_cached;
    }
    check_coverage_add(c->subject->coverage, &here);
}

static tn_status make_check(checking *c, compare_figures *figures, tn_error *err)
{
    const check_subject *s = c->subject;
    tn_status status = open_references(c, err);
    if (status == TN_OK)
        status = open_runs(c, err);
    fenced_trial t = {.device = s->device,
                      .site = s->site,
                      .impl = s->impl,
                      .bound = s->bound,
                      .max_tokens = GRAPH_MAX_TOKENS,
                      .threads = c->team,
                      .runs = c->runs,
                      .run_count = c->run_count};
    if (status == TN_OK)
        status = check_execute(s, &t, err);
    c->busy = t.busy;
    for (size_t i = 0; i < c->run_count && status == TN_OK; i++)
        status = is_part(c, &c->runs[i]) ? TN_OK : compare_run(c, &c->runs[i], figures, err);
    for (size_t i = 0; i < c->part_count && status == TN_OK; i++)
        status = compare_part(c, &c->parts[i], err);
    for (size_t i = 0; i < c->cut_count && status == TN_OK; i++)
        status = compare_cut(c, &c->cuts[i], err);
    if (status == TN_OK && s->gradients)
        status = compare_gradients_of(c, figures, err);
    if (status == TN_OK && s->coverage)
        cover(c);
    return status;
}

static tn_status check_here(const check_subject *s, const check_case *cases, size_t case_count,
                            compare_figures *figures, tn_error *err)
{
    size_t refs = case_count + OTHERS + s->each_count;
    checking c = {.subject = s, .cases = cases, .case_count = case_count, .team = team_of(s)};
    c.refs = calloc(refs, sizeof *c.refs);
    c.runs = calloc(WAYS * refs + MOST_PARTS + MOST_CUTS, sizeof *c.runs);
    c.first = calloc(refs, sizeof *c.first);
    tn_status status = c.refs && c.runs && c.first ? make_check(&c, figures, err) : check_no_memory(err);
    for (size_t i = 0; i < c.run_count; i++)
        fenced_close_run(&c.runs[i]);
    for (size_t i = 0; i < c.ref_count; i++)
        check_reference_close(&c.refs[i]);
    for (size_t i = 0; i < c.part_count; i++)
        free(c.parts[i].counts);
    for (size_t i = 0; i < c.cut_count; i++)
        inputs_close(&c.cuts[i].in);
    for (int part = 0; part < CUT_PARTS; part++)
        cut_close(&c.cut[part]);
    check_other_close(&c.made_up);
    free(c.refs);
    free(c.runs);
    free(c.first);
    return status;
}

tn_status check_site(const check_subject *s, const check_case *cases, size_t case_count, compare_figures *figures,
                     tn_error *err)
{
    compare_figures local = {0};
    check_subject whole = *s;
    figures = figures ? figures : &local;
    if (!s->device->ops->host_memory)
        return check_far(s, figures, err);
    tn_status status = check_here(s, cases, case_count, figures, err);
    whole.cut = false;
    if (status != TN_DECLINED || !s->cut)
        return status;
    tn_error_clear(err); /* it may be a part that the kernel has no plan for                                */
    return check_here(&whole, cases, case_count, figures, err);
}
