/* quant_method "compressed-tensors": integers in words along the rows, int8, FP8 and NVFP4; each tensor's shape and
 * type say which of them it is. "modelopt" has NVFP4 and FP8 under other names. */
#include "checkpoint/quantised.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BITS = 32 };

/* Bits and groups of one scheme; groups of several sizes are left to the shapes. */
static void read_scheme(quantised *q, const config_reader *scheme, bool first)
{
    config_reader weights = config_child(scheme, "weights");
    int64_t bits = config_need_i64(&weights, "num_bits", 2, 8),
            group = config_i64(&weights, "group_size", 0, -1, INT32_MAX);
    q->bits |= 1u << bits;
    q->group = group > 0 && (first || q->group == group) ? group : 0;
    if (config_list(&weights, "block_structure") == 2)
        for (int64_t i = 0; i < 2; i++)
            q->block[i] = config_list_i64(&weights, "block_structure", i);
    if (q->block[0] < 0 || q->block[1] < 0)
        config_fail(&weights, "block_structure", "is no size of blocks; two numbers above 0 are");
}

static void read_config(quantised *q, const config_reader *config)
{
    static const config_word formats[] = {
        {"pack-quantized", 0},       {"int-quantized", 0},        {"naive-quantized", 0}, {"float-quantized", 0},
        {"nvfp4-pack-quantized", 0}, {"mxfp4-pack-quantized", 0}, {"mixed-precision", 0}, {0}};
    const char *name;
    config_choice(config, "format", "pack-quantized", formats);
    config_reader schemes = config_child(config, "config_groups");
    for (int64_t i = 0; (name = config_key(&schemes, i)); i++) {
        config_reader scheme = config_child(&schemes, name);
        read_scheme(q, &scheme, i == 0);
    }
}

/* Rows of so many words for so many columns: the bits of the only scheme that gives these; 0: none, or several do. */
static int32_t bits_of(const quantised *q, int64_t words, int64_t columns)
{
    int32_t found = 0, count = 0;
    for (int32_t bits = 2; bits <= 8; bits++)
        if ((q->bits >> bits & 1) && (columns * bits + WORD_BITS - 1) / WORD_BITS == words) {
            found = bits;
            count++;
        }
    return count == 1 ? found : 0;
}

/* Columns that weight_shape names; -1 after an error. */
static int64_t read_columns(const quantised *q, const char *stem, const quantised_part *codes)
{
    quantised_part part;
    int64_t shape[2];
    if (quantised_need(q, stem, ".weight_shape", codes, &part) != TN_OK ||
        quantised_want(q, &part, TN_I64, 1, (int64_t[]){2}) != TN_OK)
        return -1;
    memcpy(shape, part.tensor.data, sizeof shape);
    if (shape[0] == codes->tensor.shape[0] && shape[1] > 0 && shape[1] <= INT32_MAX)
        return shape[1];
    quantised_fail(q, &part, "says %lld rows and %lld columns, its codes have %lld rows; fetch the files again",
                   (long long)shape[0], (long long)shape[1], (long long)codes->tensor.shape[0]);
    return -1;
}

static tn_status misfit(const quantised *q, const quantised_part *part, const char *what)
{
    return quantised_fail(q, part, "%s; fetch the files again", what);
}

/* Zero points in words down the columns, [rows in words, groups]. */
static tn_status read_packed_zeros(const quantised *q, const char *stem, const tn_tensor *codes, int64_t groups,
                                   int32_t bits, tn_tensor *zero)
{
    quantised_part part;
    int64_t rows = codes->shape[0];
    if (!quantised_find(q, stem, ".weight_zero_point", &part))
        return TN_OK;
    tn_status status =
        quantised_want(q, &part, TN_I32, 2, (int64_t[]){(rows * bits + WORD_BITS - 1) / WORD_BITS, groups});
    if (status != TN_OK)
        return status;
    const quantised_packed packed = {.words = part.tensor.data,
                                     .step = groups * (WORD_BITS / 8),
                                     .next = WORD_BITS / 8,
                                     .bits = bits,
                                     .columns = true};
    status = quantised_unpack(q, &part, &packed, rows, groups, codes->dtype == TN_U4 ? TN_U8 : TN_I8,
                              quantised_shift(bits, codes->dtype), UINT8_MAX, zero);
    quantised_drop(q, &part, true);
    return status;
}

/* The group of each column where they are scattered; all -1 is none. */
static tn_status read_list(const quantised *q, const char *stem, int64_t columns, int64_t groups, tn_tensor *group)
{
    quantised_part part;
    if (!quantised_find(q, stem, ".weight_g_idx", &part))
        return TN_OK;
    tn_status status = quantised_want(q, &part, TN_I32, 1, &columns);
    int64_t none = 0;
    for (int64_t i = 0; i < columns && status == TN_OK; i++) {
        int32_t at;
        memcpy(&at, (const char *)part.tensor.data + (size_t)i * sizeof at, sizeof at);
        none += at == -1;
        if (at < -1 || at >= groups || (at == -1 && none <= i))
            status = quantised_fail(q, &part,
                                    "column %lld is of group %d, there are groups 0 to %lld; fetch the files "
                                    "again",
                                    (long long)i, (int)at, (long long)groups - 1);
    }
    if (status == TN_OK && none != columns) {
        *group = part.tensor;
        status = quantised_align(q, &part, group);
    }
    quantised_drop(q, &part, false);
    return status;
}

/* Rows of whole words of 4 bits are rows of U4, as they lie; others are re-laid. */
static tn_status read_codes(const quantised *q, const quantised_part *part, int64_t columns, int32_t bits,
                            tn_tensor *codes)
{
    int64_t rows = part->tensor.shape[0], words = part->tensor.shape[1];
    if (bits == 4 && columns * bits == words * WORD_BITS) {
        *codes = tn_tensor_dense(part->tensor.data, TN_U4, 2, (int64_t[]){rows, columns});
        return TN_OK;
    }
    const quantised_packed packed = {
        .words = part->tensor.data, .step = WORD_BITS / 8, .next = words * (WORD_BITS / 8), .bits = bits};
    tn_dtype dtype = quantised_code_type(bits, columns);
    return quantised_unpack(q, part, &packed, rows, columns, dtype, quantised_shift(bits, dtype), UINT8_MAX, codes);
}

static tn_status turn_integers(quantised *q, const char *stem, quantised_part *part)
{
    quantised_part scale;
    shards_parts parts = {0};
    tn_tensor codes;
    int64_t columns = read_columns(q, stem, part);
    int32_t bits = columns > 0 ? bits_of(q, part->tensor.shape[1], columns) : 0;
    if (columns < 0)
        return TN_E_INPUT;
    if (!bits)
        return misfit(q, part, "has rows that the columns of weight_shape do not fill in the num_bits of config.json");
    tn_status status = quantised_need(q, stem, ".weight_scale", part, &scale);
    if (status == TN_OK)
        status = quantised_scales(q, &scale, part->tensor.shape[0], columns, &parts);
    if (status == TN_OK)
        status = read_codes(q, part, columns, bits, &codes);
    if (status == TN_OK)
        status = read_packed_zeros(q, stem, &codes, parts.scale.shape[1], bits, &parts.zero);
    if (status == TN_OK)
        status = read_list(q, stem, columns, parts.scale.shape[1], &parts.group);
    if (status != TN_OK)
        return status;
    quantised_drop(q, &scale, false);
    quantised_drop(q, part, codes.data != part->tensor.data);
    return quantised_add(q, stem, ".weight", part, &codes, &parts);
}

/* E2M1 [rows, columns / 2] with scales of groups, which are divided by global (NULL: by nothing). */
static tn_status turn_e2m1(quantised *q, const char *stem, quantised_part *part, const tn_tensor *global)
{
    quantised_part scale;
    shards_parts parts = {0};
    tn_tensor codes =
        tn_tensor_dense(part->tensor.data, TN_E2M1, 2, (int64_t[]){part->tensor.shape[0], 2 * part->tensor.shape[1]});
    tn_status status = quantised_need(q, stem, ".weight_scale", part, &scale);
    if (status == TN_OK)
        status = quantised_scales(q, &scale, codes.shape[0], codes.shape[1], &parts);
    if (status != TN_OK)
        return status;
    if (global)
        parts.zero = *global;
    quantised_drop(q, &scale, false);
    return quantised_add(q, stem, ".weight", part, &codes, &parts);
}

/* A factor of all scales, or its inverse, as a number of f32 in memory of its own. */
static tn_status read_global(const quantised *q, quantised_part *part, bool inverse, tn_tensor *global)
{
    float value;
    tn_status status = quantised_check_scales(q, part);
    if (status == TN_OK && (part->tensor.dtype != TN_F32 || tn_tensor_count(&part->tensor) != 1))
        return misfit(q, part, "is not one number of f32");
    if (status != TN_OK)
        return status;
    memcpy(&value, part->tensor.data, sizeof value);
    float *kept = quantised_keep(q, part, sizeof *kept);
    if (!kept)
        return TN_E_MEMORY;
    *kept = inverse ? 1 / value : value;
    *global = tn_tensor_dense(kept, TN_F32, 1, (int64_t[]){1});
    if (value == 0 || *kept == 0 || *kept - *kept != 0)
        return misfit(q, part, "is 0 or has no inverse");
    quantised_drop(q, part, false);
    return TN_OK;
}

static tn_status turn_packed(quantised *q, const char *stem, quantised_part *part)
{
    quantised_part global;
    tn_tensor divisor;
    bool bytes = part->tensor.dtype == TN_U8;
    tn_status status = quantised_want(q, part, bytes ? TN_U8 : TN_I32, 2, (int64_t[]){-1, -1});
    if (status != TN_OK)
        return status;
    if (!bytes)
        return turn_integers(q, stem, part);
    if (!quantised_find(q, stem, ".weight_global_scale", &global))
        return turn_e2m1(q, stem, part, NULL);
    status = read_global(q, &global, false, &divisor);
    return status == TN_OK ? turn_e2m1(q, stem, part, &divisor) : status;
}

/* Zero points of int8, one for each scale. */
static tn_status read_zeros(const quantised *q, const char *stem, const quantised_part *weight, shards_parts *parts)
{
    quantised_part part;
    const tn_tensor *scale = &parts->scale;
    if (!quantised_find(q, stem, ".weight_zero_point", &part))
        return TN_OK;
    tn_tensor *t = &part.tensor;
    quantised_drop(q, &part, false);
    if (weight->tensor.dtype != TN_I8)
        return TN_OK;
    if (t->dtype != TN_I8 || tn_tensor_count(t) != (scale->stride[0] ? tn_tensor_count(scale) : scale->shape[1]))
        return misfit(q, &part, "is not an int8 for each scale");
    parts->zero = *scale;
    parts->zero.data = t->data;
    parts->zero.dtype = TN_I8;
    return TN_OK;
}

/* Codes of 8 bits, as they lie. */
static tn_status turn_scale(quantised *q, const char *stem, quantised_part *scale)
{
    quantised_part weight;
    shards_parts parts = {0};
    tn_status status = quantised_need(q, stem, ".weight", scale, &weight);
    bool integers = status == TN_OK && weight.tensor.dtype == TN_I8;
    if (status == TN_OK)
        status = quantised_want(q, &weight, integers ? TN_I8 : TN_F8_E4M3, 2, (int64_t[]){-1, -1});
    if (status == TN_OK)
        status = quantised_scales(q, scale, weight.tensor.shape[0], weight.tensor.shape[1], &parts);
    if (status == TN_OK)
        status = read_zeros(q, stem, &weight, &parts);
    if (status != TN_OK)
        return status;
    quantised_drop(q, scale, false);
    return quantised_add(q, stem, ".weight", &weight, &weight.tensor, &parts);
}

static const quantised_rule rules[] = {
    {".weight_packed", turn_packed},         {".weight_scale", turn_scale},
    {".weight_shape", quantised_ignore},     {".input_scale", quantised_ignore},
    {".input_zero_point", quantised_ignore}, {".input_global_scale", quantised_ignore},
    {".output_scale", quantised_ignore},     {".k_scale", quantised_ignore},
    {".v_scale", quantised_ignore},          {NULL, NULL}};

const quantised_method quantised_compressed = {read_config, rules};

/* ---- ModelOpt ------------------------------------------------------------------------------------ */

static void read_modelopt(quantised *q, const config_reader *config)
{
    static const config_word words[] = {{"NVFP4", 0}, {"FP8", 0}, {0}};
    (void)q;
    config_choice(config, "quant_algo", "", words);
}

static tn_status turn_nvfp4(quantised *q, const char *stem, quantised_part *part)
{
    quantised_part codes;
    tn_tensor divisor;
    tn_status status = quantised_need(q, stem, ".weight", part, &codes);
    if (status == TN_OK)
        status = quantised_want(q, &codes, TN_U8, 2, (int64_t[]){-1, -1});
    if (status == TN_OK)
        status = read_global(q, part, true, &divisor);
    return status == TN_OK ? turn_e2m1(q, stem, &codes, &divisor) : status;
}

static const quantised_rule modelopt_rules[] = {{".weight_scale_2", turn_nvfp4},    {".weight_scale", turn_scale},
                                                {".input_scale", quantised_ignore}, {".k_scale", quantised_ignore},
                                                {".v_scale", quantised_ignore},     {NULL, NULL}};

const quantised_method quantised_modelopt = {read_modelopt, modelopt_rules};
