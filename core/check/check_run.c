/* What checks are made of: what eager makes of a call, and the kernel's calls. */
#include "base/tensor.h"
#include "base/text.h"
#include "check/check.h"
#include "op/op.h"

#include <stdlib.h>

tn_status check_no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory while checking a kernel; free some memory");
}

/* ---- what eager makes of a call ------------------------------------------------------------------------------- */

void check_reference_close(check_reference *r)
{
    inputs_close(&r->in);
    free(r->memory);
    *r = (check_reference){0};
}

/* The optional outputs that the implementation gives. */
static void want_optional(tn_call *call, uint32_t optional)
{
    if (optional & op_optional_outputs(call->op))
        call->out_count = op_out_count(op_find(call->op), call->site, true);
}

tn_status check_reference_open(check_reference *r, const device *device, const tn_site *site, uint32_t optional,
                               check_case size, tn_error *err)
{
    *r = (check_reference){0};
    size.seed ^= (uint64_t)site->op << 32 ^ (uint64_t)size.batch << 16 ^ (uint64_t)size.tokens;
    tn_status status = inputs_draw_case(&r->in, site, &size, err);
    if (status != TN_OK)
        return status;
    want_optional(&r->in.call, optional);
    r->call = r->in.call;
    size_t bytes = 0;
    for (int i = 0; i < r->call.out_count; i++)
        bytes += tensor_padded_bytes(&r->call.out[i]);
    r->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!r->memory) {
        check_reference_close(r);
        return check_no_memory(err);
    }
    bytes = 0;
    for (int i = 0; i < r->call.out_count; i++) {
        r->call.out[i].data = (char *)r->memory + bytes;
        bytes += tensor_padded_bytes(&r->call.out[i]);
    }
    status = run_alone(device, NULL, NULL, &r->call, err);
    if (status != TN_OK)
        check_reference_close(r);
    return status;
}

/* ---- the kernel's calls ----------------------------------------------------------------------------------------- */

tn_status check_open_run(fenced_run *run, const inputs *in, const gradients *wanted, check_manner manner, tn_error *err)
{
    enum { BACKWARD_WORK = 3 };
    *run = (fenced_run){.in = in,
                        .wanted = wanted,
                        .side = manner.apart ? FENCE_START : FENCE_END,
                        .padded = manner.apart,
                        .off = manner.off,
                        .only = manner.only,
                        .in_place = manner.apart ? op_find(in->call.op)->in_place : 0,
                        .team = manner.team,
                        .threads = manner.threads,
                        .whole = manner.whole,
                        .seconds = fenced_seconds((wanted ? BACKWARD_WORK : 1) * op_operations(&in->call))};
    return fenced_open_run(run, err);
}

bool check_same_bits(const fenced_run *a, const fenced_run *b, char *detail, size_t detail_size)
{
    char where[120];
    for (int i = 0; !a->wanted && i < a->call.out_count; i++)
        if (!compare_bits(&a->call.out[i], &b->call.out[i], where, sizeof where)) {
            text_cut(detail, detail_size, "output %d, %s", i, where);
            return false;
        }
    for (int i = 0; a->wanted && i < TN_CALL_TENSORS; i++)
        if (a->grads.in[i].data && !compare_bits(&a->grads.in[i], &b->grads.in[i], where, sizeof where)) {
            text_cut(detail, detail_size, "gradient of input %d, %s", i, where);
            return false;
        }
    for (int role = 0; a->wanted && role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < a->grads.param[role].count; i++)
            if (!compare_bits(&a->grads.param[role].tensors[i], &b->grads.param[role].tensors[i], where,
                              sizeof where)) {
                text_cut(detail, detail_size, "gradient of %s %lld, %s", tn_role_name((tn_role)role), (long long)i,
                         where);
                return false;
            }
    return true;
}

tn_status check_execute(const check_subject *s, fenced_trial *t, tn_error *err)
{
    t->patience = s->patience;
    t->go_on = s->go_on;
    t->go_on_ctx = s->go_on_ctx;
    tn_status status = fenced_execute(t, err);
    if (s->loads)
        *s->loads |= t->loads;
    return status;
}
