/* From the embedding of tokens to the first layer: h = norm(projection(e) + position). */
#include "models/embed_stage.h"

typedef struct stage {
    graph_site *projection, *norm; /* or NULL                                                      */
    tn_site *positions;            /* a step, or NULL                                              */
    int64_t hidden;
} stage;

static void build(graph_builder *b, graph_module *model, const void *spec, void *state)
{
    const embed_stage_spec *s = spec;
    stage *out = state;
    tn_tensor table;
    out->hidden = s->hidden;
    if (s->projection)
        out->projection = parts_linear(b, model, s->projection, s->width, s->hidden, false, NULL);
    if (s->positions) {
        graph_module *m = build_module(b, model, s->positions, s->positions_class);
        if (!m || !build_tensor(b, m, "weight", 2, (int64_t[]){s->learnt.count, s->hidden}, &table))
            return;
        out->positions = build_step(b, m, TN_OP_EMBEDDING, s->hidden);
        build_step_param(b, out->positions, TN_ROLE_WEIGHT, &table);
    }
    if (s->norm)
        out->norm = parts_norm(b, model, s->norm, s->norm_kind, s->hidden, false);
}

static tn_tensor forward(graph_run *r, const void *state, const tn_tensor *embedded)
{
    const stage *s = state;
    tn_tensor h = s->projection ? steps_linear(r, s->projection, embedded) : *embedded;
    if (s->positions) {
        size_t mark = arena_mark(r->arena);
        tn_tensor rows = steps_rows(r, s->positions, &r->learnt, s->hidden);
        steps_add(r, &h, &rows);
        steps_release(r, mark);
    }
    if (s->norm)
        steps_norm_in_place(r, s->norm, &h);
    return h;
}

const stage_kind embed_stage = {sizeof(stage), build, forward};
