/* What was found of each kernel and operation, as the rows that the interface gives. */
#include "base/structs.h"
#include "base/text.h"
#include "plugin/registry.h"
#include "select/plan.h"
#include "verify/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

verify_record *verify_rows_find(verify_records *records, const registry_kernel *kernel, const tn_site *site,
                                const tn_impl *impl)
{
    for (size_t i = 0; i < records->count; i++)
        if (records->list[i]->kernel == kernel && records->list[i]->row.op == site->op)
            return records->list[i];
    if (records->count == records->capacity) {
        size_t capacity = records->capacity ? 2 * records->capacity : 16;
        verify_record **list = realloc(records->list, capacity * sizeof *list);
        if (!list)
            return NULL;
        records->list = list;
        records->capacity = capacity;
    }
    verify_record *record = calloc(1, sizeof *record);
    if (!record)
        return NULL;
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    record->kernel = kernel;
    record->gradient_ulps = compare_ulps(compare_gradient_tolerance(impl), dtype);
    record->row = (tn_verify_row){.size = sizeof record->row,
                                  .kernel = kernel->kernel.id,
                                  .op = site->op,
                                  .tolerance_ulps = compare_ulps(&impl->tolerance, dtype),
                                  .tokens = VERIFY_TOKENS,
                                  .passed = true};
    records->list[records->count++] = record;
    return record;
}

void verify_rows_close(verify_records *records)
{
    for (size_t i = 0; i < records->count; i++)
        free(records->list[i]);
    free(records->list);
    *records = (verify_records){0};
}

/* The row of one gradient, which has the words of its record's. */
static tn_verify_row gradient_row(const verify_record *record, size_t index)
{
    const verify_gradient *g = &record->gradients[index];
    tn_verify_row row = record->row;
    row.eager_seconds = row.kernel_seconds = 0;
    row.tolerance_ulps = record->gradient_ulps;
    row.largest_ulps = g->figures.figures.ulps;
    row.largest_error = g->figures.figures.worst;
    row.passed = row.largest_error <= 1;
    text_cut(row.worst_site, sizeof row.worst_site, "%s", g->site);
    text_cut(row.reason, sizeof row.reason, "%s", row.passed ? "" : g->figures.figures.detail);
    row.kind = index < TN_CALL_TENSORS ? TN_VERIFY_INPUT_GRADIENT : TN_VERIFY_PARAM_GRADIENT;
    if (row.kind == TN_VERIFY_INPUT_GRADIENT)
        text_cut(row.gradient, sizeof row.gradient, "input %zu", index);
    else
        text_cut(row.gradient, sizeof row.gradient, "%s", tn_role_name((tn_role)(index - TN_CALL_TENSORS)));
    return row;
}

static size_t count_rows(const verify_record *record)
{
    size_t count = 1;
    for (size_t i = 0; i < COMPARE_GRADIENTS; i++)
        count += record->gradients[i].figures.compared;
    return count;
}

tn_status verify_rows_give(const verify_records *records, tn_verify_row ***rows, size_t *count, tn_error *err)
{
    size_t all = 0;
    for (size_t i = 0; i < records->count; i++)
        all += count_rows(records->list[i]);
    tn_verify_row **list = structs_list(all, sizeof **list);
    if (!list)
        return plan_no_memory(err);
    tn_status status = TN_OK;
    *count = 0;
    for (size_t i = 0; i < records->count; i++) {
        verify_record *record = records->list[i];
        if (record->coverage.any)
            check_coverage_text(&record->coverage, record->row.coverage, sizeof record->row.coverage);
        *list[(*count)++] = record->row;
        for (size_t j = 0; j < COMPARE_GRADIENTS; j++)
            if (record->gradients[j].figures.compared)
                *list[(*count)++] = gradient_row(record, j);
        if (!record->row.passed)
            status = tn_fail(err, TN_E_VERIFY, record->row.kernel, "fails at %s: %s", record->row.worst_site,
                             record->row.reason);
    }
    *rows = list;
    return status;
}
