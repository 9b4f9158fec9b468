/* Matrices as folders have them that are quantised by some method: each becomes such a folder, which is read as that of
 * a model. */
#include "blocks.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 16, NAME = 128 };

#define COMPRESSED(format, bits, group)                                                                                \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                                                 \
    "\", \"config_groups\": {\"g\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": " bits                     \
    ", \"group_size\": " group "}}}}"
#define GPTQ(bits, symmetric, format)                                                                                  \
    "{\"quant_method\": \"gptq\", \"bits\": " bits ", \"sym\": " symmetric ", \"checkpoint_format\": \"" format "\"}"

/* How formats' names begin, and what config.json says of them. */
static const struct kind {
    const char *begins, *config;
    int32_t ulps; /* of two factors that round                                                      */
} kinds[] = {
    {"awq4", "{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemm\", \"zero_point\": true}", 0},
    {"bnb_int8", "{\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true}", 0},
    {"bnb_nf4_plain", "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\"}",
     0},
    {"bnb_nf4", "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\"}", 1},
    {"ct_int2", COMPRESSED("pack-quantized", "2", "64"), 0},
    {"ct_int3", COMPRESSED("pack-quantized", "3", "64"), 0},
    {"ct_int4_channel", COMPRESSED("pack-quantized", "4", "null"), 0},
    {"ct_int4_g128", COMPRESSED("pack-quantized", "4", "128"), 0},
    {"ct_int4_g64", COMPRESSED("pack-quantized", "4", "64"), 0},
    {"ct_int8_g64", COMPRESSED("pack-quantized", "8", "64"), 0},
    {"ct_int8_rows", COMPRESSED("int-quantized", "8", "null"), 0},
    {"ct_nvfp4", COMPRESSED("nvfp4-pack-quantized", "4", "16"), 1},
    {"fp8_block", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", 0},
    {"fp8_", COMPRESSED("float-quantized", "8", "null"), 0},
    {"gptq2", GPTQ("2", "true", "gptq"), 0},
    {"gptq4_asym_v1", GPTQ("4", "false", "gptq"), 0},
    {"gptq4_asym_v2", GPTQ("4", "false", "gptq_v2"), 0},
    {"gptq4", GPTQ("4", "true", "gptq"), 0},
    {"gptq8", GPTQ("8", "true", "gptq"), 0},
    {"modelopt_nvfp4", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}", 1},
    {"mxfp4", "{\"quant_method\": \"mxfp4\"}", 0},
};

static const struct kind *find_kind(const char *format)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strncmp(format, kinds[i].begins, strlen(kinds[i].begins)))
            return &kinds[i];
    return NULL;
}

static bool is_value(const char *name)
{
    return !strcmp(name, "value");
}

/* All tensors of the file but the values, as those of a module: of experts where there are several matrices. */
static tn_status write_weights(const char *path, const tn_safetensors *file, bool experts, tn_error *err)
{
    tn_named_tensor parts[PARTS];
    char names[PARTS][NAME];
    size_t count = 0;
    for (size_t i = 0; i < tn_safetensors_count(file) && count < PARTS; i++) {
        const char *name = tn_safetensors_name(file, i);
        if (is_value(name) || !tn_safetensors_get(file, name, &parts[count].tensor))
            continue;
        snprintf(names[count], NAME, "%s%s", experts ? "m.experts.down_proj_" : "m.", name);
        parts[count].name = names[count];
        count++;
    }
    return tn_safetensors_write(path, parts, count, err);
}

static void check_one(check_state *s, const shards *set, const struct kind *kind, const char *name, tn_tensor values)
{
    const check_case unknown = {.what = "the folder"};
    blocks_matrix m = {.name = name, .values = values, .ulps = kind->ulps, .product = true};
    if (!shards_get(set, name, &m.codes)) {
        check_fail(s, &unknown, "has no tensor %s in the end", name);
        return;
    }
    if (m.codes.ndim != 2 || m.codes.shape[0] != values.shape[0] || m.codes.shape[1] != values.shape[1]) {
        check_fail(s, &unknown, "tensor %s has another shape than its values", name);
        return;
    }
    m.parts = shards_parts_of(set, name);
    blocks_check(s, &m);
}

/* values [rows,columns], or [experts,rows,columns]. */
static void check_all(check_state *s, const shards *set, const struct kind *kind, const tn_tensor *values)
{
    char name[NAME];
    if (values->ndim == 2)
        check_one(s, set, kind, "m.weight", *values);
    for (int64_t i = 0; values->ndim == 3 && i < values->shape[0]; i++) {
        float *first = (float *)values->data + i * values->stride[0];
        snprintf(name, sizeof name, "m.experts.%lld.down_proj.weight", (long long)i);
        check_one(s, set, kind, name, tn_tensor_dense(first, TN_F32, 2, values->shape + 1));
    }
}

static void check_folder(check_state *s, const char *folder, const struct kind *kind, const tn_tensor *values)
{
    const check_case unknown = {.what = "the folder"};
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    char *path = tempdir_path(folder, "config.json");
    config_file *config = config_open(path, &err);
    shards *set = config ? shards_open(folder, &err) : NULL;
    if (set) {
        config_reader root = config_root(config, &status, &err);
        status = quantised_resolve(set, &root, tn_parallel_for, &err);
    }
    if (set && status == TN_OK)
        check_all(s, set, kind, values);
    else
        check_fail(s, &unknown, "%s", err.message);
    shards_close(set);
    config_close(config);
    free(path);
}

bool blocks_packed(check_state *s, const char *format, const tn_safetensors *file)
{
    const struct kind *kind = find_kind(format);
    const check_case unknown = {.what = "the file"};
    tn_error err = TN_ERROR_INIT;
    tn_tensor values;
    char config[1024];
    if (!kind)
        return false;
    if (!tn_safetensors_get(file, "value", &values) || values.dtype != TN_F32 || values.ndim < 2 || values.ndim > 3) {
        check_fail(s, &unknown, "lacks the tensor value, or it is no matrix of f32");
        return true;
    }
    char *folder = tempdir_new(), *path = tempdir_path(folder, "model.safetensors");
    snprintf(config, sizeof config, "{\"quantization_config\": %s}", kind->config);
    tempdir_put(folder, "config.json", config);
    if (write_weights(path, file, values.ndim == 3, &err) == TN_OK)
        check_folder(s, folder, kind, &values);
    else
        check_fail(s, &unknown, "%s", err.message);
    free(path);
    tempdir_remove(folder);
    return true;
}
