/* Building a vision tower: its modules and sites, with the names of its family. */
#include "models/vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void build_patches(graph_builder *b, graph_module *m, vision_tower *v)
{
    const vision_spec *s = &v->spec;
    const int64_t shape[] = {s->hidden, s->channels, s->temporal, s->patch, s->patch};
    graph_module *embed = build_module(b, m, "patch_embed", v->family->patch);
    v->patch = vision_filter(b, embed, "proj", "Conv3d", 5, shape, v->family->patch_bias);
    if (v->family->post_norms)
        v->patch_norm = parts_norm(b, m, "post_conv_layernorm", &s->norm, s->hidden, false);
}

static void build_positions(graph_builder *b, graph_module *m, vision_tower *v)
{
    const vision_spec *s = &v->spec;
    const char *class_name = v->family->embeddings;
    if (v->family->positions == VISION_NO_POSITIONS)
        return;
    if (class_name)
        m = build_module(b, build_module(b, m, "embeddings", class_name), "position_embedding", "Embedding");
    else
        m = build_module(b, m, "pos_embed", "Embedding");
    tn_site *step = build_step(b, m, TN_OP_EMBEDDING_BAG, s->hidden);
    tn_tensor table;
    if (!step || !build_tensor(b, m, "weight", 2, (int64_t[]){s->positions, s->hidden}, &table))
        return;
    build_step_param(b, step, TN_ROLE_WEIGHT, &table);
    step->dim[TN_DIM_TOP_K] = vision_tables_taps(v->family->positions);
    v->positions = step;
}

static void build_attention(graph_builder *b, graph_module *block, const vision_tower *v, vision_block *out)
{
    static const char *const names[] = {"q", "k", "v"};
    const vision_spec *s = &v->spec;
    graph_module *m = build_module(b, block, "attn", v->family->attention);
    graph_site *site = build_site(b, m, TN_OP_ATTENTION, NULL);
    if (!site)
        return;
    site->site.dim[TN_DIM_HEAD] = site->site.dim[TN_DIM_HEAD_V] = s->head_dim;
    site->site.dim[TN_DIM_Q_HEADS] = site->site.dim[TN_DIM_KV_HEADS] = s->heads;
    site->site.num[TN_NUM_SCALE] = 1.0 / sqrt((double)s->head_dim);
    out->attention = site;
    for (int i = 0; v->family->split_qkv && i < 3; i++)
        out->qkv[i] = parts_linear(b, m, names[i], s->hidden, s->hidden, s->qkv_bias, NULL);
    if (!v->family->split_qkv)
        out->qkv[0] = parts_linear(b, m, "qkv", s->hidden, 3 * s->hidden, s->qkv_bias, NULL);
    out->proj = parts_linear(b, m, "proj", s->hidden, s->hidden, s->proj_bias, NULL);
}

static void build_block(graph_builder *b, graph_module *blocks, const vision_tower *v, int64_t i, vision_block *out)
{
    static const parts_mlp_names up_down = {NULL, "linear_fc1", "linear_fc2"};
    const vision_spec *s = &v->spec;
    const parts_mlp_spec mlp = {.class_name = v->family->mlp,
                                .names = v->family->mlp_names ? v->family->mlp_names
                                         : v->family->gated   ? NULL
                                                              : &up_down,
                                .hidden = s->hidden,
                                .inter = s->mlp_inter,
                                .act = s->act,
                                .layout = v->family->gated ? TN_LAYOUT_SPLIT : TN_LAYOUT_UP_DOWN,
                                .bias = v->family->mlp_bias};
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)i);
    graph_module *m = build_module(b, blocks, name, v->family->block);
    out->norm1 = parts_norm(b, m, "norm1", &s->norm, s->hidden, i > 0);
    out->norm2 = parts_norm(b, m, "norm2", &s->norm, s->hidden, true);
    build_attention(b, m, v, out);
    out->mlp = parts_mlp(b, m, "mlp", &mlp, NULL);
}

/* Rows of some blocks go to mergers of their own, and from there to the first layers of the text model. */
static void build_deep(graph_builder *b, const config_reader *c, graph_module *m, vision_tower *v)
{
    static const char key[] = "deepstack_visual_indexes";
    static const int64_t usual[] = {8, 16, 24};
    if (!v->family->merging.list)
        return;
    graph_module *list = build_module(b, m, v->family->merging.list, "ModuleList");
    int64_t given = config_list(c, key), count = given < 0 ? 3 : given;
    if (count > RUN_DEEP) {
        config_fail(c, key, "has %lld entries, at most %d are supported", (long long)count, (int)RUN_DEEP);
        return;
    }
    for (int64_t i = 0; i < count && b->status == TN_OK; i++) {
        int64_t block = given < 0 ? usual[i] : config_list_i64(c, key, i);
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        vision_merger_build(b, m, list, name, v, true, &v->deep[i]);
        if (block >= 0 && block < v->spec.depth && v->blocks[block].deep < 0) {
            v->blocks[block].deep = (int32_t)i;
            v->deep_count++;
        }
    }
}

static void build_rope(graph_builder *b, vision_tower *v)
{
    const vision_spec *s = &v->spec;
    const parts_rope_spec spec = {.function = "apply_rotary_pos_emb_vision",
                                  .style = TN_ROPE_HALF_F32,
                                  .heads = s->heads,
                                  .kv_heads = s->heads,
                                  .head_dim = s->head_dim,
                                  .rotary = s->head_dim};
    v->rope = parts_rope(b, v->family->scope, &spec);
}

/* Which blocks see whole frames: all, or those that the file names. */
static void read_whole(const config_reader *c, vision_tower *v)
{
    static const char key[] = "fullatt_block_indexes";
    int64_t count = config_list(c, key);
    for (int64_t i = 0; i < v->spec.depth; i++) {
        bool usual = i == 7 || i == 15 || i == 23 || i == 31;
        v->blocks[i].whole = !v->family->windows || (count < 0 ? usual : config_list_holds(c, key, i));
        v->blocks[i].deep = -1;
    }
}

static vision_tower *allocate(graph_builder *b, const vision_family *family, const vision_spec *spec)
{
    vision_tower *v = b->status == TN_OK ? calloc(1, sizeof *v) : NULL;
    if (v)
        v->blocks = calloc((size_t)spec->depth, sizeof *v->blocks);
    if (v && v->blocks) {
        v->family = family;
        v->spec = *spec;
        return v;
    }
    free(v);
    return build_fail(b, TN_E_MEMORY, "graph", "out of memory for a vision tower; free some memory");
}

void *vision_build(graph_builder *b, graph_module *parent, const char *name, const config_reader *config,
                   int64_t text_hidden, const vision_family *family)
{
    vision_spec spec = {0};
    if (b->status == TN_OK)
        vision_read(config, family, text_hidden, &spec);
    vision_tower *v = allocate(b, family, &spec);
    if (!v)
        return NULL;
    graph_module *m = build_module(b, parent, name, family->model);
    read_whole(config, v);
    build_patches(b, m, v);
    build_positions(b, m, v);
    build_module(b, m, "rotary_pos_emb", family->rotary);
    graph_module *blocks = build_module(b, m, "blocks", "ModuleList");
    for (int64_t i = 0; i < spec.depth && b->status == TN_OK; i++)
        build_block(b, blocks, v, i, &v->blocks[i]);
    vision_merger_build(b, m, m, "merger", v, false, &v->merger);
    build_deep(b, config, m, v);
    build_rope(b, v);
    if (b->status == TN_OK)
        return v;
    vision_free(v);
    return NULL;
}

void vision_free(void *state)
{
    vision_tower *v = state;
    if (!v)
        return;
    free(v->blocks);
    free(v);
}
