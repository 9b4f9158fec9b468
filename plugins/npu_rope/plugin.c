/* The kernel npu_fused_rope: ROPE of q and k on the CPU in one pass, and back, and its list of devices. */
#define TN_ABI_NEEDED 3 /* TN_SAME_BITS */
#include <string.h>
#include <tenon/kernel.h>

#include "rope.h"

/* plan->user: what plan found out for forward. */
enum { USER_FUNCTION = 0 };

/* Tokens are given to a thread in pieces of about this many bytes of q and k: below two of them, waking the team costs
 * more than it saves (README.md has the measurement). */
static const int64_t PIECE_BYTES = 64 * 1024;

/* Elements of a head that the de-interleaving form can turn in place. */
enum { IN_PLACE_HEAD = 1024 };

/* Called once per site, which the host has checked: shapes, dtypes and numbers fit the operation. What is left to
 * decline here are limits of the kernel's own, with the site's value and what the kernel takes, so that forward and
 * backward need no checks. The best function for this processor is left in plan->user. */
static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    int64_t head = site->dim[TN_DIM_HEAD];
    if (site->meaning[TN_AXIS_ROPE] == TN_ROPE_DEINTERLEAVED && head > IN_PLACE_HEAD)
        return tn_fail(err, TN_DECLINED, site->path, "head: site has %lld, kernel takes up to %d", (long long)head,
                       IN_PLACE_HEAD);
    rope_kernels table;
    rope_kernels_init(&table, tn_cpu_flags());
    plan->user[USER_FUNCTION] = (uint64_t)(uintptr_t)table.rotate;
    return TN_OK;
}

/* A call on its way to the threads. Forward rotates q and k, backward their gradients. */
typedef struct rope_call {
    rope_fn *fn;
    const tn_tensor *from[2], *to[2], *cos, *sin;
    int64_t tokens;   /* of a row of the batch */
    rope_token token; /* what all tokens have in common */
} rope_call;

/* Bytes from the start of a tensor [B, T, ...] to token t of row b; a table of one row serves all. */
static ptrdiff_t offset(const tn_tensor *x, int64_t b, int64_t t)
{
    int64_t elements = (x->shape[0] == 1 ? 0 : b * x->stride[0]) + t * x->stride[1];
    return (ptrdiff_t)(elements * (int64_t)tn_dtype_size(x->dtype));
}

/* A head that changes its form in place would overwrite pairs that are still to be read: it goes through a copy. */
static void rotate_in_place(rope_fn *fn, const rope_token *token, size_t bytes)
{
    char copy[4 * IN_PLACE_HEAD];
    rope_token one = *token;
    one.heads = 1;
    for (int64_t h = 0; h < token->heads; h++) {
        one.x = memcpy(copy, token->x + h * token->x_step, bytes);
        one.y = token->y + h * token->y_step;
        fn(&one);
    }
}

/* No gradient of a result is one of zeros. */
static void clear_heads(const rope_token *token, size_t bytes)
{
    for (int64_t h = 0; h < token->heads; h++)
        memset(token->y + h * token->y_step, 0, bytes);
}

static void rotate_tensor(const rope_call *c, rope_token *token, int i, int64_t b, int64_t t)
{
    const tn_tensor *from = c->from[i], *to = c->to[i];
    ptrdiff_t size = (ptrdiff_t)tn_dtype_size(to->dtype);
    size_t bytes = (size_t)(token->head * size);
    if (!to->data)
        return;
    token->heads = to->shape[2];
    token->y_step = (ptrdiff_t)to->stride[2] * size;
    token->y = (char *)to->data + offset(to, b, t);
    if (!from->data) {
        clear_heads(token, bytes);
        return;
    }
    token->x_step = (ptrdiff_t)from->stride[2] * size;
    token->x = (const char *)from->data + offset(from, b, t);
    if (token->pairs_in != token->pairs_out && token->x == token->y)
        rotate_in_place(c->fn, token, bytes);
    else
        c->fn(token);
}

static void rotate_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    const rope_call *c = ctx;
    rope_token token = c->token;
    for (int64_t row = begin; row < end; row++) {
        int64_t b = row / c->tokens, t = row % c->tokens;
        token.cos = (const char *)c->cos->data + offset(c->cos, b, t);
        token.sin = (const char *)c->sin->data + offset(c->sin, b, t);
        for (int i = 0; i < 2; i++)
            rotate_tensor(c, &token, i, b, t);
    }
}

/* from, to: q and k, or their gradients. */
static tn_status rotate(const tn_call *call, const tn_tensor *from, const tn_tensor *to, bool inverse)
{
    const tn_tensor *q = &call->in[0], *k = &call->in[1], *cos = &call->in[2];
    tn_rope style = (tn_rope)call->site->meaning[TN_AXIS_ROPE];
    bool wide = style == TN_ROPE_HALF || style == TN_ROPE_HALF_F32;
    bool pairs = !wide && style != TN_ROPE_HALF_NARROW;
    rope_call c = {.fn = (rope_fn *)(uintptr_t)call->plan->user[USER_FUNCTION],
                   .from = {&from[0], &from[1]},
                   .to = {&to[0], &to[1]},
                   .cos = cos,
                   .sin = &call->in[3],
                   .tokens = q->shape[1]};
    /* Only the half forms have angles of their own for the second half. */
    c.token = (rope_token){.head = q->shape[3],
                           .rotary = style == TN_ROPE_HALF_NARROW ? 2 * cos->shape[2] : cos->shape[2],
                           .dtype = q->dtype,
                           .table = cos->dtype,
                           .pairs_in = pairs,
                           .pairs_out = pairs && style != TN_ROPE_DEINTERLEAVED,
                           .wide = wide,
                           .inverse = inverse};
    if (inverse) { /* a gradient of what came out in one form goes back into the other */
        c.token.pairs_in = c.token.pairs_out;
        c.token.pairs_out = pairs;
    }
    int64_t rows = q->shape[0] * q->shape[1];
    int64_t bytes = (q->shape[2] + k->shape[2]) * q->shape[3] * (int64_t)tn_dtype_size(q->dtype);
    if (rows * bytes < 2 * PIECE_BYTES)
        rotate_tokens(&c, 0, rows, 0);
    else
        tn_parallel_for(rows, PIECE_BYTES / bytes + 1, rotate_tokens, &c);
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)err;
    return rotate(call, call->in, call->out, false);
}

/* Reads call->grads->out, of which some may be absent, and writes those of grads->in that are wanted. */
static tn_status backward(const tn_call *call, tn_error *err)
{
    (void)err;
    return rotate(call, call->grads->out, call->grads->in, true);
}

/* What the host looks at before it calls plan: the types and styles that the loops have. README.md derives the
 * tolerance. */
static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_ROPE,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16),
                         [TN_AXIS_ROPE] = TN_TAKES(TN_ROPE_HALF) | TN_TAKES(TN_ROPE_HALF_NARROW) |
                                          TN_TAKES(TN_ROPE_INTERLEAVED) | TN_TAKES(TN_ROPE_COMPLEX) |
                                          TN_TAKES(TN_ROPE_DEINTERLEAVED) | TN_TAKES(TN_ROPE_HALF_F32)},
               .features = TN_HAS_PARTIAL | TN_HAS_MROPE},
     .tolerance = {.ulps_f32 = 0, .ulps_bf16 = 0, .ulps_f16 = 0},
     .plan = plan,
     .forward = forward,
     .traits = TN_SAME_BITS,
     .backward = backward},
};

static const tn_kernel kernels[] = {
    {.size = sizeof(tn_kernel),
     .id = "npu_fused_rope",
     .version = "1.1.0",
     .summary = "rotary position embedding of q and k in one pass over memory",
     .device = "cpu",
     .priority = 0,
     .impls = impls,
     .impl_count = sizeof impls / sizeof *impls},
    {.size = sizeof(tn_kernel),
     .id = "npu_fused_rope",
     .version = "1.1.0",
     .summary = "rotary position embedding of q and k by aclnnRotaryPositionEmbedding",
     .device = "npu",
     .priority = 0,
     .impls = rope_ascend_impls,
     .impl_count = ROPE_ASCEND_IMPLS},
};

TN_PLUGIN("npu_rope", "1.1.0", .kernels = kernels, .kernel_count = sizeof kernels / sizeof *kernels);
