/* Tokens whose experts, or keys, another rounding may change. Found by the model without kernels, in f32 and in bf16,
 * so what is judged has no say in it. */
#include "check.h"

#include "base/convert.h"
#include "base/random.h"
#include "eager/eager.h"
#include "generate/session.h"
#include "open/model.h"

#include <stdlib.h>
#include <string.h>

/* A router sees its input in f32, x, and in bf16, x + d: what all roundings before it came to. Roundings elsewhere, a
 * kernel's, come to as much with other signs. So the router of the bf16 model chooses DRAWS times by x with the
 * elements of REACH d added, their signs drawn: the largest of so many is some two deviations, with REACH three of a
 * kernel's. */
enum { DRAWS = 32 };
static const float REACH = 1.5f;

enum { MOST_ROUTERS = 512 };

/* One call of a router in f32: its input [tokens, width] and what it chose [tokens, k]. */
typedef struct choice {
    float *x;
    int32_t *experts;
    int64_t tokens, width, k;
} choice;

typedef struct finder {
    choice choices[MOST_ROUTERS];
    int64_t count, seen; /* calls in f32; in bf16                                                           */
    bool *near;          /* [positions]                                                                     */
    int64_t positions;
} finder;

/* An indexer leaves out some of the keys from that many on: which, is as near as experts are, and of hundreds of them
 * some always are. */
static void mark_choosers(finder *f, const tn_call *call)
{
    const tn_tensor *index = &call->in[3];
    const int32_t *position = index->data;
    for (int64_t i = 0; i < f->positions; i++)
        f->near[i] |= position[i] >= call->site->dim[TN_DIM_TOP_K];
}

static tn_status look_in_f32(void *ctx, const tn_call *call, tn_error *err)
{
    finder *f = ctx;
    if (call->op == TN_OP_CHOOSE_KEYS)
        mark_choosers(f, call);
    if (call->op != TN_OP_MOE_ROUTE)
        return TN_OK;
    const tn_tensor *x = &call->in[0], *experts = &call->out[1];
    if (f->count == MOST_ROUTERS || x->shape[0] != f->positions)
        return tn_fail(err, TN_E_INPUT, "routers", "more than %d, or not of all tokens", MOST_ROUTERS);
    choice *c = &f->choices[f->count++];
    *c = (choice){.tokens = x->shape[0], .width = x->shape[1], .k = experts->shape[1]};
    c->x = malloc((size_t)tn_tensor_count(x) * sizeof *c->x);
    c->experts = malloc((size_t)tn_tensor_count(experts) * sizeof *c->experts);
    if (!c->x || !c->experts)
        return tn_fail(err, TN_E_MEMORY, "routers", "out of memory");
    memcpy(c->x, x->data, (size_t)tn_tensor_count(x) * sizeof *c->x);
    memcpy(c->experts, experts->data, (size_t)tn_tensor_count(experts) * sizeof *c->experts);
    return TN_OK;
}

/* Are these k experts the same, in any order? */
static bool same_choice(const int32_t *a, const int32_t *b, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        bool found = false;
        for (int64_t j = 0; j < k; j++)
            found |= a[i] == b[j];
        if (!found)
            return false;
    }
    return true;
}

static void compare_choices(finder *f, const choice *c, const int32_t *experts)
{
    for (int64_t i = 0; i < c->tokens; i++)
        f->near[i] |= !same_choice(c->experts + i * c->k, experts + i * c->k, c->k);
}

/* drawn [tokens, width] in the type of x: c's input with the distances of x from it, each with a sign of its own. */
static void draw_input(const choice *c, const float *x, tn_dtype dtype, random_state *r, float *made, void *drawn)
{
    for (int64_t i = 0; i < c->tokens * c->width; i++) {
        float d = REACH * (x[i] - c->x[i]);
        made[i] = c->x[i] + (random_bits(r) & 1 ? d : -d);
    }
    convert_from_f32(made, dtype, drawn, c->tokens * c->width);
}

static tn_status look_in_bf16(void *ctx, const tn_call *call, tn_error *err)
{
    finder *f = ctx;
    if (call->op != TN_OP_MOE_ROUTE)
        return TN_OK;
    const choice *c = &f->choices[f->seen++];
    const eager_op *eager = eager_find(TN_OP_MOE_ROUTE);
    if (f->seen > f->count || call->in[0].shape[0] != c->tokens || call->in[0].shape[1] != c->width)
        return tn_fail(err, TN_E_INPUT, "routers", "other calls in bf16 than in f32");
    compare_choices(f, c, call->out[1].data);
    int64_t n = c->tokens * c->width;
    random_state r = {(uint64_t)f->seen};
    tn_call again = *call;
    float *x = malloc((size_t)n * sizeof *x), *made = malloc((size_t)n * sizeof *made);
    again.in[0].data = malloc((size_t)n * sizeof *made);
    again.out[0].data = malloc((size_t)(c->tokens * c->k) * sizeof(float));
    again.out[1].data = malloc((size_t)(c->tokens * c->k) * sizeof(int32_t));
    again.out_count = 2;
    again.scratch = aligned_alloc(64, eager->scratch ? (eager->scratch(&again) + 127) / 64 * 64 : 64);
    tn_status status = TN_OK;
    if (!x || !made || !again.in[0].data || !again.out[0].data || !again.out[1].data || !again.scratch)
        status = tn_fail(err, TN_E_MEMORY, "routers", "out of memory");
    if (status == TN_OK)
        convert_to_f32(call->in[0].data, call->in[0].dtype, x, n);
    for (int i = 0; i < DRAWS && status == TN_OK; i++) {
        draw_input(c, x, call->in[0].dtype, &r, made, again.in[0].data);
        status = eager->forward(&again, err);
        if (status == TN_OK)
            compare_choices(f, c, again.out[1].data);
    }
    free(x);
    free(made);
    free(again.in[0].data);
    free(again.out[0].data);
    free(again.out[1].data);
    free(again.scratch);
    return status;
}

static bool watch(const golden *g, tn_dtype dtype, run_mode mode, run_look *look, finder *f, tn_error *err)
{
    tn_model_options mo = {.size = sizeof mo, .dtype = tn_dtype_name(dtype)};
    tn_model *model = tn_model_open(g->model, &mo, err);
    bool ok = model && run_watched(g, model, mode, look, f, err);
    tn_model_close(model);
    return ok;
}

static bool has_router(const tn_model *model)
{
    const graph *sites = model->target.graph;
    for (size_t i = 0; i < sites->site_count; i++)
        if (sites->sites[i]->site.op == TN_OP_MOE_ROUTE)
            return true;
    return false;
}

bool near_find(const golden *g, const tn_model *model, run_mode mode, near_tokens *n, tn_error *err)
{
    int64_t tokens = g->ids.shape[1];
    finder *f = calloc(1, sizeof *f);
    *n = (near_tokens){.positions = g->ids.shape[0] * tokens};
    n->near = calloc((size_t)n->positions, sizeof *n->near);
    n->clean = calloc((size_t)n->positions, sizeof *n->clean);
    bool ok = f && n->near && n->clean;
    if (!ok)
        tn_fail(err, TN_E_MEMORY, "routers", "out of memory");
    if (ok) {
        f->near = n->near;
        f->positions = n->positions;
        ok = !has_router(model) ||
             (watch(g, TN_F32, mode, look_in_f32, f, err) && watch(g, TN_BF16, mode, look_in_bf16, f, err));
        n->routers = f->count;
    }
    for (int64_t i = 0, row_clean = 1; ok && i < n->positions; i++) {
        row_clean = (i % tokens == 0 || row_clean) && !(n->near[i] && !golden_masked(g, i));
        n->clean[i] = row_clean && !golden_masked(g, i);
    }
    for (int64_t i = 0; f && i < f->count; i++) {
        free(f->choices[i].x);
        free(f->choices[i].experts);
    }
    free(f);
    return ok;
}

void near_free(near_tokens *n)
{
    free(n->near);
    free(n->clean);
    *n = (near_tokens){0};
}
