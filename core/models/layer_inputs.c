/* Inputs of each layer: rnd(norm(projection(h)) + embedding(token)) / sqrt(2). */
#include "models/layer_inputs.h"

#include "base/convert.h"

#include <math.h>

static tn_site *build_factor(graph_builder *b, const graph_module *m, const layer_inputs_spec *spec, double factor)
{
    float value = (float)factor;
    uint16_t narrow[2] = {0};
    if (spec->rounded && b->dtype != TN_F32) {
        convert_from_f32(&value, b->dtype, narrow, 1);
        convert_to_f32(narrow, b->dtype, &value, 1);
    }
    return parts_factor(b, m, (double)value, spec->width);
}

void layer_inputs_build(graph_builder *b, graph_module *model, const layer_inputs_spec *spec, layer_inputs *out)
{
    int64_t all = spec->layers * spec->width;
    graph_module *embed = build_module(b, model, "embed_tokens_per_layer", spec->embedding_class);
    tn_tensor table;
    *out = (layer_inputs){.width = spec->width, .layers = spec->layers};
    if (!embed || !build_tensor(b, embed, "weight", 2, (int64_t[]){spec->vocab, all}, &table))
        return;
    out->embed = build_step(b, embed, TN_OP_EMBEDDING, all);
    if (out->embed) {
        out->embed->num[TN_NUM_SCALE] = sqrt((double)spec->width);
        out->embed->features |= spec->partial ? TN_HAS_PARTIAL : 0;
    }
    build_step_param(b, out->embed, TN_ROLE_WEIGHT, &table);
    out->projection = parts_linear(b, model, "per_layer_model_projection", spec->hidden, all, false, NULL);
    out->norm = parts_norm(b, model, "per_layer_projection_norm", spec->norm, spec->width, false);
    out->scale = build_factor(b, model, spec, pow((double)spec->hidden, -0.5));
    out->half = build_factor(b, model, spec, sqrt(0.5));
}

void layer_inputs_forward(graph_run *r, const layer_inputs *in, const tn_tensor *h)
{
    r->layer_inputs = steps_embedding(r, in->embed, in->layers * in->width);
    size_t mark = arena_mark(r->arena);
    tn_tensor y = steps_linear(r, in->projection, h);
    steps_change(r, in->scale, &y);
    tn_tensor rows = steps_view(&y, 2, (int64_t[]){y.shape[0] * in->layers, in->width});
    steps_norm_in_place(r, in->norm, &rows);
    steps_add(r, &r->layer_inputs, &y);
    steps_change(r, in->half, &r->layer_inputs);
    steps_release(r, mark);
}

void layer_inputs_build_layer(graph_builder *b, graph_module *layer, const layer_inputs_spec *spec, layer_input *out)
{
    out->gate = parts_linear(b, layer, "per_layer_input_gate", spec->hidden, spec->width, false, NULL);
    out->projection = parts_linear(b, layer, "per_layer_projection", spec->width, spec->hidden, false, NULL);
    out->norm = parts_norm(b, layer, "post_per_layer_input_norm", spec->norm, spec->hidden, false);
    out->width = spec->width;
    out->act = parts_act_step(b, layer, TN_OP_GLU, spec->act, spec->width);
}

tn_tensor layer_inputs_of_layer(graph_run *r, const layer_input *in, int64_t layer, const tn_tensor *x)
{
    tn_tensor gate = steps_linear(r, in->gate, x);
    tn_tensor own = steps_columns(&r->layer_inputs, layer * in->width, in->width);
    steps_glu(r, in->act, &gate, &own);
    tn_tensor y = steps_linear(r, in->projection, &own);
    steps_norm_in_place(r, in->norm, &y);
    return y;
}
