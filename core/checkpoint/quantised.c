/* Which method a folder is quantised by, and its rules applied to every tensor. */
#include "checkpoint/quantised.h"

#include "base/blocks.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const quantised_method *const methods[] = {&quantised_fp8,     &quantised_compressed, &quantised_gptq,
                                                  &quantised_awq,     &quantised_mxfp4,      &quantised_bitsandbytes,
                                                  &quantised_modelopt};

static const config_word names[] = {{"fp8", 0},   {"compressed-tensors", 1}, {"gptq", 2},     {"awq", 3},
                                    {"mxfp4", 4}, {"bitsandbytes", 5},       {"modelopt", 6}, {0}};

/* The tensor of that name as a rule's, where its name ends in leaf and has a stem before it. */
static bool meets(const quantised *q, const char *name, const char *leaf, char stem[QUANTISED_NAME],
                  quantised_part *part)
{
    size_t length = strlen(name), end = strlen(leaf);
    if (length <= end || length >= QUANTISED_NAME || strcmp(name + length - end, leaf) != 0)
        return false;
    memcpy(stem, name, length - end);
    stem[length - end] = 0;
    return quantised_find(q, stem, leaf, part);
}

static tn_status turn_all(quantised *q, const quantised_rule *rules)
{
    size_t count = shards_count(q->set);
    char stem[QUANTISED_NAME];
    quantised_part part;
    tn_status status = TN_OK;
    for (const quantised_rule *rule = rules; rule->leaf; rule++)
        for (size_t i = 0; i < count && status == TN_OK; i++)
            if (meets(q, shards_name(q->set, i), rule->leaf, stem, &part))
                status = rule->turn(q, stem, &part);
    return status;
}

/* Codes that no rule has met would be taken for values. */
static tn_status check_left(const quantised *q)
{
    quantised_part part;
    for (size_t i = 0; i < shards_count(q->set); i++) {
        const char *name = shards_name(q->set, i);
        if (quantised_find(q, name, "", &part) && blocks_is_quantised(part.tensor.dtype) &&
            !shards_parts_of(q->set, name).scale.dtype)
            return quantised_fail(q, &part,
                                  "has codes of dtype %s and no scales of a known form; fetch the files again, or "
                                  "take another version of the model",
                                  tn_dtype_name(part.tensor.dtype));
    }
    return TN_OK;
}

static tn_status resolve(shards *set, const quantised_method *method, const config_reader *config, shards_loop loop)
{
    quantised q = {.set = set, .loop = loop, .err = config->err};
    if (method->read)
        method->read(&q, config);
    if (*config->status == TN_OK)
        *config->status = turn_all(&q, method->rules);
    if (*config->status == TN_OK)
        *config->status = check_left(&q);
    return *config->status;
}

/* What was written before config.json had a place for it. */
static const struct {
    const char *file, *key;
    const quantised_method *method;
} older[] = {{"quantize_config.json", NULL, &quantised_gptq},
             {"quant_config.json", NULL, &quantised_awq},
             {"hf_quant_config.json", "quantization", &quantised_modelopt}};

static tn_status resolve_older(shards *set, size_t i, shards_loop loop, tn_error *err)
{
    tn_status status = TN_OK;
    char *path = file_join(shards_folder(set), older[i].file);
    if (!path)
        return tn_fail(err, TN_E_MEMORY, shards_folder(set), "out of memory");
    config_file *file = access(path, F_OK) == 0 ? config_open(path, err) : NULL;
    if (file) {
        config_reader root = config_root(file, &status, err);
        config_reader config = older[i].key ? config_child(&root, older[i].key) : root;
        resolve(set, older[i].method, &config, loop);
    } else if (access(path, F_OK) == 0) {
        status = err && err->code != TN_OK ? err->code : TN_E_INPUT;
    }
    config_close(file);
    free(path);
    return status;
}

tn_status quantised_resolve(shards *set, const config_reader *root, shards_loop loop, tn_error *err)
{
    if (config_has(root, "quantization_config")) {
        config_reader config = config_child(root, "quantization_config");
        return resolve(set, methods[config_choice(&config, "quant_method", "", names)], &config, loop);
    }
    for (size_t i = 0; i < sizeof older / sizeof older[0] && *root->status == TN_OK && !shards_is_record(set); i++)
        *root->status = resolve_older(set, i, loop, err);
    return *root->status;
}
