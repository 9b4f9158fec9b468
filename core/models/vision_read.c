/* What config.json says about a vision tower, and whether pictures fit it. */
#include "models/vision.h"

#include <math.h>

/* Bounds that no real tower comes near. */
enum { MAX_WIDTH = 1 << 20, MAX_DEPTH = 1 << 12, MAX_HEADS = 1 << 14, MAX_PATCH = 1 << 10, MAX_MERGE = 16 };
enum { MAX_HEAD = 1024, MAX_SIDE = 1 << 14, MAX_PATCHES = 1 << 26 };

static void read_heads(const config_reader *c, const vision_family *f, vision_spec *s)
{
    const char *key = config_either(c, "num_heads", "num_attention_heads");
    s->heads = config_i64(c, key, f->heads, 1, MAX_HEADS);
    s->head_dim = s->hidden / s->heads;
    if (s->hidden % s->heads || s->head_dim % 4 || s->head_dim > MAX_HEAD)
        config_fail(c, key,
                    "is %lld and the rows %lld wide; the size of a head must be a multiple of 4 of at most %d, for "
                    "rotations by row and column",
                    (long long)s->heads, (long long)s->hidden, (int)MAX_HEAD);
    if (config_i64(c, "head_dim", s->head_dim, 1, MAX_WIDTH) != s->head_dim)
        config_fail(c, "head_dim", "is not %lld, which is the width of the rows by %s", (long long)s->head_dim, key);
}

static void read_rope(const config_reader *c, vision_spec *s)
{
    static const config_word types[] = {{"axial", 1}, {"default", 1}, {0}};
    const config_reader rope = config_child(c, "rope_parameters");
    config_choice(&rope, config_either(&rope, "rope_type", "type"), "axial", types);
    s->theta = config_f64(&rope, "rope_theta", config_f64(c, "rope_theta", 10000));
    if (!(s->theta > 0))
        config_fail(c, "rope_theta", "is %g, must be positive", s->theta);
}

static void read_windows(const config_reader *c, vision_spec *s)
{
    int64_t size = config_i64(c, "window_size", 112, 1, MAX_WIDTH), group = s->merge * s->patch;
    s->window = size / s->merge / s->patch;
    if (s->window < 1)
        config_fail(c, "window_size", "is %lld pixels, less than one group of spatial_merge_size x patch_size = %lld",
                    (long long)size, (long long)group);
}

static void read_positions(const config_reader *c, const vision_family *f, vision_spec *s)
{
    int64_t most = (int64_t)MAX_SIDE * MAX_SIDE;
    if (f->positions == VISION_BILINEAR) {
        s->positions = config_i64(c, "num_position_embeddings", f->position_count, 1, most);
        s->side = (int64_t)sqrt((double)s->positions);
    } else if (f->positions == VISION_BICUBIC) {
        int64_t size = config_i64(c, "image_size", f->image_size, 1, MAX_WIDTH);
        s->side = size / s->patch;
        if (s->side < 1 || s->side > MAX_SIDE)
            config_fail(c, "image_size", "is %lld, patch_size %lld; there must be 1 to %d patches by side",
                        (long long)size, (long long)s->patch, (int)MAX_SIDE);
        s->positions = s->side * s->side;
    }
}

static void read_widths(const config_reader *c, const vision_family *f, int64_t text_hidden, vision_spec *s)
{
    const char *out = f->by_ratio ? "hidden_size" : "out_hidden_size";
    s->hidden = config_i64(c, f->by_ratio ? "embed_dim" : "hidden_size", f->hidden, 1, MAX_WIDTH);
    s->out = config_i64(c, out, f->out, 1, MAX_WIDTH);
    if (s->out != text_hidden)
        config_fail(c, out, "is %lld, hidden_size of the text model %lld", (long long)s->out, (long long)text_hidden);
    if (!f->by_ratio) {
        s->inter = config_i64(c, "intermediate_size", f->inter, 1, MAX_WIDTH);
        return;
    }
    double inter = (double)s->hidden * config_f64(c, "mlp_ratio", 4);
    s->inter = inter >= 1 && inter <= MAX_WIDTH ? (int64_t)inter : 1;
    if (!(inter >= 1 && inter <= MAX_WIDTH))
        config_fail(c, "mlp_ratio", "makes an MLP of %g numbers out of %lld, must be 1 to %d", inter,
                    (long long)s->hidden, (int)MAX_WIDTH);
}

void vision_read(const config_reader *c, const vision_family *f, int64_t text_hidden, vision_spec *s)
{
    *s = (vision_spec){.qkv_bias = true, .proj_bias = true};
    s->depth = config_i64(c, config_either(c, "depth", "num_hidden_layers"), f->depth, 1, MAX_DEPTH);
    read_widths(c, f, text_hidden, s);
    read_heads(c, f, s);
    s->mlp_inter = f->merging.downsamples ? s->out : s->inter;
    s->channels = config_i64(c, "in_channels", 3, 1, MAX_PATCH);
    s->temporal = config_i64(c, "temporal_patch_size", 2, 1, MAX_PATCH);
    s->patch = config_i64(c, "patch_size", f->patch_size, 1, MAX_PATCH);
    s->merge = config_i64(c, "spatial_merge_size", 2, 1, MAX_MERGE);
    s->act = parts_act(c, "hidden_act", f->act);
    if (f->windows)
        read_windows(c, s);
    read_positions(c, f, s);
    read_rope(c, s);
    if (!f->attention_bias) {
        s->qkv_bias = config_bool(c, "attention_bias", false);
        s->proj_bias = false;
    }
    double eps = f->post_norms ? config_f64(c, "rms_norm_eps", f->eps) : f->eps;
    s->norm = (parts_norm_kind){.class_name = f->norm ? f->norm : "LayerNorm",
                                .variant = f->norm ? TN_NORM_W : 0,
                                .eps = eps,
                                .layer_norm = !f->norm,
                                .bias = !f->norm};
    if (!(eps >= 0 && eps < 1))
        config_fail(c, "rms_norm_eps", "is %g, which is out of range", eps);
}

/* ---- pictures ------------------------------------------------------------------------------------- */

/* Patches of one grid; -1: it is none of this tower. */
static int64_t grid_patches(const vision_spec *s, const tower_grid *g, int64_t index, tn_error *err)
{
    bool sound = g->t >= 1 && g->h >= 1 && g->w >= 1 && g->t <= MAX_PATCHES && g->h <= MAX_SIDE && g->w <= MAX_SIDE;
    if (sound && g->h % s->merge == 0 && g->w % s->merge == 0 && g->t <= MAX_PATCHES / (g->h * g->w))
        return g->t * g->h * g->w;
    tn_fail(err, TN_E_USAGE, "grid",
            "picture %lld has %lld x %lld x %lld patches; height and width must be multiples of spatial_merge_size "
            "%lld, all of them at least 1, together at most %d",
            (long long)index, (long long)g->t, (long long)g->h, (long long)g->w, (long long)s->merge, (int)MAX_PATCHES);
    return -1;
}

int64_t vision_tokens(const void *state, const tower_media *media, tn_error *err)
{
    const vision_spec *s = &((const vision_tower *)state)->spec;
    int64_t patches = 0, width = s->channels * s->temporal * s->patch * s->patch;
    const tn_tensor *pixels = &media->pixels;
    for (int64_t i = 0; i < media->grid_count; i++) {
        int64_t more = grid_patches(s, &media->grids[i], i, err);
        if (more < 0)
            return -1;
        patches += more;
        if (patches > MAX_PATCHES) {
            tn_fail(err, TN_E_USAGE, "grid", "more than %d patches in one call", (int)MAX_PATCHES);
            return -1;
        }
    }
    if (pixels->ndim == 2 && pixels->shape[0] == patches && pixels->shape[1] == width)
        return patches / (s->merge * s->merge);
    tn_fail(err, TN_E_USAGE, "pixels",
            "are [%lld,%lld], the grids ask for [%lld,%lld]: a row for each patch, in_channels x temporal_patch_size x "
            "patch_size x patch_size values",
            (long long)(pixels->ndim > 0 ? pixels->shape[0] : 0), (long long)(pixels->ndim > 1 ? pixels->shape[1] : 0),
            (long long)patches, (long long)width);
    return -1;
}
