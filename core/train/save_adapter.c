/* An adapter's folder, as peft writes it: its tensors in f32 under the names that they came with, and its
 * configuration. */
#include "train/save.h"

#include "checkpoint/folder_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A dense copy of a view. */
static tn_tensor dense(const tn_tensor *t)
{
    tn_tensor copy = tn_tensor_dense(malloc((size_t)tn_tensor_count(t) * sizeof(float)), TN_F32, 2, t->shape);
    for (int64_t i = 0; copy.data && i < t->shape[0]; i++)
        for (int64_t k = 0; k < t->shape[1]; k++)
            ((float *)copy.data)[i * t->shape[1] + k] = ((const float *)t->data)[i * t->stride[0] + k * t->stride[1]];
    return copy;
}

static tn_status list_views(const peft_adapter *a, tn_named_tensor *list, char (*names)[PEFT_NAME], tn_error *err)
{
    for (size_t i = 0; i < a->view_count; i++) {
        snprintf(names[i], PEFT_NAME, "%s%s", PEFT_PREFIX, a->views[i].name);
        list[i] = (tn_named_tensor){.name = names[i], .tensor = dense(&a->views[i].tensor)};
        if (!list[i].tensor.data)
            return tn_fail(err, TN_E_MEMORY, names[i], "out of memory");
    }
    return TN_OK;
}

static tn_status write(const peft_adapter *a, const char *out, const tn_named_tensor *list, tn_error *err)
{
    folder_copy c;
    tn_status status = folder_copy_begin(&c, NULL, out, err);
    if (status != TN_OK)
        return status;
    status = folder_copy_tensors(&c, "adapter_model.safetensors", list, a->view_count, NULL, NULL);
    if (status == TN_OK)
        status = folder_copy_text(&c, "adapter_config.json", a->config.text, strlen(a->config.text));
    return folder_copy_end(&c, out, status);
}

tn_status save_adapter(const tn_model *model, const char *out, tn_error *err)
{
    const peft_adapter *a = model->adapter;
    if (!a)
        return tn_fail(err, TN_E_USAGE, model->folder, "has no adapter; its weights are written by tn_trainer_save");
    tn_status status = folder_copy_check(out, err);
    if (status != TN_OK)
        return status;
    tn_named_tensor *list = calloc(a->view_count + 1, sizeof *list);
    char(*names)[PEFT_NAME] = calloc(a->view_count + 1, sizeof *names);
    status = list && names ? list_views(a, list, names, err) : tn_fail(err, TN_E_MEMORY, out, "out of memory");
    if (status == TN_OK)
        status = write(a, out, list, err);
    for (size_t i = 0; list && i < a->view_count; i++)
        free(list[i].tensor.data);
    free(list);
    free(names);
    return status;
}
