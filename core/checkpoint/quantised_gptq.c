/* GPTQ and AWQ: codes in words down the columns of what nn.Linear calls a weight, [in,out], with zero points and scales
 * [groups,out]. They are re-laid as rows of codes, zero points and scales. */
#include "checkpoint/quantised.h"

#include "base/tensor.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BITS = 32 };

/* What belongs to one module. */
typedef struct packed_module {
    quantised_part codes, zeros, scales, list; /* the last: file NULL where there is none           */
    int64_t rows, columns, groups;             /* of the weight that they mean                      */
    int32_t bits;
} packed_module;

static void read_group(quantised *q, const config_reader *config)
{
    int64_t group = config_i64(config, "group_size", -1, -1, INT32_MAX);
    q->group = group > 0 ? group : 0;
}

/* Modules that "dynamic" leaves out have plain tensors, which say so; others would have other bits or groups. */
static void refuse_overrides(const config_reader *config)
{
    config_reader dynamic = config_child(config, "dynamic");
    const char *pattern;
    char value[128];
    for (int64_t i = 0; (pattern = config_key(&dynamic, i)); i++)
        if (strncmp(pattern, "-:", 2) != 0 && config_says(&dynamic, pattern, 0, value, sizeof value))
            config_fail(&dynamic, pattern, "is %s: bits and groups of single modules are not supported", value);
}

static void read_gptq(quantised *q, const config_reader *config)
{
    static const config_word formats[] = {{"gptq", 1}, {"gptq_v2", 0}, {0}};
    int64_t bits = config_need_i64(config, "bits", 2, 8);
    if (bits > 4 && bits < 8)
        config_fail(config, "bits", "is %lld, which GPTQ does not pack; 2, 3, 4 and 8 are supported", (long long)bits);
    q->bits = 1u << bits;
    q->symmetric = config_bool(config, "sym", false);
    q->add = config_choice(config, "checkpoint_format", "gptq", formats);
    refuse_overrides(config);
    read_group(q, config);
}

static void read_awq(quantised *q, const config_reader *config)
{
    static const config_word versions[] = {{"gemm", 0}, {"GEMM", 0}, {0}};
    config_choice(config, "version", "gemm", versions);
    config_need_i64(config, config_has(config, "w_bit") ? "w_bit" : "bits", 4, 4);
    q->bits = 1u << 4;
    read_group(q, config);
}

static int32_t bits_of(const quantised *q)
{
    return (int32_t)__builtin_ctz(q->bits);
}

/* What is there, and of the shapes that codes of that many rows and columns have. */
static tn_status find_parts(const quantised *q, const char *stem, packed_module *m, int64_t zero_columns)
{
    tn_status status = quantised_need(q, stem, ".scales", &m->codes, &m->scales);
    if (status == TN_OK)
        status = quantised_want(q, &m->scales, TN_DTYPE_NONE, 2, (int64_t[]){-1, m->rows});
    m->groups = m->scales.tensor.shape[0];
    if (status == TN_OK)
        status = quantised_need(q, stem, ".qzeros", &m->codes, &m->zeros);
    if (status == TN_OK)
        status = quantised_want(q, &m->zeros, TN_I32, 2, (int64_t[]){m->groups, zero_columns});
    if (quantised_find(q, stem, ".g_idx", &m->list) && status == TN_OK)
        status = quantised_want(q, &m->list, TN_I32, 1, &m->columns);
    return status;
}

/* Do groups of so many columns follow one another? A group that there is not is an error. */
static tn_status look_at_list(const quantised *q, const packed_module *m, int64_t each, bool *regular)
{
    *regular = each > 0;
    for (int64_t i = 0; i < m->columns; i++) {
        int32_t group;
        memcpy(&group, (const char *)m->list.tensor.data + (size_t)i * sizeof group, sizeof group);
        if (group < 0 || group >= m->groups)
            return quantised_fail(q, &m->list,
                                  "column %lld is of group %d, there are groups 0 to %lld; fetch the "
                                  "files again",
                                  (long long)i, (int)group, (long long)m->groups - 1);
        *regular = *regular && group == i / each;
    }
    return TN_OK;
}

static tn_status read_groups(const quantised *q, const packed_module *m, tn_tensor *group)
{
    int64_t each = quantised_columns(m->columns, m->groups, q->group);
    bool regular = each > 0;
    tn_status status = m->list.file ? look_at_list(q, m, each, &regular) : TN_OK;
    if (status != TN_OK)
        return status;
    if (regular)
        return quantised_group_list(q, &m->scales, m->columns, m->groups, each, group);
    if (!m->list.file)
        return quantised_fail(q, &m->scales, "has %lld groups, which %lld columns are not made of",
                              (long long)m->groups, (long long)m->columns);
    *group = m->list.tensor;
    return quantised_align(q, &m->list, group);
}

/* Zero points [groups, rows in words] become [rows, groups]; without any all are in the middle. */
static tn_status read_zeros(const quantised *q, const packed_module *m, tn_dtype codes, bool lanes, tn_tensor *zero)
{
    if (q->symmetric)
        return TN_OK;
    const tn_tensor *t = &m->zeros.tensor;
    const quantised_packed packed = {.words = t->data,
                                     .step = WORD_BITS / 8,
                                     .next = t->shape[1] * (WORD_BITS / 8),
                                     .bits = m->bits,
                                     .columns = true,
                                     .lanes = lanes};
    tn_status status = quantised_unpack(q, &m->zeros, &packed, m->rows, m->groups, codes == TN_U4 ? TN_U8 : TN_I8,
                                        quantised_shift(m->bits, codes) + q->add, (1 << m->bits) - 1 - q->add, zero);
    return status != TN_E_INPUT ? status
                                : quantised_fail(q, &m->zeros,
                                                 "has a zero point of %d, stored less one: the file was damaged where "
                                                 "it was written; take another version of the model",
                                                 1 << m->bits);
}

static void drop_parts(const quantised *q, const packed_module *m, bool keeps_list)
{
    quantised_drop(q, &m->zeros, true);
    quantised_drop(q, &m->scales, true);
    if (m->list.file)
        quantised_drop(q, &m->list, !keeps_list);
    quantised_drop(q, &m->codes, true);
}

/* The module's weight from its codes, which lie as packed says. */
static tn_status turn_module(const quantised *q, const char *stem, packed_module *m, const quantised_packed *packed)
{
    tn_tensor codes;
    shards_parts parts = {0};
    tn_dtype dtype = quantised_code_type(m->bits, m->columns);
    tn_status status = read_groups(q, m, &parts.group);
    if (status == TN_OK)
        status = read_zeros(q, m, dtype, packed->lanes, &parts.zero);
    if (status == TN_OK)
        status = quantised_turned_scales(q, &m->scales, &parts.scale);
    if (status == TN_OK)
        status = quantised_unpack(q, &m->codes, packed, m->rows, m->columns, dtype, quantised_shift(m->bits, dtype),
                                  UINT8_MAX, &codes);
    if (status != TN_OK)
        return status;
    drop_parts(q, m, parts.group.data == m->list.tensor.data);
    return quantised_add(q, stem, ".weight", &m->codes, &codes, &parts);
}

/* qweight [in * bits / 32, out] */
static tn_status turn_gptq(quantised *q, const char *stem, quantised_part *part)
{
    packed_module m = {.codes = *part, .bits = bits_of(q)};
    tn_status status = quantised_want(q, part, TN_I32, 2, (int64_t[]){-1, -1});
    if (status != TN_OK)
        return status;
    int64_t words = part->tensor.shape[0];
    m.rows = part->tensor.shape[1];
    m.columns = words * WORD_BITS / m.bits;
    if (m.columns * m.bits != words * WORD_BITS || m.rows * m.bits % WORD_BITS)
        return quantised_fail(q, part, "has %lld rows of %lld words, which codes of %d bits do not fill",
                              (long long)words, (long long)m.rows, (int)m.bits);
    if ((status = find_parts(q, stem, &m, m.rows * m.bits / WORD_BITS)) != TN_OK)
        return status;
    const quantised_packed packed = {
        .words = part->tensor.data, .step = m.rows * (WORD_BITS / 8), .next = WORD_BITS / 8, .bits = m.bits};
    return turn_module(q, stem, &m, &packed);
}

/* qweight [in, out / 8] */
static tn_status turn_awq(quantised *q, const char *stem, quantised_part *part)
{
    packed_module m = {.codes = *part, .bits = bits_of(q)};
    tn_status status = quantised_want(q, part, TN_I32, 2, (int64_t[]){-1, -1});
    int64_t words = part->tensor.shape[1];
    m.columns = part->tensor.shape[0];
    m.rows = words * (WORD_BITS / m.bits);
    if (status != TN_OK || (status = find_parts(q, stem, &m, words)) != TN_OK)
        return status;
    const quantised_packed packed = {.words = part->tensor.data,
                                     .step = WORD_BITS / 8,
                                     .next = words * (WORD_BITS / 8),
                                     .bits = m.bits,
                                     .columns = true,
                                     .lanes = true};
    return turn_module(q, stem, &m, &packed);
}

static const quantised_rule gptq_rules[] = {{".qweight", turn_gptq}, {NULL, NULL}};
static const quantised_rule awq_rules[] = {{".qweight", turn_awq}, {NULL, NULL}};

const quantised_method quantised_gptq = {read_gptq, gptq_rules};
const quantised_method quantised_awq = {read_awq, awq_rules};
