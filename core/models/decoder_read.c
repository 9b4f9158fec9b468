/* What decoders have in common in their config.json. */
#include "models/decoder.h"

#include <math.h>
#include <string.h>

/* Bounds that no real model comes near: a file that exceeds them is broken, and nothing is allocated for it. */
enum { MAX_WIDTH = 1 << 20, MAX_LAYERS = 1 << 12, MAX_HEADS = 1 << 14, MAX_VOCAB = 1 << 24 };

enum { HIDDEN, LAYERS, VOCAB, HEADS, INTER, SIZES };

/* What the classes of transformers begin with. Only objects inside another config leave sizes out, since those are
 * written as what differs. */
static const struct {
    const char *model_type;
    int64_t size[SIZES];
} nested[] = {{"gemma3_text", {2304, 26, 262208, 8, 9216}},
              {"llama", {4096, 32, 32000, 32, 11008}},
              {"mistral", {4096, 32, 32000, 32, 14336}}};

static int64_t need(const config_reader *c, const char *own, const char *usual, int size, int64_t most)
{
    const char *key = config_either(c, own, usual);
    const char *type = config_str(c, "model_type", "");
    bool inside = config_around(c).node != c->node;
    for (size_t i = 0; inside && i < sizeof nested / sizeof *nested; i++)
        if (!strcmp(nested[i].model_type, type))
            return config_i64(c, key, nested[i].size[size], 1, most);
    return config_need_i64(c, key, 1, most);
}

static void read_attention(const config_reader *c, decoder_spec *s, const decoder_names *n)
{
    const char *heads_key = config_either(c, n->heads_key, "num_attention_heads");
    const char *kv_key = config_either(c, n->kv_key, "num_key_value_heads");
    gqa_spec *a = &s->layer.attention;
    a->class_name = s->classes->attention;
    a->hidden = s->hidden;
    a->heads = need(c, n->heads_key, "num_attention_heads", HEADS, MAX_HEADS);
    /* null means what absence meant before there was a default. */
    bool all = !s->kv_heads || config_is_null(c, kv_key);
    a->kv_heads = config_i64(c, kv_key, all ? a->heads : s->kv_heads, 1, MAX_HEADS);
    if (!s->head_dim || config_is_null(c, "head_dim"))
        s->head_dim = s->hidden / a->heads;
    if (!s->ignore_head_dim)
        s->head_dim = config_i64(c, "head_dim", s->head_dim, 1, ROPE_MAX_DIM);
    a->head_dim = s->head_dim;
    a->scale = 1.0 / sqrt((double)a->head_dim);
    if (a->heads % a->kv_heads)
        config_fail(c, heads_key, "is %lld, no multiple of %s %lld", (long long)a->heads, kv_key,
                    (long long)a->kv_heads);
}

/* The rotation of most models. Some architectures of .gguf have the rows of q and k in turns. */
static void read_rope(const config_reader *c, decoder_spec *s)
{
    const gqa_spec *a = &s->layer.attention;
    bool pairs = config_bool(c, "gguf_rope_pairs", false);
    s->rope[0] = (decoder_rope){.site = {.function = "apply_rotary_pos_emb",
                                         .style = pairs ? TN_ROPE_INTERLEAVED : TN_ROPE_HALF,
                                         .heads = a->heads,
                                         .kv_heads = a->kv_heads,
                                         .head_dim = a->head_dim},
                                .config = {.head_dim = a->head_dim, .partial = s->partial, .theta = s->theta}};
    s->rope_count = 1;
}

static void read_norm(const config_reader *c, decoder_spec *s)
{
    const char *key = s->eps_key ? s->eps_key : "rms_norm_eps";
    s->norm.class_name = s->classes->norm;
    s->norm.variant = s->norm.variant ? s->norm.variant : TN_NORM_W;
    s->norm.eps = config_f64(c, key, s->norm.eps != 0 ? s->norm.eps : 1e-6);
    if (!(s->norm.eps >= 0 && s->norm.eps < 1))
        config_fail(c, key, "is %g, which is out of range", s->norm.eps);
    if (!s->norms.attention && !s->norms.after_attention)
        s->norms = (decoder_norms){.attention = "input_layernorm", .mlp = "post_attention_layernorm"};
}

void decoder_read(const config_reader *c, decoder_spec *s)
{
    static const decoder_names usual = {0};
    const decoder_names *n = s->names ? s->names : &usual;
    parts_mlp_spec *mlp = &s->layer.mlp;
    config_reader around = config_around(c);
    s->hidden = need(c, n->hidden_key, "hidden_size", HIDDEN, MAX_WIDTH);
    s->layers = need(c, n->layers_key, "num_hidden_layers", LAYERS, MAX_LAYERS);
    s->vocab = need(c, NULL, "vocab_size", VOCAB, MAX_VOCAB);
    s->padding = s->no_padding || config_list(c, "pad_token_id") != 1 ? -1 : config_list_i64(c, "pad_token_id", 0);
    s->tied = config_bool(c, "tie_word_embeddings", config_bool(&around, "tie_word_embeddings", s->tied));
    s->theta = s->theta != 0 ? s->theta : 10000;
    read_norm(c, s);
    if (!s->no_attention) {
        read_attention(c, s, n);
        read_rope(c, s);
    }
    if (config_list(c, "layer_types") >= 0 && config_list(c, "layer_types") != s->layers)
        config_fail(c, "layer_types", "has %lld entries, num_hidden_layers is %lld",
                    (long long)config_list(c, "layer_types"), (long long)s->layers);
    mlp->class_name = s->classes->mlp;
    mlp->hidden = s->hidden;
    mlp->inter = s->inter_times * s->hidden;
    if (!s->intermediates &&
        (!s->no_intermediate || config_has(c, config_either(c, n->inter_key, "intermediate_size"))))
        mlp->inter = need(c, n->inter_key, "intermediate_size", INTER, MAX_WIDTH);
    const char *act_key = s->act_key ? s->act_key : "hidden_act";
    bool prelu = s->prelu && config_is_str(c, act_key) && !strcmp(config_str(c, act_key, ""), "prelu");
    mlp->act = prelu ? TN_ACT_PRELU : parts_act(c, act_key, s->act ? s->act : "silu");
}

int64_t decoder_positions(const config_reader *c, int64_t fallback)
{
    return config_i64(c, config_either(c, "n_positions", "max_position_embeddings"), fallback, 1, INT32_MAX / 2);
}

int64_t decoder_window(const config_reader *c, int64_t fallback)
{
    return config_i64(c, "sliding_window", config_is_null(c, "sliding_window") ? 0 : fallback, 1, INT32_MAX);
}

int64_t decoder_window_in_use(const config_reader *c)
{
    return config_bool(c, "use_sliding_window", false) ? decoder_window(c, 4096) : 0;
}

int32_t decoder_layer_type(const config_reader *c, int64_t i, const config_word *words, int32_t fallback)
{
    return config_list(c, "layer_types") < 0 ? fallback : config_list_choice(c, "layer_types", i, words);
}

bool decoder_slides(const config_reader *c, int64_t i, bool fallback)
{
    static const config_word types[] = {
        {"full_attention", false}, {"attention", false}, {"sliding_attention", true}, {0}};
    return decoder_layer_type(c, i, types, fallback) != 0;
}

bool decoder_slides_by(const config_reader *c, int64_t i, int64_t fallback)
{
    bool listed = config_list(c, "layer_types") >= 0;
    int64_t n = listed ? fallback : config_i64(c, "sliding_window_pattern", fallback, 1, 1 << 12);
    return decoder_slides(c, i, (i + 1) % n != 0);
}

double decoder_positive(const config_reader *c, const char *key, double fallback)
{
    if (config_is_null(c, key))
        return 0;
    double value = config_f64(c, key, fallback);
    if (!(value > 0) && config_has(c, key))
        config_fail(c, key, "is %g, it must be positive or null", value);
    return value;
}

void decoder_granite_factors(const config_reader *c, decoder_spec *s)
{
    double divisor = config_f64(c, "logits_scaling", 1);
    if (divisor == 0)
        config_fail(c, "logits_scaling", "is 0");
    s->embed_factor = config_f64(c, "embedding_multiplier", 1);
    s->residual_scale = config_f64(c, "residual_multiplier", 1);
    s->logit_scale = divisor != 0 ? 1 / divisor : 0;
    s->layer.attention.scale = config_f64(c, "attention_multiplier", 1);
}

void decoder_upper_slide(const config_reader *c, int64_t i, decoder_layer_spec *layer)
{
    int64_t first = config_i64(c, "max_window_layers", 28, 0, INT32_MAX);
    if (layer->attention.window && !decoder_slides(c, i, i >= first))
        layer->attention.window = 0;
}
