/* A model over tensors that the program lends. */
#include "base/structs.h"
#include "base/tensor.h"
#include "open/model.h"

#include <string.h>

/* What can be said of it without knowing the model. */
static tn_status check_lent(const char *name, const tn_tensor *t, tn_error *err)
{
    if (!name || !name[0])
        return tn_fail(err, TN_E_INPUT, "names", "a tensor has no name");
    tn_status status = tensor_check(t, name, err);
    if (status != TN_OK)
        return status;
    if (t->dtype <= TN_DTYPE_NONE || t->dtype >= TN_DTYPE_COUNT)
        return tn_fail(err, TN_E_INPUT, name, "has dtype %d, which is none", (int)t->dtype);
    return t->data || tn_tensor_count(t) == 0 ? TN_OK : tn_fail(err, TN_E_INPUT, name, "has no data");
}

/* The floating type of most bytes. */
static tn_dtype most_of(const tn_tensor *tensors, size_t count)
{
    double bytes[TN_DTYPE_COUNT] = {0};
    tn_dtype most = TN_DTYPE_NONE;
    for (size_t i = 0; i < count; i++) {
        tn_dtype dtype = tensors[i].dtype;
        if (!tensor_is_float(dtype) && dtype != TN_F64)
            continue;
        bytes[dtype] += (double)tn_dtype_bytes(dtype, tn_tensor_count(&tensors[i]));
        if (bytes[dtype] > bytes[most])
            most = dtype;
    }
    return most;
}

static shards *lend(const char *const *names, const tn_tensor *tensors, size_t count, tn_error *err)
{
    shards *set = shards_empty("the lent tensors", NULL, err);
    for (size_t i = 0; set && i < count; i++) {
        tn_status status = check_lent(names[i], &tensors[i], err);
        if (status == TN_OK)
            status = shards_add(set, names[i], shards_folder(set), &tensors[i], NULL, err);
        if (status != TN_OK) {
            shards_close(set);
            return NULL;
        }
    }
    return set;
}

tn_model *tn_model_borrow(const char *config_json, const char *const *names, const tn_tensor *tensors, size_t count,
                          const tn_model_options *options, tn_error *err)
{
    if (!config_json || (count > 0 && (!names || !tensors))) {
        structs_missing(!config_json ? "config_json" : !names ? "names" : "tensors", err);
        return NULL;
    }
    shards *set = lend(names, tensors, count, err);
    if (set && most_of(tensors, count) == TN_DTYPE_NONE) {
        tn_fail(err, TN_E_INPUT, shards_folder(set), "none of them is f32, bf16 or f16");
        shards_close(set);
        return NULL;
    }
    return set ? model_open_lent(config_json, options, set, most_of(tensors, count), err) : NULL;
}
