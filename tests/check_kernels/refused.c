/* Calls that data makes impossible: they must say so and write nothing; and sites that kernels must decline. */
#include "check_kernels.h"
#include "host.h"

#include <stdlib.h>
#include <string.h>

enum { FILL = 0x5a, MOST = 4096 };

/* What the call could write. */
typedef struct results {
    const tn_tensor *tensors[MOST];
    size_t count;
} results;

static size_t bytes_of(const tn_tensor *t)
{
    int64_t span = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        span += (t->shape[d] - 1) * t->stride[d];
    return tn_tensor_count(t) ? (size_t)span * tn_dtype_size(t->dtype) : 0;
}

static void add(results *r, const tn_tensor *t)
{
    if (!t->data || r->count == MOST)
        return;
    memset(t->data, FILL, bytes_of(t));
    r->tensors[r->count++] = t;
}

static void hold_refusal(check_state *s, const check_case *c, const results *r, tn_status status, const tn_error *err,
                         const char *text)
{
    if (status != TN_E_INPUT || !strstr(err->message, text))
        check_fail(s, c, "returned %d '%s'; expected '%s'", status, err->message, text);
    for (size_t i = 0; i < r->count; i++)
        for (size_t b = 0; b < bytes_of(r->tensors[i]); b++)
            if (((const char *)r->tensors[i]->data)[b] != FILL) {
                check_fail(s, c, "wrote result %zu at byte %zu", i, b);
                return;
            }
}

static void refuse(check_state *s, check_case *c, const tn_impl *impl, const tn_plan *plan, bool backward,
                   const char *text)
{
    tn_error err = TN_ERROR_INIT;
    tn_call call = c->call;
    results r = {.count = 0};
    size_t scratch = backward ? plan->backward_scratch_bytes : plan->scratch_bytes;
    call.site = &c->site;
    call.plan = plan;
    call.grads = backward ? &c->grads : NULL;
    for (int32_t i = 0; i < call.out_count && !backward; i++)
        add(&r, &call.out[i]);
    for (int32_t i = 0; i < call.in_count && backward; i++)
        add(&r, &c->grads.in[i]);
    for (int role = 0; role < TN_ROLE_MAX && backward; role++)
        for (int64_t i = 0; i < c->grads.param[role].count; i++)
            add(&r, &c->grads.param[role].tensors[i]);
    call.scratch = aligned_alloc(64, scratch / 64 * 64 + 64);
    tn_status status = (backward ? impl->backward : impl->forward)(&call, &err);
    hold_refusal(s, c, &r, status, &err, text);
    free(call.scratch);
}

void check_refused(check_state *s, check_case *c, const char *text)
{
    tn_error err = TN_ERROR_INIT;
    char reason[256] = "";
    s->group_cases++;
    if (s->by != BY_CPU) {
        check_skip(s, "what data makes impossible: work on a device is lined up before anybody sees its data");
        case_free(c);
        return;
    }
    for (int32_t threads = 1; threads < 3; threads++) {
        host_threads(threads);
        host_restrict(s->tier->flags);
        tn_plan plan = {.size = sizeof plan, .threads = threads, .max_tokens = c->call.in[0].shape[0]};
        const tn_impl *impl = host_impl("cpu", c->kernel, &c->site, reason, sizeof reason);
        if (!impl || (impl->plan && impl->plan(&c->site, &plan, &err) != TN_OK)) {
            check_fail(s, c, "not planned: %s%s", reason, err.message);
            break;
        }
        refuse(s, c, impl, &plan, false, text);
        if (c->grads.size && impl->backward)
            refuse(s, c, impl, &plan, true, text);
    }
    host_threads(1);
    case_free(c);
}

static void change_tensor(tn_tensor *t, const check_change *by)
{
    int64_t to = (int64_t)by->to;
    if (by->what == DTYPE_IS)
        t->dtype = (tn_dtype)to;
    else if (by->what == ROWS_ARE)
        t->shape[0] = to;
    else if (by->what == COLUMNS_ARE)
        t->shape[1] = t->stride[0] = to;
    else
        t->stride[1] = to;
}

static void change(check_case *c, const check_change *by)
{
    switch (by->what) {
    case NOTHING:
        break;
    case DIM_IS:
        c->site.dim[by->which] = (int64_t)by->to;
        break;
    case NUM_IS:
        c->site.num[by->which] = by->to;
        break;
    case MEANING_IS:
        c->site.meaning[by->which] = (int32_t)by->to;
        break;
    case HAS_ALSO:
        c->site.features |= (uint64_t)by->to;
        break;
    case COUNT_IS:
        c->site.param[by->which].count = (int64_t)by->to;
        break;
    default:
        change_tensor((tn_tensor *)c->site.param[by->which].tensors, by);
    }
}

void check_declines(check_state *s, const check_decline *declines, size_t count,
                    check_case (*make)(int32_t variant, tn_dtype dtype))
{
    for (size_t i = 0; i < count; i++) {
        check_case c = make(declines[i].variant, declines[i].dtype);
        change(&c, &declines[i].change[0]);
        change(&c, &declines[i].change[1]);
        check_declined(s, &c, declines[i].reason);
    }
}
