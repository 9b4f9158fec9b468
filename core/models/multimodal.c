/* Models that see and hear: their tree, and how a text model runs inside one. */
#include "models/multimodal.h"

#include "base/notices.h"
#include "models/vit.h"

#include <stdlib.h>
#include <string.h>

typedef struct multimodal_state {
    const model_flow *flow; /* of the text model                                                     */
    void *text;             /* its state                                                             */
    multimodal media;
    model_shape shape;
} multimodal_state;

/* ---- reading ------------------------------------------------------------------------------------ */

static int64_t read_token(const config_reader *c, const char *key, int64_t fallback)
{
    return key ? config_i64(c, key, fallback, 0, INT32_MAX) : -1;
}

static void read_media(const config_reader *c, const config_reader *vision, const multimodal_spec *spec, multimodal *m)
{
    *m = (multimodal){.vision = spec->vision,
                      .audio = spec->audio,
                      .rules = spec->rules,
                      .one_picture_token = spec->one_picture_token,
                      .video_start = -1,
                      .video_end = -1};
    for (int kind = 0; kind < MULTIMODAL_KINDS; kind++) {
        m->token_key[kind] = spec->token_key[kind];
        m->token[kind] = read_token(c, spec->token_key[kind], spec->token[kind]);
    }
    if (spec->one_picture_token) {
        m->video_start = read_token(c, "video_start_token_id", 151341);
        m->video_end = read_token(c, "video_end_token_id", 151342);
    }
    m->merge = config_i64(vision, "spatial_merge_size", 2, 1, 64);
    if (spec->deep) {
        int64_t deep = config_list(vision, "deepstack_visual_indexes");
        m->deep_count = (int32_t)(deep < 0 ? 3 : deep);
        if (deep > RUN_DEEP)
            config_fail(vision, "deepstack_visual_indexes", "has %lld entries, at most %d are supported",
                        (long long)deep, RUN_DEEP);
    }
}

/* What one second of a video is in positions, where frames are not counted. */
static void read_seconds(const config_reader *c, const config_reader *vision, multimodal_rules *rules)
{
    rules->by_seconds = !rules->video_interval;
    if (rules->from_highest)
        rules->image_interval = rules->video_interval =
            (double)config_i64(c, "position_id_per_seconds", 25, 0, INT32_MAX);
    else if (rules->by_seconds)
        rules->video_interval = (double)config_i64(vision, "tokens_per_second", 4, 0, INT32_MAX);
}

/* Which axis each frequency follows: "mrope_section" of the text model's rotary parameters. A stretch is what one axis
 * has in a row; taking turns it is how many the axis has of every third. */
static void read_axes(const config_reader *c, const multimodal_spec *spec, rope_params *rope)
{
    const char *key = "mrope_section";
    config_reader object = rope_config_object(c, NULL);
    bool given = config_has(&object, key);
    int64_t half = rope->dim / 2, at = 0, count = given ? config_list(&object, key) : ROPE_AXES;
    for (int64_t k = 0; k < count && *c->status == TN_OK; k++) {
        int64_t length = given ? config_list_i64(&object, key, k) : spec->sections[k];
        if (length < 0)
            config_fail(&object, key, "has %lld, which is negative", (long long)length);
        if (!spec->interleaved)
            for (int64_t end = at + length; at < end && at < half; at++)
                rope->axis[at] = (uint8_t)(k % ROPE_AXES);
        else if (k > 0 && k < ROPE_AXES)
            for (int64_t i = k; i < ROPE_AXES * length && i < half; i += ROPE_AXES)
                rope->axis[i] = (uint8_t)k;
    }
    int64_t sum = 0;
    for (int64_t k = 0; k < count && *c->status == TN_OK; k++)
        sum += given ? config_list_i64(&object, key, k) : spec->sections[k];
    if (count < ROPE_AXES || (!spec->interleaved && sum != half))
        config_fail(&object, key, "must be three numbers with a sum of %lld, half of what rotates of a head",
                    (long long)half);
}

/* ---- building ----------------------------------------------------------------------------------- */

static void multimodal_free(void *state)
{
    multimodal_state *s = state;
    if (!s)
        return;
    if (s->text)
        s->flow->free_state(s->text);
    if (s->media.vision_state)
        s->media.vision->free_state(s->media.vision_state);
    if (s->media.audio_state)
        s->media.audio->free_state(s->media.audio_state);
    free(s);
}

void *multimodal_text(graph_builder *b, const config_reader *c, decoder_spec *s, const multimodal_place *place)
{
    s->parent = place->parent;
    s->head_parent = place->head_parent;
    s->name = "language_model";
    s->tied = place->tied;
    s->rope[0].site.merged = true;
    return decoder_build(b, c, s);
}

/* Towers are whole: rank 0 alone runs them. */
static void *build_tower(graph_builder *b, const tower_kind *tower, graph_module *parent, const char *name,
                         const config_reader *config, int64_t hidden)
{
    struct group *group = b->group, *sums = b->sums;
    b->group = b->sums = NULL;
    void *state = tower->build(b, parent, name, config, hidden);
    b->group = group;
    b->sums = sums;
    return state;
}

static void build_towers(graph_builder *b, graph_module *model, const config_reader *c, const config_reader *vision,
                         int64_t hidden, multimodal *m)
{
    config_reader audio = config_child(c, "audio_config");
    if (m->audio && b->status == TN_OK)
        m->audio_state = build_tower(b, m->audio, model, "audio_tower", &audio, hidden);
    if (m->vision && b->status == TN_OK)
        m->vision_state = build_tower(b, m->vision, model, "visual", vision, hidden);
    for (graph_module *tower = model ? model->first_child : NULL; tower; tower = tower->next)
        tower->apart = true; /* nothing else is there yet                                              */
}

/* c: what holds the configs of text model and towers; around: the module that holds model and head. */
static void build_parts(graph_builder *b, graph_module *around, const config_reader *c, const multimodal_spec *spec,
                        multimodal_state *s)
{
    config_reader vision = config_child(c, "vision_config"), nested = config_child(c, "text_config");
    const config_reader *text = spec->flat && !config_has(c, "text_config") ? c : &nested;
    bool tied = config_bool(c, "tie_word_embeddings", false);
    tied = tied || (spec->text_ties && config_bool(text, "tie_word_embeddings", false));
    read_media(c, &vision, spec, &s->media);
    read_seconds(c, &vision, &s->media.rules);
    multimodal_place place = {build_module(b, around, "model", spec->model_class), around, tied};
    build_towers(b, place.parent, c, &vision, config_need_i64(text, "hidden_size", 1, INT32_MAX), &s->media);
    s->text = b->status == TN_OK ? spec->text(b, text, &place) : NULL;
    if (b->status != TN_OK)
        return;
    s->shape = *s->flow->shape(s->text);
    s->shape.media = &s->media;
    read_axes(text, spec, &s->shape.rope[0]);
}

static multimodal_state *allocate(graph_builder *b)
{
    multimodal_state *s = b->status == TN_OK ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return b->status == TN_OK ? build_fail(b, TN_E_MEMORY, "graph", "out of memory") : NULL;
    s->flow = &decoder_flow;
    return s;
}

void *multimodal_build(graph_builder *b, const config_reader *config, const multimodal_spec *spec)
{
    multimodal_state *s = allocate(b);
    if (!s)
        return NULL;
    graph_module *around = b->graph->root;
    config_reader inner = *config;
    if (spec->outer) {
        inner = config_child(config, spec->outer_config);
        around = build_module(b, around, spec->outer, spec->outer_class);
    }
    b->aliases = spec->aliases;
    build_parts(b, around, &inner, spec, s);
    if (b->status == TN_OK)
        return s;
    multimodal_free(s);
    return NULL;
}

/* ---- a tower beside a text model --------------------------------------------------------------- */

/* Names of files from before transformers 5, and since. */
static const build_alias beside_names[] = {{"vision_tower.", "vision_tower.vision_model."},
                                           {"vision_tower.", "model.vision_tower."},
                                           {"vision_tower.", "model.vision_tower.vision_model."},
                                           {"multi_modal_projector.", "model.multi_modal_projector."},
                                           {"image_newline", "model.image_newline"},
                                           {0}};

static bool has_what_it_needs(const graph_builder *b, tn_op needs)
{
    if (needs == TN_OP_NONE || build_performs(b, needs))
        return true;
    notices_add("device %s does not perform %s, which the tower needs", b->device->ops->name, tn_op_name(needs));
    return false;
}

static bool has_tower(const graph_builder *b, const config_reader *config, const tower_kind *tower)
{
    const char *part = tower->beside->part;
    bool there = shards_is_record(b->weights);
    for (size_t i = 0; i < shards_count(b->weights) && !there; i++) {
        const char *name = shards_name(b->weights, i);
        there = part ? strstr(name, part) != NULL : models_stands_beside(name);
    }
    return there && tower->beside->knows(config) && has_what_it_needs(b, tower->beside->needs);
}

void *multimodal_beside(graph_builder *b, const config_reader *config, const config_reader *inner,
                        const model_wrapper *around, const model_arch *arch)
{
    const build_alias *const names = b->outer;
    const vit_projector *projector = vit_projector_of(around->model_type);
    bool sees = has_tower(b, config, around->vision);
    b->whole_prompt = sees && projector && projector->sight == SIGHT_PROMPT;
    if (!sees && projector && projector->sight == SIGHT_PROMPT)
        return build_fail(b, TN_E_INPUT, around->model_type, "the tower of '%s' is missing: without it, it is no model",
                          around->class_name);
    multimodal_state *s = allocate(b);
    if (s)
        s->text = arch->build(b, inner);
    if (b->status == TN_OK)
        s->shape = *s->flow->shape(s->text);
    if (b->status == TN_OK && sees) {
        multimodal *m = &s->media;
        const char *key = config_has(config, "image_token_id") ? "image_token_id" : around->token_key;
        *m = (multimodal){.vision = around->vision, .one_axis = true, .video_start = -1, .video_end = -1, .merge = 1};
        for (int kind = 0; kind < MULTIMODAL_KINDS; kind++)
            m->token[kind] = -1;
        m->token_key[MULTIMODAL_IMAGE] = key;
        m->token[MULTIMODAL_IMAGE] = read_token(config, key, around->token);
        b->aliases = NULL;
        b->outer = beside_names;
        m->vision_state = build_tower(b, m->vision, b->graph->root, around->model_type, config, s->shape.hidden);
        b->outer = names;
        m->sight = m->vision_state ? m->vision->beside->sight(m->vision_state) : SIGHT_BACK;
        m->marks = m->vision_state ? m->vision->beside->marks(m->vision_state) : NULL;
        if (m->vision->beside->read_tokens)
            m->vision->beside->read_tokens(config, m);
        s->shape.media = m;
        s->shape.marks = m->embedded;
        s->shape.near_pictures = m->sight == SIGHT_NEAR;
    }
    if (b->status == TN_OK)
        return s;
    multimodal_free(s);
    return NULL;
}

/* ---- running ------------------------------------------------------------------------------------ */

static void multimodal_begin(graph_run *r, const void *state, model_walk *walk)
{
    const multimodal_state *s = state;
    if (r->marks.shape[0] > 0)
        r->mark_rows = s->media.vision->beside->embed(r, s->media.vision_state, &r->marks);
    s->flow->begin(r, s->text, walk);
}

static void multimodal_layer(graph_run *r, const void *state, int64_t i, model_walk *walk)
{
    const multimodal_state *s = state;
    s->flow->layer(r, s->text, i, walk);
}

static void multimodal_end(graph_run *r, const void *state, model_walk *walk)
{
    const multimodal_state *s = state;
    s->flow->end(r, s->text, walk);
}

static tn_tensor multimodal_logits(graph_run *r, const void *state, const tn_tensor *x)
{
    const multimodal_state *s = state;
    return s->flow->logits(r, s->text, x);
}

static const model_shape *multimodal_shape(const void *state)
{
    return &((const multimodal_state *)state)->shape;
}

const model_flow multimodal_flow = {multimodal_free,  multimodal_logits, multimodal_shape,
                                    multimodal_begin, multimodal_layer,  multimodal_end};
