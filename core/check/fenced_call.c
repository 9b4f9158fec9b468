/* One call in the child that tries a kernel: its inputs are laid out read-only, its outputs and scratch between guard
 * pages, and what the kernel does to the process and to its own variables is looked at behind it. */
#include "base/clock.h"
#include "base/text.h"
#include "check/fenced_child.h"
#include "check/layout.h"
#include "device/visit.h"
#include "op/op.h"
#include "run/planning.h"
#include "run/run.h"

#include <string.h>
#include <sys/wait.h>

double fenced_seconds(double operations)
{
    double plain = operations < CHECK_SLOWEST_LARGE ? operations : CHECK_SLOWEST_LARGE;
    return CHECK_LEAST_SECONDS + plain / CHECK_SLOWEST + (operations - plain) / CHECK_SLOWEST_LARGE;
}

/* Each step has its limit in the child; this is for one that the child's clock does not reach. */
/* ---- giving up -------------------------------------------------------------------------------------------------- */

int fenced_give_up(fenced_note *note, tn_status status, const char *text)
{
    note->status = status;
    text_cut(note->message, sizeof note->message, "%s", text);
    return 1;
}

static int give_up_error(fenced_note *note, tn_status status, tn_error *err)
{
    char text[sizeof note->message];
    visit_seal(err);
    text_cut(text, sizeof text, "failed: %s", err->message);
    return fenced_give_up(note, status, status == TN_DECLINED ? err->message : text);
}

/* The kernel failed: whatever it returned is no status of ours. */
static int give_up_failed(fenced_note *note, tn_status status, tn_error *err)
{
    if (!err->message[0])
        tn_fail(err, TN_E_KERNEL, NULL, "it returned %d and says no more", (int)status);
    return give_up_error(note, TN_E_KERNEL, err);
}

/* Did it leave anything of the process, or of a thread of the team, other than it was? */
static bool changed_process(fenced_child *c)
{
    char what[256], text[320];
    unsigned workers = threads_changed();
    bool differs = hoststate_differs(c->before, false, what, sizeof what);
    if (waitid(P_ALL, 0, &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) == 0) {
        fenced_give_up(c->note, TN_E_KERNEL, "left a process behind");
        return true;
    }
    if (!differs && !workers)
        return false;
    if (!differs)
        text_cut(what, sizeof what, "%s", workers & THREADS_CONTROL ? "floating-point control" : "signal mask");
    text_cut(text, sizeof text, "left the %s changed", what);
    fenced_give_up(c->note, TN_E_KERNEL, text);
    return true;
}

/* After a call: what its variables say. */
static int judge_state(fenced_child *c, bool first, bool *fresh)
{
    char what[160], text[320];
    state_change change = state_after(c->watch, first, what, sizeof what);
    *fresh = change == STATE_FRESH;
    if (change != STATE_KEPT)
        return 0;
    text_cut(text, sizeof text, "keeps state between calls: %s changes in each; keep it in scratch or in packed memory",
             what);
    return fenced_give_up(c->note, TN_E_KERNEL, text);
}

/* ---- planning --------------------------------------------------------------------------------------------------- */

/* What its plan answered, asked when the clock said began. One that takes a while is not noticed when it is asked once;
 * asked for every call it keeps the host waiting. */
static tn_status planned(fenced_child *c, double began, tn_status status, tn_error *err)
{
    c->note->plan_seconds += clock_seconds() - began;
    if (!c->t->patience || c->note->plan_seconds <= *c->t->patience)
        return status;
    tn_error_clear(err);
    return tn_fail(err, TN_E_KERNEL, NULL, "its plans took %.1f s so far, and a plugin has no more time for them",
                   c->note->plan_seconds);
}

/* ---- laying a call out ------------------------------------------------------------------------------------------ */

static fenced_region *add_region(fenced_child *c, fenced_kind kind)
{
    fenced_region *r = &c->regions[c->count++];
    *r = (fenced_region){.kind = kind};
    return r;
}

/* Changes the sign of every element: the highest bit, in the last byte on this machine. */
static void turn(const tn_tensor *t, const layout *b)
{
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0; i < b->count; i++)
        for (int64_t j = 0; j < b->length; j++)
            ((unsigned char *)t->data)[(size_t)(i * b->step + j + 1) * size - 1] ^= 0x80;
}

/* What it reads; what it writes was mapped before. */
static tn_status place_inputs(fenced_child *c, fenced_run *run, bool turned, tn_error *err)
{
    const op_row *row = op_find(run->call.op);
    for (size_t i = 0; i < run->place_count; i++) {
        fenced_place *p = &run->places[i];
        if (!p->from)
            continue;
        layout b = layout_set(p->tensors, run->padded);
        if (p->same >= 0) {
            p->tensors->data = run->places[p->same].tensors->data;
            layout_copy(&b, p->from, p->tensors);
        } else {
            fenced_region *r = add_region(c, p->kind);
            tn_status status = fenced_open_place(run, p, &r->fence, &c->spares, err);
            if (status != TN_OK)
                return status;
        }
        int input = p->kind == FENCED_INPUT ? (int)(p->tensors - run->call.in) : -1;
        if (turned &&
            (p->kind == FENCED_UPSTREAM || (input >= 0 && op_input_has_gradient(row, input, p->tensors->dtype))))
            turn(p->tensors, &b);
        if (p->same < 0)
            fence_read_only(&c->regions[c->count - 1].fence, NULL);
    }
    return TN_OK;
}

/* Memory that a kernel asked for. Without much of it, it is the kernel that asks for too much. */
static tn_status take_fence(fence_spares *spares, fence *f, size_t bytes, fence_side side, const char *what,
                            tn_error *err)
{
    tn_status status =
        spares ? fence_open_spare(spares, f, bytes, 64, 0, side, err) : fence_open(f, bytes, 64, 0, side, false, err);
    if (status == TN_OK || bytes < PLANNING_LARGE)
        return status;
    tn_error_clear(err);
    return tn_fail(err, TN_E_KERNEL, NULL, "it asks for %zu bytes of %s, which cannot be had here", bytes, what);
}

int fenced_open_call(fenced_child *c, fenced_run *run, const fenced_prepared *site, bool turned, fenced_call *call)
{
    const fenced_trial *t = c->t;
    tn_error err = TN_ERROR_INIT;
    tn_plan like = site->plan;
    if (!t->bound)
        like.threads = run->threads > 0 ? run->threads : run->team;
    *call = (fenced_call){.run = run, .site = site, .first = c->count};
    call->plan = like;
    tn_status status = TN_OK;
    double began = clock_seconds();
    if (!run->whole)
        status = run_plan_for(t->impl, site->site, &like, run->in->tokens, &call->plan, &err);
    status = planned(c, began, status, &err);
    if (status != TN_OK)
        return give_up_error(c->note, status, &err);
    for (size_t i = 0; i < run->place_count; i++)
        if (!run->places[i].from)
            add_region(c, run->places[i].kind)->fence = run->places[i].fence;
    call->inputs = c->count;
    size_t bytes = run->wanted ? call->plan.backward_scratch_bytes : call->plan.scratch_bytes;
    fenced_region *scratch = add_region(c, FENCED_SCRATCH);
    call->scratch = &scratch->fence;
    if (bytes > 0 && (status = take_fence(&c->spares, &scratch->fence, bytes, run->side, "scratch", &err)) == TN_OK)
        fence_fill(&scratch->fence, (fence_contents)(c->calls % FENCE_CONTENTS));
    if (status == TN_OK)
        status = place_inputs(c, run, turned, &err);
    run->call.queue = t->device->queue;
    run->call.packed = site->packed;
    run->call.scratch = scratch->fence.data;
    return status == TN_OK ? 0 : give_up_error(c->note, status, &err);
}

void fenced_close_call(fenced_child *c, fenced_call *call)
{
    for (size_t i = call->inputs; i < c->count; i++)
        fence_give_back(&c->spares, &c->regions[i].fence);
    c->count = call->first;
}

tn_status fenced_make_call(const fenced_child *c, const fenced_call *call, tn_error *err)
{
    const fenced_trial *t = c->t;
    call->run->call.plan = &call->plan;
    tn_status status = (call->run->wanted ? t->impl->backward : t->impl->forward)(&call->run->call, err);
    return status == TN_OK ? device_sync(t->device, err) : status;
}

int fenced_watch_call(fenced_child *c, fenced_call *call, bool *fresh)
{
    tn_error err = TN_ERROR_INIT;
    bool *called = &c->called[call->run->wanted ? 2 : 1];
    fenced_limit_time(c, call->run->seconds);
    state_before(c->watch, call->plan.user, sizeof call->plan.user / sizeof *call->plan.user);
    tn_status status = fenced_make_call(c, call, &err);
    c->calls++;
    if (status != TN_OK)
        return give_up_failed(c->note, status, &err);
    if (judge_state(c, !*called, fresh) != 0 || changed_process(c))
        return 1;
    *called = true;
    if (call->scratch->map && !fence_intact(call->scratch))
        return fenced_give_up(c->note, TN_E_KERNEL, "wrote outside its scratch");
    return 0;
}

/* ---- what a run has written ------------------------------------------------------------------------------------- */

size_t fenced_result_bytes(const fenced_run *run)
{
    size_t bytes = 0;
    for (size_t i = 0; i < run->place_count; i++)
        bytes += run->places[i].from ? 0 : run->places[i].fence.bytes;
    return bytes;
}

unsigned char *fenced_copy_results(const fenced_run *run)
{
    unsigned char *copy = fenced_take_memory(fenced_result_bytes(run) + 1);
    size_t at = 0;
    for (size_t i = 0; copy && i < run->place_count; i++) {
        const fenced_place *p = &run->places[i];
        if (!p->from)
            memcpy(copy + at, p->fence.data, p->fence.bytes);
        at += p->from ? 0 : p->fence.bytes;
    }
    return copy;
}

bool fenced_same_results(const fenced_run *run, const unsigned char *copy)
{
    bool same = true;
    for (size_t i = 0; i < run->place_count; i++) {
        const fenced_place *p = &run->places[i];
        same = same && (p->from || !memcmp(copy, p->fence.data, p->fence.bytes));
        copy += p->from ? 0 : p->fence.bytes;
    }
    return same;
}

void fenced_restore_results(const fenced_run *run, const unsigned char *copy)
{
    for (size_t i = 0; i < run->place_count; i++) {
        const fenced_place *p = &run->places[i];
        if (!p->from)
            memcpy(p->fence.data, copy, p->fence.bytes);
        copy += p->from ? 0 : p->fence.bytes;
    }
}

/* ---- planning and packing ---- */

int fenced_watch_plan(fenced_child *c, const tn_site *site, tn_plan *plan, const char *manner)
{
    tn_error err = TN_ERROR_INIT;
    bool fresh, first = !c->called[0];
    c->note->stage = STAGE_PLAN;
    c->note->manner = manner;
    fenced_limit_time(c, CHECK_LEAST_SECONDS);
    state_before(c->watch, NULL, 0);
    double began = clock_seconds();
    tn_status status = c->t->impl->plan ? planning_ask(c->t->impl, site, plan, &err) : TN_OK;
    status = planned(c, began, status, &err);
    if (status != TN_OK)
        return status == TN_DECLINED ? give_up_error(c->note, status, &err) : give_up_failed(c->note, status, &err);
    if (judge_state(c, first, &fresh) != 0 || changed_process(c))
        return 1;
    c->called[0] = true;
    return 0;
}

/* As the host would. */
static int plan_and_pack(fenced_child *c, fenced_prepared *p)
{
    const fenced_trial *t = c->t;
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    p->plan = (tn_plan){.size = sizeof p->plan, .threads = t->threads, .max_tokens = t->max_tokens};
    if (fenced_watch_plan(c, p->site, &p->plan, "") != 0)
        return 1;
    c->note->stage = STAGE_PACK;
    fenced_limit_time(c, fenced_seconds((double)p->plan.packed_bytes));
    p->packed_region = c->count;
    fenced_region *r = add_region(c, FENCED_PACKED);
    if (p->plan.packed_bytes > 0)
        status = take_fence(NULL, &r->fence, p->plan.packed_bytes, FENCE_END, "packed weights", &err);
    if (status != TN_OK)
        return give_up_error(c->note, status, &err);
    if (p->plan.packed_bytes > 0 && t->impl->pack)
        status = t->impl->pack(p->site, &p->plan, r->fence.data, t->device->queue, &err);
    if (status == TN_OK)
        status = device_sync(t->device, &err);
    if (status != TN_OK)
        return give_up_failed(c->note, status, &err);
    if (changed_process(c))
        return 1;
    if (r->fence.map && !fence_intact(&r->fence))
        return fenced_give_up(c->note, TN_E_KERNEL, "wrote outside its packed memory");
    if (r->fence.map)
        fence_read_only(&r->fence, NULL);
    p->packed = r->fence.data;
    return 0;
}

fenced_prepared *fenced_prepare(fenced_child *c, const tn_site *site)
{
    const fenced_trial *t = c->t;
    for (size_t i = 0; i < c->site_count; i++)
        if (c->sites[i].site == site)
            return &c->sites[i];
    fenced_prepared *p = &c->sites[c->site_count++];
    p->site = c->note->site = site;
    fenced_params_protect(site);
    p->edges = fenced_params_edges(site);
    if (site == t->site && t->bound) {
        p->plan = t->bound->plan;
        p->packed = t->bound->packed;
        return p;
    }
    return plan_and_pack(c, p) == 0 ? p : NULL;
}

void fenced_release(fenced_child *c, const fenced_run *run, fenced_prepared *p)
{
    if (!run->only || (p->site == c->t->site && c->t->bound))
        return;
    fence_close(&c->regions[p->packed_region].fence);
    p->packed = NULL;
}

int fenced_look_at_edges(fenced_child *c)
{
    for (size_t i = 0; i < c->site_count; i++)
        if (fenced_params_edges(c->sites[i].site) != c->sites[i].edges) {
            c->note->run -= c->note->run > 0;
            return fenced_give_up(c->note, TN_E_KERNEL, "wrote to its parameters, which are read-only");
        }
    return 0;
}
