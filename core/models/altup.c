/* Layers of several residual streams. */
#include "models/altup.h"

#include <math.h>
#include <stdio.h>

typedef struct altup {
    graph_site *router_norm, *router, *predict, *correct;           /* correct: coefficients of correction     */
    tn_site *router_scale, *tanh, *mix, *add, *copy, *negate, *row; /* steps; row: or NULL           */
    graph_site *left, *right, *laurel_norm;
    tn_site *half;
    graph_site *norm, *after_attention, *mlp_norm, *after_mlp, *mlp;
    gqa attention;
    layer_input input;
    int64_t streams, active;
} altup;

/* A step on streams. */
static tn_site *build_streams(graph_builder *b, const graph_module *m, tn_op op, const altup_spec *spec)
{
    tn_site *step = build_step(b, m, op, spec->hidden);
    if (step)
        step->dim[TN_DIM_STREAMS] = spec->streams;
    return step;
}

static void build_altup(graph_builder *b, graph_module *layer, const altup_spec *spec, altup *a)
{
    int64_t hidden = spec->hidden, n = spec->streams;
    graph_module *m = build_module(b, layer, "altup", spec->altup_class);
    tn_tensor row;
    a->correct = parts_linear(b, m, "correction_coefs", n, n, false, NULL);
    a->predict = parts_linear(b, m, "prediction_coefs", n, n * n, false, NULL);
    a->router = parts_linear(b, m, "modality_router", hidden, n, false, NULL);
    a->router_norm = parts_norm(b, m, "router_norm", spec->norm, hidden, false);
    a->router_scale = parts_factor(b, m, 1.0 / (double)hidden, hidden);
    a->tanh = parts_act_step(b, m, TN_OP_ACT, TN_ACT_TANH, n);
    a->mix = build_streams(b, m, TN_OP_STREAM_MIX, spec);
    a->add = build_streams(b, m, TN_OP_STREAM_ADD, spec);
    a->copy = build_step(b, m, TN_OP_COPY, hidden);
    a->negate = parts_factor(b, m, -1, hidden);
    if (b->status != TN_OK || !build_tensor(b, m, "correct_output_scale", 1, &hidden, &row) || !spec->scaled)
        return;
    a->row = parts_act_step(b, m, TN_OP_GLU, TN_ACT_LINEAR, hidden);
    build_step_param(b, a->row, TN_ROLE_WEIGHT, &row);
}

static void build_laurel(graph_builder *b, graph_module *layer, const altup_spec *spec, altup *a)
{
    graph_module *m = build_module(b, layer, "laurel", spec->laurel_class);
    a->left = parts_linear(b, m, "linear_left", spec->hidden, spec->rank, false, NULL);
    a->right = parts_linear(b, m, "linear_right", spec->rank, spec->hidden, false, NULL);
    a->laurel_norm = parts_norm(b, m, "post_laurel_norm", spec->norm, spec->hidden, false);
    a->half = parts_factor(b, m, sqrt(0.5), spec->hidden);
}

static void build_layer(graph_builder *b, graph_module *layer, const struct decoder_layer_spec *of, void *state,
                        model_layer *cache)
{
    const altup_spec *spec = of->whole_spec;
    altup *a = state;
    int64_t hidden = spec->hidden;
    a->streams = spec->streams;
    a->active = spec->active;
    gqa_build(b, layer, &of->attention, &a->attention);
    *cache = gqa_cache(b, &of->attention);
    a->mlp = parts_mlp(b, layer, "mlp", &of->mlp, NULL);
    a->norm = parts_norm(b, layer, "input_layernorm", spec->norm, hidden, false);
    a->after_attention = parts_norm(b, layer, "post_attention_layernorm", spec->norm, hidden, false);
    a->mlp_norm = parts_norm(b, layer, "pre_feedforward_layernorm", spec->norm, hidden, false);
    a->after_mlp = parts_norm(b, layer, "post_feedforward_layernorm", spec->norm, hidden, false);
    build_altup(b, layer, spec, a);
    build_laurel(b, layer, spec, a);
    layer_inputs_build_layer(b, layer, &spec->inputs, &a->input);
}

/* Stream i of streams [S,T,H]. */
static tn_tensor stream_of(const tn_tensor *streams, int64_t i)
{
    tn_tensor x = steps_view(streams, 2, streams->shape + 1);
    if (x.data)
        x.data = (char *)x.data + (size_t)(i * tn_tensor_count(&x)) * tn_dtype_size(x.dtype);
    return x;
}

/* What a stream says of how streams are to be mixed, [T,S]. */
static tn_tensor modalities(graph_run *r, const altup *a, const tn_tensor *x)
{
    tn_tensor y = steps_norm(r, a->router_norm, x);
    steps_change(r, a->router_scale, &y);
    tn_tensor routed = steps_linear(r, a->router, &y);
    steps_change(r, a->tanh, &routed);
    return routed;
}

/* Attention, LAuReL and MLP on the stream that is seen; x becomes what they make of it. */
static void run_halves(graph_run *r, const altup *a, const mixer_place *at, const tn_tensor *x)
{
    tn_tensor normed = steps_norm(r, a->norm, x);
    tn_tensor low = steps_linear(r, a->left, &normed), laurel = steps_linear(r, a->right, &low);
    steps_norm_in_place(r, a->laurel_norm, &laurel);
    steps_add(r, &laurel, &normed);
    tn_tensor y = gqa_forward(r, &a->attention, at, &normed);
    steps_norm_in_place(r, a->after_attention, &y);
    steps_add(r, x, &y);
    steps_add(r, x, &laurel);
    steps_change(r, a->half, x);
    normed = steps_norm(r, a->mlp_norm, x);
    steps_mlp(r, a->mlp, &normed, &y);
    steps_norm_in_place(r, a->after_mlp, &y);
    steps_add(r, x, &y);
}

static void layer_forward(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h)
{
    const altup *a = state;
    tn_tensor active = stream_of(h, a->active), x = steps_take(r, r->dtype, 2, active.shape);
    tn_tensor seen = modalities(r, a, &active), mix = steps_linear(r, a->predict, &seen);
    steps_stream_mix(r, a->mix, h, &mix);
    steps_copy(r, a->copy, &active, &x);
    run_halves(r, a, at, &x);
    seen = modalities(r, a, &x);
    tn_tensor coefficients = steps_linear(r, a->correct, &seen), more = steps_take(r, r->dtype, 2, x.shape);
    steps_copy(r, a->copy, &active, &more);
    steps_change(r, a->negate, &more);
    steps_add(r, &more, &x);
    steps_stream_add(r, a->add, h, &more, &coefficients);
    steps_copy(r, a->copy, &active, &x);
    if (a->row) {
        tn_tensor rows = steps_repeat(a->row->param[TN_ROLE_WEIGHT].tensors, x.shape[0], x.shape[1]);
        steps_glu(r, a->row, &rows, &x);
    }
    more = layer_inputs_of_layer(r, &a->input, at->layer, &x);
    for (int64_t i = 1; i < a->streams; i++) {
        tn_tensor other = stream_of(h, i);
        steps_add(r, &other, &more);
    }
}

const layer_kind altup_layer = {sizeof(altup), build_layer, layer_forward};

/* ---- between one stream and several ----------------------------------------------------------------------------- */

typedef struct altup_ends {
    layer_inputs inputs;
    graph_site *projection[ALTUP_MAX_STREAMS]; /* of stream i; none of the first                     */
    tn_site *match, *copy, *mean;
    int64_t streams;
} altup_ends;

static void build_ends(graph_builder *b, graph_module *model, const char *name, const altup_spec *spec, altup_ends *e)
{
    graph_module *m = build_module(b, model, name, "ModuleList");
    e->streams = spec->streams;
    for (int64_t i = 1; i < spec->streams; i++) {
        char index[24];
        snprintf(index, sizeof index, "%lld", (long long)i - 1);
        e->projection[i] = parts_linear(b, m, index, spec->hidden, spec->hidden, false, NULL);
    }
    if ((e->match = build_step(b, m, TN_OP_RMS_MATCH, spec->hidden)))
        e->match->num[TN_NUM_EPS] = 1e-5;
    e->copy = build_step(b, m, TN_OP_COPY, spec->hidden);
    e->mean = build_streams(b, m, TN_OP_STREAM_MEAN, spec);
}

static void build_first(graph_builder *b, graph_module *model, const void *spec, void *state)
{
    altup_ends *e = state;
    layer_inputs_build(b, model, &((const altup_spec *)spec)->inputs, &e->inputs);
    build_ends(b, model, "altup_projections", spec, e);
}

static void build_last(graph_builder *b, graph_module *model, const void *spec, void *state)
{
    build_ends(b, model, "altup_unembed_projections", spec, state);
}

/* to = the projection of from as stream i, with the size of like. */
static void project(graph_run *r, const altup_ends *e, int64_t i, const tn_tensor *from, const tn_tensor *like,
                    const tn_tensor *to)
{
    size_t mark = arena_mark(r->arena);
    tn_tensor x = steps_linear(r, e->projection[i], from);
    steps_rms_match(r, e->match, &x, like);
    steps_copy(r, e->copy, &x, to);
    steps_release(r, mark);
}

static tn_tensor first_forward(graph_run *r, const void *state, const tn_tensor *h)
{
    const altup_ends *e = state;
    layer_inputs_forward(r, &e->inputs, h);
    tn_tensor streams = steps_take(r, r->dtype, 3, (int64_t[]){e->streams, h->shape[0], h->shape[1]});
    tn_tensor own = stream_of(&streams, 0);
    steps_copy(r, e->copy, h, &own);
    for (int64_t i = 1; i < e->streams; i++) {
        tn_tensor to = stream_of(&streams, i);
        project(r, e, i, h, h, &to);
    }
    return streams;
}

static tn_tensor last_forward(graph_run *r, const void *state, const tn_tensor *h)
{
    const altup_ends *e = state;
    tn_tensor like = stream_of(h, 0);
    for (int64_t i = 1; i < e->streams; i++) {
        tn_tensor x = stream_of(h, i);
        project(r, e, i, &x, &like, &x);
    }
    return steps_stream_mean(r, e->mean, h);
}

const stage_kind altup_first = {sizeof(altup_ends), build_first, first_forward};
const stage_kind altup_last = {sizeof(altup_ends), build_last, last_forward};
