/* Writing a checkpoint as a .gguf of fewer bits. */
#include "quantize/quantize.h"

#include "base/structs.h"
#include "quantize/quantize_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Types and sizes of all tensors, from which the header follows. */
static char *make_header(quantize_plan *p, size_t *size)
{
    for (size_t i = 0; i < p->count; i++) {
        quantize_tensor *t = &p->tensors[i];
        t->to = quantize_type(p, t);
        t->bytes = (size_t)(t->matrices * t->rows) * tn_dtype_bytes(t->to, t->columns);
    }
    char *header = p->status == TN_OK ? quantize_header(p, size) : NULL;
    if (!header && p->status == TN_OK)
        p->status = tn_fail(p->err, TN_E_MEMORY, p->model->folder, "out of memory for the header");
    return header;
}

static int64_t count_values(const quantize_plan *p)
{
    int64_t count = 0;
    for (size_t i = 0; i < p->count; i++)
        count += p->tensors[i].matrices * p->tensors[i].rows * p->tensors[i].columns;
    return count;
}

static void tell_tensor(const quantize_tensor *t, const quantize_values *v, const tn_quantize_options *options)
{
    tn_quantized told = {.size = sizeof told,
                         .name = t->name,
                         .from = t->from,
                         .to = t->to,
                         .values = t->matrices * t->rows * t->columns,
                         .bytes = (int64_t)t->bytes,
                         .error = v->sums[1] > 0 ? sqrt(v->sums[0] / v->sums[1]) : 0,
                         .weighed = v->sums[3] > 0 ? sqrt(v->sums[2] / v->sums[3]) : 0,
                         .unreached = v->unreached};
    if (options->tensor)
        options->tensor(options->ctx, &told);
}

static tn_status write_file(quantize_plan *p, const char *path, const char *header, size_t size,
                            const importance *importance, const tn_quantize_options *options)
{
    output out = {.fd = -1};
    quantize_values v = {.set = p->model->weights,
                         .factors = p->factors,
                         .importance = importance,
                         .out = &out,
                         .progress = options->progress,
                         .ctx = options->ctx,
                         .total = count_values(p),
                         .err = p->err};
    tn_status status = output_open(&out, path, p->err);
    if (status == TN_OK)
        status = output_write(&out, header, size, p->err);
    for (size_t i = 0; i < p->count && status == TN_OK; i++) {
        status = quantize_values_write(&v, &p->tensors[i]);
        if (status == TN_OK)
            tell_tensor(&p->tensors[i], &v, options);
    }
    if (status == TN_OK)
        status = shards_check(p->model->weights, p->err);
    if (status == TN_OK)
        status = output_commit(&out, p->err);
    output_close(&out);
    return status;
}

/* Everything that is not the model. */
static void close_plan(quantize_plan *p)
{
    free(p->tensors);
    free(p->factors);
    free(p->keys.data);
}

static tn_status run_plan(quantize_plan *p, const char *out, const tn_quantize_options *options)
{
    size_t size = 0;
    importance *importance = NULL;
    tn_status status = TN_OK;
    p->shape = p->model->flow->shape(p->model->arch_state);
    p->config = model_config(p->model, &p->status, p->err);
    p->experts = config_i64(&p->config, "num_experts", 0, 0, INT32_MAX);
    p->experts = config_i64(&p->config, "num_local_experts", p->experts, 0, INT32_MAX);
    p->experts = config_i64(&p->config, "n_routed_experts", p->experts, 0, INT32_MAX);
    p->arch = gguf_arch_written(p->model->arch->model_type, p->err);
    if (!p->arch)
        return TN_E_INPUT;
    quantize_list(p);
    if (p->status == TN_OK)
        quantize_config(p);
    if (p->status == TN_OK)
        quantize_vocab(p, p->model->folder);
    char *header = make_header(p, &size);
    if (header)
        status = quantize_check(p, p->model->folder, out, header, size, p->err);
    if (header && status == TN_OK && options->ids)
        status = importance_collect(p, options, &importance, p->err);
    if (header && status == TN_OK)
        status = write_file(p, out, header, size, importance, options);
    importance_free(importance);
    free(header);
    return p->status != TN_OK ? p->status : status;
}

static tn_status write_model(const char *model, const char *out, const quantize_recipe *recipe,
                             const tn_quantize_options *options, tn_error *err)
{
    tn_model_options open = {.size = sizeof open, .threads = options->threads};
    tn_model *opened = tn_model_open(model, &open, err);
    if (!opened)
        return err->code;
    quantize_plan p = {.model = opened, .recipe = recipe, .err = err};
    bool folder = recipe->usual == TN_F8_E4M3;
    tn_status status = folder ? quantize_folder(opened, out, options, err) : run_plan(&p, out, options);
    close_plan(&p);
    tn_model_close(opened);
    return status;
}

tn_status tn_quantize(const char *model, const char *out, const char *type, const tn_quantize_options *options,
                      tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    tn_quantize_options o = {.size = sizeof o};
    if (!model || !out || !type)
        return structs_missing(!model ? "model" : !out ? "out" : "type", err);
    if (options && structs_take(&o, sizeof o, options, "tn_quantize_options", err) != TN_OK)
        return TN_E_USAGE;
    const quantize_recipe *recipe = quantize_recipe_find(type, err);
    if (recipe && o.ids && !quantize_recipe_weighs(recipe))
        return tn_fail(err, TN_E_USAGE, "quantize",
                       "a text changes nothing of %s; leave it out, or choose another type", recipe->name);
    tn_status status = recipe ? write_model(model, out, recipe, &o, &own) : TN_E_USAGE;
    return status == TN_OK || !recipe ? status : tn_fail(err, status, own.where, "%s", own.message);
}
