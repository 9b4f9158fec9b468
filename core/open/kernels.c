/* The functions of tenon.h that choose, apply and describe the kernels of a model. */
#include "base/structs.h"
#include "bind/apply.h"
#include "bind/shadow.h"
#include "open/parallel.h"
#include "report/describe.h"
#include "report/report.h"
#include "select/first_calls.h"

tn_status model_files_check(const tn_model *model, tn_status status, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    tn_status files = model->weights ? shards_check(model->weights, &why) : TN_OK;
    if (files == TN_OK)
        return status;
    if (err)
        *err = why;
    return files;
}

tn_status model_blame(const tn_model *model, tn_status status, tn_error *err)
{
    return status == TN_OK ? TN_OK : model_files_check(model, status, err);
}

tn_status model_check_calls(tn_model *model, int64_t rows, int64_t tokens, int64_t context, tn_error *err)
{
    if (lacks_first(&model->lacks))
        return tn_fail(err, TN_E_USAGE, "session", "the model cannot be run as a whole: %s",
                       lacks_first(&model->lacks));
    return model_blame(model, apply_check_calls(&model->target, &(apply_calls){rows, tokens, context}, err), err);
}

void model_calls_done(tn_model *model)
{
    first_calls_keep(&model->target);
}

tn_report *tn_model_plan(tn_model *model, const tn_config *config, const char *spec, tn_error *err)
{
    if (!model)
        structs_missing("model", err);
    return !model ? NULL : apply_preview(&model->target, config, spec, err);
}

tn_report *tn_model_report(tn_model *model, tn_error *err)
{
    if (!model)
        structs_missing("model", err);
    return !model ? NULL : report_of_target(&model->target, err);
}

tn_status tn_apply_kernels(tn_model *model, const tn_config *config, const char *spec, tn_report **report,
                           tn_error *err)
{
    if (report)
        *report = NULL;
    if (!model)
        return structs_missing("model", err);
    tn_status told = parallel_apply(model, config, spec, err);
    if (told != TN_OK)
        return told;
    model_calls_begin(model, true);
    tn_status status = model_blame(model, apply_kernels(&model->target, config, spec, report, err), err);
    status = parallel_agree(model, status, err);
    model_calls_end(model);
    return status;
}

tn_status tn_apply_kernel(tn_model *model, const tn_config *config, const char *id, const char *modules, tn_error *err)
{
    if (!model)
        return structs_missing("model", err);
    if (parallel_refuse(model, "tn_apply_kernel", err) != TN_OK)
        return TN_E_USAGE;
    model_calls_begin(model, true);
    tn_status status = model_blame(model, apply_kernel(&model->target, config, id, modules, err), err);
    model_calls_end(model);
    return status;
}

tn_status tn_revert_kernel(tn_model *model, const char *id, tn_error *err)
{
    if (!model)
        return structs_missing("model", err);
    if (parallel_refuse(model, "tn_revert_kernel", err) != TN_OK)
        return TN_E_USAGE;
    model_calls_begin(model, true);
    tn_status status = apply_revert(&model->target, id, err);
    model_calls_end(model);
    return status;
}

tn_status tn_model_shadow(tn_model *model, double fraction, const char *prefix, tn_error *err)
{
    if (!model)
        return structs_missing("model", err);
    model_calls_begin(model, true);
    tn_status status = shadow_set(&model->target, fraction, prefix, err);
    model_calls_end(model);
    return status;
}

tn_status tn_model_packed(const tn_model *model, tn_packed ***list, size_t *count, tn_error *err)
{
    if (!model || !list || !count)
        return structs_missing(!model ? "model" : !list ? "list" : "count", err);
    return apply_packed(&model->target, list, count, err);
}

char *tn_model_describe(tn_model *model, const tn_report *report, tn_graph_format format, bool explain, tn_error *err)
{
    if (!model)
        structs_missing("model", err);
    if (!model || (report && structs_check(report, "tn_report", err) != TN_OK))
        return NULL;
    return describe_target(&model->target, report, format, explain, err);
}
