/* Writing what was trained: every tensor of the checkpoint under its name, those that the model has in memory as they
 * are there. */
#include "train/save.h"

#include "train/merge.h"

#include "base/convert.h"
#include "base/structs.h"
#include "base/tensor.h"
#include "checkpoint/folder_copy.h"

#include <tenon/train.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct save {
    const tn_model *model;
    tn_named_tensor *tensors;
    void **turned; /* memory of those that lie the other way round; owned                          */
    void **merged; /* the same of those that an adapter was added to, or that were rounded          */
    bool merges;
    size_t count;
    tn_error *err;
} save;

/* A dense copy of t, whose last two dimensions lie the other way. */
static void *turn_back(const tn_tensor *t)
{
    int64_t rows = t->shape[t->ndim - 2], columns = t->shape[t->ndim - 1], all = tn_tensor_count(t);
    size_t size = tn_dtype_size(t->dtype);
    char *to = malloc((size_t)all * size + 1);
    for (int64_t i = 0; to && i < all; i++) {
        int64_t matrix = i / (rows * columns), at = i % (rows * columns);
        int64_t from = matrix * rows * columns + at % columns * rows + at / columns;
        memcpy(to + (size_t)i * size, (const char *)t->data + (size_t)from * size, size);
    }
    return to;
}

/* The tensor with the adapter in it. False: out of memory. */
static bool merge(save *s, tn_tensor *t)
{
    size_t bytes = (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
    if (!merge_touches(s->model, t->data, bytes))
        return true;
    char *copy = s->merged[s->count] = malloc(bytes + 1);
    if (copy) {
        memcpy(copy, t->data, bytes);
        merge_into(s->model, t->data, bytes, copy);
        t->data = copy;
    }
    return copy;
}

/* In the type that the file has, of a model that is in f32 to be trained. False: out of memory. */
static bool round_as(save *s, tn_dtype file, tn_tensor *t)
{
    int64_t count = tn_tensor_count(t);
    if (!s->model->narrow || t->dtype != TN_F32 || (file != TN_BF16 && file != TN_F16))
        return true;
    const graph *g = s->model->target.graph;
    const graph_twin *twin = file == g->narrow ? graph_find_twin(g, t->data) : NULL;
    if (twin && twin->narrow && twin->wide == t->data && twin->count == count) { /* what products read of it */
        *t = tn_tensor_dense(twin->narrow, file, t->ndim, t->shape);
        return true;
    }
    void *copy = s->merged[s->count] = malloc((size_t)count * tn_dtype_size(file) + 1);
    if (copy) {
        convert_from_f32(t->data, file, copy, count);
        *t = tn_tensor_dense(copy, file, t->ndim, t->shape);
    }
    return copy;
}

/* As the model has it, or as the file does where it does not read it. */
static tn_status add(save *s, const char *name)
{
    static const tn_dtype types[] = {TN_F32, TN_BF16, TN_F16};
    const shards *weights = s->model->weights;
    tn_named_tensor *to = &s->tensors[s->count];
    const void *data = shards_used(weights, name, TN_DTYPE_NONE);
    to->name = name;
    shards_get(weights, name, &to->tensor);
    bool turned = data != NULL;
    tn_dtype file = to->tensor.dtype;
    for (size_t i = 0; data && i < sizeof types / sizeof *types; i++)
        if (shards_used(weights, name, types[i])) {
            to->tensor = tn_tensor_dense((void *)(uintptr_t)data, types[i], to->tensor.ndim, to->tensor.shape);
            turned = false;
        }
    if (turned)
        to->tensor = tn_tensor_dense((void *)(uintptr_t)data, s->model->dtype, to->tensor.ndim, to->tensor.shape);
    if (s->merges ? !merge(s, &to->tensor) : !round_as(s, file, &to->tensor))
        return tn_fail(s->err, TN_E_MEMORY, name, "out of memory");
    if (turned) {
        to->tensor.data = s->turned[s->count] = turn_back(&to->tensor);
        if (!to->tensor.data)
            return tn_fail(s->err, TN_E_MEMORY, name, "out of memory");
    }
    s->count++;
    return TN_OK;
}

static void say_type(void *ctx, json_t *root)
{
    const tn_model *model = ctx;
    if (model->narrow) /* tensors keep the types that they had                                         */
        return;
    const char *name = model->dtype == TN_F32 ? "float32" : model->dtype == TN_BF16 ? "bfloat16" : "float16";
    bool older = json_object_get(root, "torch_dtype");
    json_object_set_new(root, older ? "torch_dtype" : "dtype", json_string(name));
}

static tn_status check(const tn_model *model, tn_error *err)
{
    tn_status status = TN_OK;
    struct stat st;
    config_reader root = config_root(model->config, &status, err);
    if (stat(model->folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return tn_fail(err, TN_E_USAGE, model->folder, "is no folder, of which alone another is made");
    if (config_has(&root, "quantization_config"))
        return tn_fail(err, TN_E_USAGE, model->folder, "is quantised, and its codes cannot be changed");
    return status;
}

static tn_status write(save *s, folder_copy *c)
{
    tn_status status = folder_copy_weights(c, s->tensors, s->count, NULL, NULL);
    if (status == TN_OK)
        status = folder_copy_config(c, say_type, (void *)(uintptr_t)s->model);
    return status == TN_OK ? folder_copy_files(c) : status;
}

tn_status save_model(const tn_model *model, bool merges, const char *out, tn_error *err)
{
    size_t count = shards_count(model->weights);
    save s = {.model = model, .merges = merges, .err = err};
    folder_copy c;
    tn_status status = merges ? merge_check(model, err) : TN_OK;
    if (status == TN_OK)
        status = check(model, err);
    if (status == TN_OK)
        status = folder_copy_check(out, err);
    if (status != TN_OK)
        return status;
    s.tensors = calloc(count + 1, sizeof *s.tensors);
    s.turned = calloc(count + 1, sizeof *s.turned);
    s.merged = calloc(count + 1, sizeof *s.merged);
    if (!s.tensors || !s.turned || !s.merged)
        status = tn_fail(err, TN_E_MEMORY, out, "out of memory for %zu tensors", count);
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = add(&s, shards_name(model->weights, i));
    if (status == TN_OK)
        status = folder_copy_begin(&c, model->folder, out, err);
    if (status == TN_OK)
        status = folder_copy_end(&c, out, write(&s, &c));
    for (size_t i = 0; s.turned && i < count; i++)
        free(s.turned[i]);
    for (size_t i = 0; s.merged && i < count; i++)
        free(s.merged[i]);
    free(s.merged);
    free(s.turned);
    free(s.tensors);
    return status;
}

tn_status tn_model_merge(tn_model *model, const char *folder, tn_error *err)
{
    if (!model || !folder)
        return structs_missing(model ? "folder" : "model", err);
    return model_files_check(model, save_model(model, true, folder, err), err);
}
