/* quant_method "fp8": E4M3 codes, whose scales belong to blocks, rows or the whole matrix. Modules that have no scale
 * are not quantised, whatever modules_to_not_convert says. */
#include "checkpoint/quantised.h"

static void read_config(quantised *q, const config_reader *config)
{
    static const config_word formats[] = {{"e4m3", 0}, {"float8_e4m3fn", 0}, {0}};
    config_choice(config, "fmt", "e4m3", formats);
    for (int64_t i = 0; i < 2 && config_list(config, "weight_block_size") > 0; i++)
        q->block[i] = config_list_i64(config, "weight_block_size", i);
    if (q->block[0] < 0 || q->block[1] < 0)
        config_fail(config, "weight_block_size", "is no size of blocks; two numbers above 0 are");
}

static tn_status turn_scale(quantised *q, const char *stem, quantised_part *scale)
{
    quantised_part weight;
    shards_parts parts = {0};
    tn_status status = quantised_need(q, stem, ".weight", scale, &weight);
    if (status == TN_OK)
        status = quantised_want(q, &weight, TN_F8_E4M3, 2, (int64_t[]){-1, -1});
    if (status == TN_OK)
        status = quantised_scales(q, scale, weight.tensor.shape[0], weight.tensor.shape[1], &parts);
    if (status != TN_OK)
        return status;
    quantised_drop(q, scale, false);
    return quantised_add(q, stem, ".weight", &weight, &weight.tensor, &parts);
}

static const quantised_rule rules[] = {
    {".weight_scale_inv", turn_scale},  {".weight_scale", turn_scale},           {".qscale_weight", turn_scale},
    {".input_scale", quantised_ignore}, {".activation_scale", quantised_ignore}, {".qscale_act", quantised_ignore},
    {".k_scale", quantised_ignore},     {".v_scale", quantised_ignore},          {NULL, NULL}};

const quantised_method quantised_fp8 = {read_config, rules};
