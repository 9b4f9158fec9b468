/* Copies of a case's tensors that calls go round. */
#include "bench_set.h"

#include "attempt.h"

#include <stdlib.h>
#include <string.h>

static size_t padded(const tn_tensor *t)
{
    return t->data ? ((size_t)attempt_span(t) + 63) / 64 * 64 : 0;
}

static size_t params_bytes(const tn_param *params)
{
    size_t bytes = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < params[role].count; i++)
            bytes += padded(&params[role].tensors[i]);
    return bytes;
}

size_t bench_set_bytes(const check_case *c)
{
    size_t bytes = params_bytes(c->site.param) + params_bytes(c->grads.param);
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        bytes += padded(&c->call.in[i]) + (c->alias[i] < 0 ? padded(&c->call.out[i]) : 0);
        bytes += padded(&c->grads.out[i]) + (c->grad_alias[i] < 0 ? padded(&c->grads.in[i]) : 0);
    }
    return bytes;
}

static char *take(tn_tensor *t, char *at)
{
    if (!t->data)
        return at;
    memcpy(at, t->data, (size_t)attempt_span(t));
    t->data = at;
    return at + padded(t);
}

static char *take_params(tn_param *params, tn_tensor **own, char *at)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &params[role];
        if (!p->count)
            continue;
        own[role] = malloc((size_t)p->count * sizeof(tn_tensor));
        if (!own[role])
            abort();
        memcpy(own[role], p->tensors, (size_t)p->count * sizeof(tn_tensor));
        for (int64_t i = 0; i < p->count; i++)
            at = take(&own[role][i], at);
        p->tensors = own[role];
    }
    return at;
}

static void copy_init(bench_copy *b, const check_case *c, char *at)
{
    b->site = c->site;
    b->forward = c->call;
    b->grads = c->grads;
    at = take_params(b->site.param, b->params, at);
    at = take_params(b->grads.param, b->grad_params, at);
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        at = take(&b->forward.in[i], at);
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        if (c->alias[i] < 0)
            at = take(&b->forward.out[i], at);
        else
            b->forward.out[i].data = b->forward.in[c->alias[i]].data;
        at = take(&b->grads.out[i], at);
    }
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        if (c->grad_alias[i] < 0)
            at = take(&b->grads.in[i], at);
        else if (b->grads.in[i].data)
            b->grads.in[i].data = b->grads.out[c->grad_alias[i]].data;
    }
    b->forward.site = &b->site;
    b->forward.plan = &b->plan;
    b->backward = b->forward;
    b->backward.grads = &b->grads;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        b->backward.out[i].data = NULL;
}

/* The case's own memory is no copy: what of it was never written is one page of zeros, which never leaves a cache. */
bool bench_set_open(bench_set *set, const check_case *c, const tn_impl *impl, size_t count)
{
    size_t bytes = bench_set_bytes(c);
    *set = (bench_set){.impl = impl, .count = count, .copies = calloc(count, sizeof(bench_copy))};
    if (!set->copies)
        return false;
    for (size_t i = 0; i < count; i++) {
        bench_copy *b = &set->copies[i];
        b->memory = aligned_alloc(64, bytes + 64);
        if (!b->memory) {
            bench_set_close(set);
            return false;
        }
        copy_init(b, c, b->memory);
    }
    return true;
}

void bench_set_close(bench_set *set)
{
    for (size_t i = 0; set->copies && i < set->count; i++) {
        bench_copy *b = &set->copies[i];
        for (int role = 0; role < TN_ROLE_MAX; role++) {
            free(b->params[role]);
            free(b->grad_params[role]);
        }
        free(b->memory);
        free(b->packed);
    }
    free(set->copies);
    free(set->scratch);
    host_eager_close(&set->eager);
    *set = (bench_set){0};
}

static tn_status copy_plan(bench_copy *b, const tn_impl *impl, int64_t tokens, tn_error *err)
{
    b->plan = (tn_plan){.size = sizeof b->plan, .threads = tn_thread_count(), .max_tokens = tokens};
    tn_status status = impl->plan ? impl->plan(&b->site, &b->plan, err) : TN_OK;
    free(b->packed);
    b->packed = NULL;
    if (status == TN_OK && b->plan.packed_bytes) {
        b->packed = aligned_alloc(64, b->plan.packed_bytes / 64 * 64 + 64);
        if (!b->packed)
            return tn_fail(err, TN_E_MEMORY, NULL, "no memory for packed weights");
        status = impl->pack(&b->site, &b->plan, b->packed, NULL, err);
    }
    b->forward.packed = b->backward.packed = b->packed;
    return status;
}

/* Kernels ask for flags when they plan. Eager is what a user would have without the kernel, on any tier. */
tn_status bench_set_plan(bench_set *set, const check_case *c, bool backward, uint64_t flags, tn_error *err)
{
    tn_status status = TN_OK;
    size_t scratch = 0;
    host_restrict(flags);
    for (size_t i = 0; i < set->count && status == TN_OK; i++) {
        const tn_plan *plan = &set->copies[i].plan;
        status = copy_plan(&set->copies[i], set->impl, attempt_tokens(c), err);
        size_t bytes = backward ? plan->backward_scratch_bytes : plan->scratch_bytes;
        scratch = bytes > scratch ? bytes : scratch;
    }
    host_restrict(~UINT64_C(0));
    free(set->scratch);
    set->scratch = aligned_alloc(64, scratch / 64 * 64 + 64);
    if (status == TN_OK && !set->scratch)
        status = tn_fail(err, TN_E_MEMORY, NULL, "no memory for scratch");
    for (size_t i = 0; i < set->count; i++)
        set->copies[i].forward.scratch = set->copies[i].backward.scratch = set->scratch;
    host_eager_close(&set->eager);
    if (status == TN_OK)
        status = host_eager_open(&set->eager, backward ? &set->copies[0].backward : &set->copies[0].forward, err);
    return status == TN_DECLINED ? TN_OK : status;
}

tn_status bench_set_kernel(bench_set *set, size_t index, bool backward, tn_error *err)
{
    const bench_copy *b = &set->copies[index % set->count];
    return backward ? set->impl->backward(&b->backward, err) : set->impl->forward(&b->forward, err);
}

tn_status bench_set_eager(bench_set *set, size_t index, bool backward, tn_error *err)
{
    const bench_copy *b = &set->copies[index % set->count];
    return host_eager_run(&set->eager, backward ? &b->backward : &b->forward, err);
}
