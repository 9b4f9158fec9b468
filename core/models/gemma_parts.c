/* What the modeling files of the Gemma family have in common. */
#include "models/gemma_parts.h"

#include <math.h>

void gemma_parts_ropes(decoder_spec *s)
{
    s->rope[GEMMA_LOCAL].config.layer_type = "sliding_attention";
    s->rope[GEMMA_LOCAL].config.theta = 10000;
    s->rope[GEMMA_GLOBAL] = s->rope[GEMMA_LOCAL];
    s->rope[GEMMA_GLOBAL].site.function = NULL;
    s->rope[GEMMA_GLOBAL].config.layer_type = "full_attention";
    s->rope[GEMMA_GLOBAL].config.theta = 1000000;
    s->rope_count = 2;
}

void gemma_parts_layer_type(decoder_layer_spec *layer, bool slides)
{
    layer->attention.rope = slides ? GEMMA_LOCAL : GEMMA_GLOBAL;
    if (!slides)
        layer->attention.window = 0;
}

void gemma_parts_share(const config_reader *c, int64_t i, int64_t shared,
                       bool (*slides)(const config_reader *, int64_t), gqa_spec *attention)
{
    int64_t first = config_need_i64(c, "num_hidden_layers", 1, INT32_MAX) - shared;
    if (i < first)
        return;
    attention->borrows = true;
    for (int64_t j = first - 1; j >= 0; j--)
        if (slides(c, j) == slides(c, i)) {
            attention->from_layer = j;
            return;
        }
    config_fail(c, "num_kv_shared_layers",
                "is %lld: no layer before layer %lld is of the type of layer %lld, so that it could share its keys",
                (long long)shared, (long long)first, (long long)i);
}

double gemma_parts_score_scale(const config_reader *c)
{
    double scalar = config_f64(c, "query_pre_attn_scalar", 256);
    if (!(scalar > 0))
        config_fail(c, "query_pre_attn_scalar", "is %g, it must be positive", scalar);
    return pow(scalar, -0.5);
}

void gemma_parts_causal(const graph_builder *b, const config_reader *c)
{
    if (!b->whole_prompt && config_bool(c, "use_bidirectional_attention", false))
        config_fail(c, "use_bidirectional_attention", "is true, only false is supported");
}
