/* SHORT_CONV on the NPU: with e [B, F-1 + T, C], the state and then the row's real tokens, all outputs of a tap are a
 * part of e times the tap's weights. In f32 and in the CPU's order of the taps; rounded before the activation and after
 * it. */
#include "activations.h"
#include "operators.h"
#include "real_tokens.h"

typedef struct conv_work {
    tn_tensor e;            /* [B, F-1 + T, C] f32                                                  */
    tn_tensor sum, product; /* [B,T,C] f32                                                          */
    tn_tensor narrow;       /* [B,T,C]                                                              */
    tn_tensor weight, bias; /* [C,F], [C] f32; bias without data: none                              */
    int64_t past;           /* F-1                                                                  */
} conv_work;

static tn_status conv_supports(const tn_site *site, tn_error *err)
{
    tn_status status = npu_act_supports((tn_act)site->meaning[TN_AXIS_ACT], false, err);
    return status == TN_OK ? npu_supports_weights(site, err) : status;
}

static conv_work conv_take(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_tensor *x = &call->in[0], *bias = npu_param(call->site, TN_ROLE_BIAS);
    conv_work w = {.past = call->site->dim[TN_DIM_TAPS] - 1};
    w.e = npu_take_3d(r, TN_F32, x->shape[0], w.past + x->shape[1], x->shape[2]);
    w.sum = npu_take_like(r, TN_F32, *x);
    w.product = npu_take_like(r, TN_F32, *x);
    w.narrow = npu_take_like(r, x->dtype, *x);
    w.weight = npu_widened(r, *npu_param(call->site, TN_ROLE_WEIGHT));
    if (bias)
        w.bias = npu_widened(r, *bias);
    return w;
}

/* w->narrow = rnd(act(rnd(bias + sum_m w_m e_{j+m}))) for every j. */
static void filter(npu_run *r, conv_work *w, tn_act act)
{
    int64_t rows = w->sum.shape[0], tokens = w->sum.shape[1], taps = w->past + 1;
    for (int64_t m = 0; m < taps; m++) {
        tn_tensor part = npu_tokens(&w->e, 0, rows, m, tokens), tap = npu_part(w->weight, m, 1, 1);
        tap = npu_view(tap.data, TN_F32, 3, (int64_t[]){1, 1, tap.shape[0]}, (int64_t[]){1, 1, tap.stride[0]});
        npu_multiply(r, part, tap, m == 0 ? w->sum : w->product);
        if (m == 0 && w->bias.ndim > 0)
            npu_add(r, w->sum, w->bias, 1, w->sum);
        if (m > 0)
            npu_add(r, w->sum, w->product, 1, w->sum);
    }
    npu_copy(r, w->sum, w->narrow);
    npu_activate(r, act, w->narrow, w->narrow);
}

/* Each row's last F-1 of e. */
static void keep_state(npu_run *r, const real_tokens *tokens, const conv_work *w, const tn_tensor *state)
{
    tn_tensor next = npu_transposed(*state);
    int64_t rows = w->e.shape[0];
    for (int64_t row = 0, n = 1; row < rows; row += n, n = 1) {
        int64_t count = tokens->all ? tokens->most : real_tokens_of(tokens, row);
        while (row + n < rows && (tokens->all || real_tokens_of(tokens, row + n) == count))
            n++;
        tn_tensor last = npu_tokens(&w->e, row, n, count, w->past), to = npu_tokens(&next, row, n, 0, w->past);
        npu_copy(r, last, to);
    }
}

/* What is read of x and of the state is read before results are written, which may lie there. */
static void conv(npu_run *r)
{
    const tn_call *call = r->call;
    tn_act act = (tn_act)call->site->meaning[TN_AXIS_ACT];
    real_tokens tokens = {0};
    conv_work w = conv_take(r);
    if (!r->measuring)
        real_tokens_begin(r, &call->in[2], &tokens);
    if (!tokens.all)
        npu_fill(r, w.e, 0);
    tn_tensor state = npu_transposed(call->in[1]), first = npu_tokens(&w.e, 0, w.e.shape[0], 0, w.past);
    tn_tensor rest = npu_tokens(&w.e, 0, w.e.shape[0], w.past, w.sum.shape[1]);
    npu_copy(r, state, first);
    if (!r->measuring)
        real_tokens_pack(r, &tokens, &call->in[0], &rest);
    filter(r, &w, act);
    if (!r->measuring) {
        real_tokens_unpack(r, &tokens, &w.narrow, &call->out[0]);
        keep_state(r, &tokens, &w, &call->out[1]);
    }
    real_tokens_end(&tokens);
}

const ascend_operation ascend_short_conv = {.op = TN_OP_SHORT_CONV, .supports = conv_supports, .body = conv};
