/* quant_method "bitsandbytes": NF4 in reading order, whose scales may be quantised once more, and int8 rows. */
#include "checkpoint/quantised.h"

#include "base/blocks.h"
#include "base/json_memory.h"
#include "base/tensor.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { LEVELS = 16, MAP = 256 };

/* What the JSON of a matrix says. */
typedef struct nf4_state {
    int64_t rows, columns, block, nested_block;
    double offset;
} nf4_state;

static int64_t whole(const json_t *value)
{
    json_int_t n = json_integer_value(value);
    return n > 0 && n <= INT32_MAX ? n : 0;
}

static tn_status read_state(const quantised *q, const quantised_part *part, nf4_state *s)
{
    json_error_t at;
    tn_status status = quantised_want(q, part, TN_U8, 1, (int64_t[]){-1});
    if (status != TN_OK)
        return status;
    json_memory_watch();
    json_t *root = json_loadb(part->tensor.data, (size_t)part->tensor.shape[0], 0, &at);
    if (json_memory_failed()) {
        json_decref(root);
        return tn_fail(q->err, TN_E_MEMORY, part->file, "out of memory");
    }
    const json_t *shape = json_object_get(root, "shape");
    *s = (nf4_state){.rows = whole(json_array_get(shape, 0)),
                     .columns = whole(json_array_get(shape, 1)),
                     .block = whole(json_object_get(root, "blocksize")),
                     .nested_block = whole(json_object_get(root, "nested_blocksize")),
                     .offset = json_number_value(json_object_get(root, "nested_offset"))};
    json_decref(root);
    if (s->rows && s->columns && s->block && isfinite(s->offset))
        return TN_OK;
    return quantised_fail(q, part, "is not the JSON of a matrix: shape and blocksize; fetch the files again");
}

static tn_status check_levels(const quantised *q, const char *stem, const quantised_part *state)
{
    quantised_part part;
    float levels[LEVELS], map[LEVELS];
    bool same = true;
    static const uint8_t codes[LEVELS / 2] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
    tn_status status = quantised_need(q, stem, ".quant_map", state, &part);
    if (status == TN_OK)
        status = quantised_want(q, &part, TN_F32, 1, (int64_t[]){LEVELS});
    if (status != TN_OK)
        return status;
    blocks_to_f32(TN_NF4, codes, 0, LEVELS, levels);
    memcpy(map, part.tensor.data, sizeof map);
    for (int i = 0; i < LEVELS; i++)
        same = same && map[i] == levels[i];
    if (!same)
        return quantised_fail(q, &part, "has other levels than NF4, which alone is supported");
    quantised_drop(q, &part, false);
    return TN_OK;
}

/* Scales that are bytes, codes of a map of 256 values, with scales of their own. */
static tn_status read_nested(const quantised *q, const char *stem, const nf4_state *s, const quantised_part *absmax,
                             float *to)
{
    quantised_part map, scale;
    int64_t count = tn_tensor_count(&absmax->tensor), block = s->nested_block ? s->nested_block : MAP;
    int64_t groups = (count + block - 1) / block;
    float values[MAP], factor = 0;
    tn_status status = quantised_need(q, stem, ".nested_quant_map", absmax, &map);
    if (status == TN_OK)
        status = quantised_want(q, &map, TN_F32, 1, (int64_t[]){MAP});
    if (status == TN_OK)
        status = quantised_need(q, stem, ".nested_absmax", absmax, &scale);
    if (status == TN_OK)
        status = quantised_want(q, &scale, TN_F32, 1, &groups);
    if (status == TN_OK)
        status = quantised_check_scales(q, &map);
    if (status == TN_OK)
        status = quantised_check_scales(q, &scale);
    if (status != TN_OK)
        return status;
    memcpy(values, map.tensor.data, sizeof values);
    for (int64_t i = 0; i < count; i++) {
        memcpy(&factor, (const char *)scale.tensor.data + (size_t)(i / block) * sizeof factor, sizeof factor);
        to[i] = values[((const uint8_t *)absmax->tensor.data)[i]] * factor + (float)s->offset;
    }
    quantised_drop(q, &map, false);
    quantised_drop(q, &scale, false);
    return TN_OK;
}

/* Columns of a row that surely lie in one block: blocks go on from row to row. */
static int64_t shared_columns(const nf4_state *s)
{
    int64_t a = s->columns, b = s->block;
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Scales of blocks that cross rows, as those of what lies in one row. */
static tn_status spread(const quantised *q, const quantised_part *part, const nf4_state *s, tn_tensor *scale)
{
    int64_t each = shared_columns(s), groups = s->columns / each;
    float *to = quantised_keep(q, part, (size_t)(s->rows * groups) * sizeof *to);
    if (!to)
        return TN_E_MEMORY;
    for (int64_t i = 0; i < s->rows * groups; i++)
        memcpy(&to[i], (const char *)scale->data + (size_t)(i * each / s->block) * sizeof *to, sizeof *to);
    *scale = tn_tensor_dense(to, TN_F32, 2, (int64_t[]){s->rows, groups});
    return TN_OK;
}

/* f32 for each block in reading order. */
static tn_status read_absmax(const quantised *q, const char *stem, const nf4_state *s, const quantised_part *codes,
                             tn_tensor *scale)
{
    quantised_part part;
    const int64_t count = (s->rows * s->columns + s->block - 1) / s->block;
    tn_status status = quantised_need(q, stem, ".absmax", codes, &part);
    bool nested = status == TN_OK && part.tensor.dtype == TN_U8;
    if (status == TN_OK)
        status = quantised_want(q, &part, nested ? TN_U8 : TN_F32, 1, &count);
    if (status == TN_OK && !nested)
        status = quantised_check_scales(q, &part);
    if (status != TN_OK)
        return status;
    bool whole_rows = s->columns % s->block == 0;
    *scale = tn_tensor_dense(part.tensor.data, TN_F32, 2,
                             whole_rows ? (int64_t[]){s->rows, s->columns / s->block} : (int64_t[]){1, count});
    quantised_drop(q, &part, false);
    if (!nested) {
        status = quantised_align(q, &part, scale);
    } else {
        scale->data = quantised_keep(q, &part, (size_t)count * sizeof(float));
        status = scale->data ? read_nested(q, stem, s, &part, scale->data) : TN_E_MEMORY;
    }
    return status == TN_OK && !whole_rows ? spread(q, &part, s, scale) : status;
}

/* stem: X.weight */
static tn_status turn_nf4(quantised *q, const char *stem, quantised_part *part)
{
    nf4_state s = {0};
    quantised_part codes;
    shards_parts parts = {0};
    tn_status status = read_state(q, part, &s);
    if (status == TN_OK)
        status = check_levels(q, stem, part);
    if (status == TN_OK)
        status = quantised_need(q, stem, "", part, &codes);
    if (status == TN_OK)
        status = quantised_want(q, &codes, TN_U8, 2, (int64_t[]){(s.rows * s.columns + 1) / 2, 1});
    if (status == TN_OK && s.columns % 2)
        return quantised_fail(q, part, "says rows of %lld codes, which begin within bytes and are not supported",
                              (long long)s.columns);
    if (status == TN_OK)
        status = read_absmax(q, stem, &s, &codes, &parts.scale);
    if (status == TN_OK)
        status =
            quantised_group_list(q, part, s.columns, s.columns / shared_columns(&s), shared_columns(&s), &parts.group);
    if (status != TN_OK)
        return status;
    quantised_drop(q, part, false);
    const tn_tensor t = tn_tensor_dense(codes.tensor.data, TN_NF4, 2, (int64_t[]){s.rows, s.columns});
    return quantised_add(q, stem, "", &codes, &t, &parts);
}

static tn_status refuse_fp4(quantised *q, const char *stem, quantised_part *part)
{
    (void)stem;
    return quantised_fail(q, part, "belongs to a matrix of FP4, which is not supported; NF4 is");
}

/* SCB [rows]: 127 times the scales. */
static tn_status turn_int8(quantised *q, const char *stem, quantised_part *part)
{
    quantised_part weight;
    shards_parts parts = {0};
    tn_status status = quantised_need(q, stem, ".weight", part, &weight);
    if (status == TN_OK)
        status = quantised_want(q, &weight, TN_I8, 2, (int64_t[]){-1, -1});
    if (status == TN_OK)
        status = quantised_want(q, part, TN_F32, 1, weight.tensor.shape);
    if (status == TN_OK)
        status = quantised_check_scales(q, part);
    if (status != TN_OK)
        return status;
    int64_t rows = weight.tensor.shape[0];
    float *scale = quantised_keep(q, part, (size_t)rows * sizeof *scale);
    if (!scale)
        return TN_E_MEMORY;
    memcpy(scale, part->tensor.data, (size_t)rows * sizeof *scale);
    for (int64_t i = 0; i < rows; i++)
        scale[i] /= 127;
    parts.scale = tn_tensor_dense(scale, TN_F32, 2, (int64_t[]){rows, 1});
    quantised_drop(q, part, false);
    return quantised_add(q, stem, ".weight", &weight, &weight.tensor, &parts);
}

static const quantised_rule rules[] = {{".quant_state.bitsandbytes__nf4", turn_nf4},
                                       {".quant_state.bitsandbytes__fp4", refuse_fp4},
                                       {".SCB", turn_int8},
                                       {".weight_format", quantised_ignore},
                                       {NULL, NULL}};

const quantised_method quantised_bitsandbytes = {NULL, rules};
