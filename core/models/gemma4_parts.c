/* What Gemma 4 adds to a decoder: reading, inputs of layers, experts beside the MLP. */
#include "models/gemma4_parts.h"

#include <math.h>
#include <stdio.h>

/* ---- reading ------------------------------------------------------------------------------------ */

/* The object of layer i, whose key may have zeros before it; one without keys where there is none. */
static config_reader layer_object(const config_reader *all, int64_t i)
{
    char key[24];
    for (int digits = 1; digits < 6; digits++) {
        snprintf(key, sizeof key, "%0*lld", digits, (long long)i);
        if (config_has(all, key))
            break;
    }
    return config_child(all, key);
}

void gemma4_parts_heads(const config_reader *c, int64_t i, bool slide, gqa_spec *a)
{
    static const char *const keys[] = {"head_dim", "num_key_value_heads", NULL};
    const char *key = keys[1];
    config_reader all = config_child(c, "per_layer_config"), own = layer_object(&all, i);
    bool given = config_has(c, "per_layer_config") || config_is_null(c, "per_layer_config");
    config_only(&own, keys);
    if (given) {
        a->head_dim = config_i64(&own, keys[0], a->head_dim, 1, ROPE_MAX_DIM);
        a->kv_heads = config_i64(&own, key, a->kv_heads, 1, a->heads);
    } else if (!slide) {
        a->head_dim = config_i64(c, "global_head_dim", 512, 1, ROPE_MAX_DIM);
        key = "num_global_key_value_heads";
        if (config_bool(c, "attention_k_eq_v", false))
            a->kv_heads = config_i64(c, key, a->kv_heads, 1, a->heads);
    }
    if (a->heads % a->kv_heads)
        config_fail(given ? &own : c, key, "is %lld, which does not divide num_attention_heads %lld",
                    (long long)a->kv_heads, (long long)a->heads);
}

void gemma4_parts_heads_of_type(const config_reader *c, bool slide, bool (*slides)(const config_reader *, int64_t),
                                int64_t layers, gqa_spec *attention)
{
    gqa_spec given = *attention;
    int64_t found = -1;
    for (int64_t i = 0; i < layers && *c->status == TN_OK; i++) {
        gqa_spec own = given;
        if (slides(c, i) != slide)
            continue;
        gemma4_parts_heads(c, i, slide, &own);
        if (found >= 0 && (own.head_dim != attention->head_dim || own.kv_heads != attention->kv_heads))
            config_fail(c, "per_layer_config", "gives layers %lld and %lld, which are of one type, other heads",
                        (long long)found, (long long)i);
        found = i;
        *attention = own;
    }
}

layer_inputs_spec gemma4_parts_read_inputs(const config_reader *c, const decoder_spec *s, const char *embedding_class)
{
    layer_inputs_spec in = {.embedding_class = embedding_class, .norm = &s->norm, .hidden = s->hidden};
    in.layers = s->layers;
    in.act = s->layer.mlp.act;
    in.width = config_is_null(c, "hidden_size_per_layer_input")
                   ? 0
                   : config_i64(c, "hidden_size_per_layer_input", 256, 0, 1 << 20);
    in.vocab = config_i64(c, "vocab_size_per_layer_input", 262144, 1, 1 << 24);
    if (in.width > 0 && in.vocab < s->vocab)
        config_fail(c, "vocab_size_per_layer_input", "is %lld, less than vocab_size %lld", (long long)in.vocab,
                    (long long)s->vocab);
    return in;
}

/* ---- inputs of layers --------------------------------------------------------------------------- */

static void build_first(graph_builder *b, graph_module *model, const void *spec, void *state)
{
    layer_inputs_build(b, model, &((const gemma4_spec *)spec)->inputs, state);
}

static tn_tensor first_forward(graph_run *r, const void *state, const tn_tensor *h)
{
    layer_inputs_forward(r, state, h);
    return *h;
}

const stage_kind gemma4_parts_first = {sizeof(layer_inputs), build_first, first_forward};

typedef struct tail {
    layer_input input;
    bool has_input;
    tn_site *scalar; /* step                                                                     */
} tail;

/* A step that multiplies by a tensor of module's, of one value or of a row. */
static tn_site *build_scale(graph_builder *b, graph_module *m, const char *name, int64_t count, int64_t width)
{
    tn_tensor values;
    tn_site *step = parts_act_step(b, m, TN_OP_GLU, TN_ACT_LINEAR, width);
    if (!step || !build_tensor(b, m, name, 1, &count, &values))
        return NULL;
    build_step_param(b, step, TN_ROLE_WEIGHT, &values);
    return step;
}

static void scale(graph_run *r, const tn_site *step, const tn_tensor *x)
{
    tn_tensor values = steps_repeat(step->param[TN_ROLE_WEIGHT].tensors, x->shape[0], x->shape[1]);
    steps_glu(r, step, &values, x);
}

static void build_tail(graph_builder *b, graph_module *layer, const void *from, void *state)
{
    const gemma4_spec *spec = from;
    tail *t = state;
    t->has_input = spec->inputs.width > 0;
    if (t->has_input)
        layer_inputs_build_layer(b, layer, &spec->inputs, &t->input);
    t->scalar = build_scale(b, layer, "layer_scalar", 1, spec->inputs.hidden);
}

static void tail_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h, const tn_tensor *x,
                         const tn_tensor *y)
{
    const tail *t = state;
    (void)x;
    (void)y;
    if (t->has_input) {
        tn_tensor more = layer_inputs_of_layer(r, &t->input, at->layer, h);
        steps_add(r, h, &more);
    }
    scale(r, t->scalar, h);
}

const feed_kind gemma4_parts_tail = {sizeof(tail), build_tail, tail_forward};

/* ---- experts beside the MLP ---------------------------------------------------------------------- */

typedef struct feed {
    graph_site *mlp, *after_mlp, *before, *after; /* norms of what the experts see and give            */
    graph_site *norm, *route, *experts;
    tn_site *scale, *root; /* of the router: steps                                                 */
} feed;

static void build_feed(graph_builder *b, graph_module *layer, const void *from, void *state)
{
    const gemma4_spec *spec = from;
    feed *f = state;
    int64_t hidden = spec->mlp.hidden;
    f->mlp = parts_mlp(b, layer, "mlp", &spec->mlp, NULL);
    f->route = moe_parts_router(b, layer, &spec->moe, NULL);
    if (!f->route)
        return;
    f->norm = parts_norm(b, f->route->module, "norm", spec->plain, hidden, false);
    f->scale = build_scale(b, f->route->module, "scale", hidden, hidden);
    f->root = parts_factor(b, f->route->module, pow((double)hidden, -0.5), hidden);
    f->experts = moe_parts_experts(b, layer, &spec->moe, NULL);
    f->after_mlp = parts_norm(b, layer, "post_feedforward_layernorm_1", spec->norm, hidden, false);
    f->after = parts_norm(b, layer, "post_feedforward_layernorm_2", spec->norm, hidden, false);
    f->before = parts_norm(b, layer, "pre_feedforward_layernorm_2", spec->norm, hidden, false);
}

static void feed_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h, const tn_tensor *x,
                         const tn_tensor *y)
{
    const feed *f = state;
    (void)at;
    steps_mlp(r, f->mlp, x, y);
    steps_norm_in_place(r, f->after_mlp, y);
    tn_tensor routed = steps_norm(r, f->norm, h);
    scale(r, f->scale, &routed);
    steps_change(r, f->root, &routed);
    tn_tensor seen = steps_norm(r, f->before, h), given = steps_take(r, r->dtype, 2, h->shape);
    steps_routed(r, f->route, &routed, f->experts, &seen, &given);
    steps_norm_in_place(r, f->after, &given);
    steps_add(r, y, &given);
}

const feed_kind gemma4_parts_feed = {sizeof(feed), build_feed, feed_forward};
