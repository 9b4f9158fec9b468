/* What an architecture asks for when there are no files, and what to put there. */
#include "recorded.h"
#include "open/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Is path the weight of a norm by 1 + w? */
static bool is_offset_norm(const tn_model *model, const char *path)
{
    size_t n = strlen(path);
    if (n <= 7 || strcmp(path + n - 7, ".weight"))
        return false;
    for (size_t i = 0; i < model->target.graph->site_count; i++) {
        const tn_site *site = &model->target.graph->sites[i]->site;
        if (site->op == TN_OP_RMS_NORM && site->meaning[TN_AXIS_NORM] == TN_NORM_1_PLUS_W &&
            strlen(site->path) == n - 7 && !strncmp(site->path, path, n - 7))
            return true;
    }
    return false;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* Vectors are the weights of norms, around 1, but for those whose names say otherwise. */
static void choose_values(const tn_model *model, const char *path, weights_tensor *t)
{
    static const struct {
        const char *end;
        float mean, scale;
    } others[] = {{"correction_bias", 0, 0.01f}, {"bias", 0, 0.02f},   {"sinks", 0, 1},
                  {"A_log", 1.4f, 0.7f},         {"dt_bias", 1, 0.3f}, {"class_embedding", 0, 0.02f}};
    t->vector = t->ndim <= 1;
    t->mean = is_offset_norm(model, path) ? 0 : 1;
    t->scale = WEIGHTS_VECTOR_SCALE;
    for (size_t i = sizeof others / sizeof others[0]; i-- > 0;)
        if (ends_with(path, others[i].end)) {
            t->vector = true;
            t->mean = others[i].mean;
            t->scale = others[i].scale;
        }
}

static weights_tensor *list_tensors(const tn_model *model, size_t *count)
{
    const shards *record = model->weights;
    *count = shards_count(record);
    weights_tensor *list = calloc(*count ? *count : 1, sizeof *list);
    for (size_t i = 0; list && i < *count; i++) {
        tn_tensor t;
        const char *name = shards_name(record, i);
        int n = snprintf(list[i].name, sizeof list[i].name, "%s", name);
        if (n < 0 || (size_t)n >= sizeof list[i].name) {
            fprintf(stderr, "make_checkpoint: the name of tensor '%s' is too long\n", name);
            free(list);
            return NULL;
        }
        shards_get(record, name, &t);
        list[i].dtype = t.dtype;
        list[i].ndim = t.ndim;
        memcpy(list[i].shape, t.shape, sizeof list[i].shape);
        choose_values(model, shards_path(record, i), &list[i]);
    }
    return list;
}

weights_tensor *recorded_tensors(const char *folder, size_t *count)
{
    tn_error err = TN_ERROR_INIT;
    shards *record = shards_record(TN_BF16, &err);
    tn_model *model = record ? model_open(folder, NULL, record, &err) : NULL;
    if (!model) {
        fprintf(stderr, "make_checkpoint: %s: %s\n", err.where, err.message);
        return NULL;
    }
    weights_tensor *list = list_tensors(model, count);
    tn_model_close(model);
    return list;
}
