/* The same bits in any call: a case's tokens, over and over, with all kernels. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 300 };

static void skip(const golden *g, tn_dtype dtype, const char *why)
{
    printf("SKIP %-22s %-6s %s\n", g->name, tn_dtype_name(dtype), why);
    check_tally.skipped++;
}

static void judge(const golden *g, tn_dtype dtype, tn_calls_row *const *rows, size_t count)
{
    char line[160] = "";
    int64_t tokens = 0;
    for (size_t i = 0; i < count; i++) {
        tokens += rows[i]->tokens;
        if (rows[i]->different > 0 && !*line)
            snprintf(line, sizeof line, "%s: %lld of %lld tokens differ, from result %lld on (token %lld)",
                     rows[i]->calls, (long long)rows[i]->different, (long long)rows[i]->tokens,
                     (long long)rows[i]->layer, (long long)rows[i]->token);
    }
    bool same = !*line;
    if (same)
        snprintf(line, sizeof line, "%lld tokens in %zu ways: the same bits", (long long)tokens, count);
    check_report(g, tn_dtype_name(dtype), "batch", same, line);
}

void check_batch(const golden *g, tn_model *model, tn_dtype dtype, const tn_config *config)
{
    tn_model_info info = {.size = sizeof info};
    tn_error err = TN_ERROR_INIT;
    char why[400];
    int64_t ids[MOST_TOKENS], count = MOST_TOKENS;
    tn_calls_row **rows = NULL;
    size_t row_count = 0;
    tn_model_get_info(model, &info);
    if (golden_has_media(g)) {
        skip(g, dtype, "its tokens stand for pictures or sound");
        return;
    }
    if (!g->logits.data) {
        skip(g, dtype, "it gives vectors and no logits");
        return;
    }
    count = info.max_positions > 0 && info.max_positions < count ? info.max_positions : count;
    for (int64_t i = 0; i < count; i++)
        ids[i] = ((const int64_t *)g->ids.data)[i % g->ids.shape[1]];
    tn_status status = tn_apply_kernels(model, config, "auto", NULL, &err);
    /* One that promises and is refused is a kernel that failed its check. */
    bool promised =
        status != TN_E_KERNEL || !strstr(err.message, "no kernel that promises") || strstr(err.message, ": refused: ");
    if (status == TN_OK)
        status = tn_compare_calls(model, ids, count, &rows, &row_count, &err);
    snprintf(why, sizeof why, "%s: %.90s", err.where, err.message);
    if (rows)
        judge(g, dtype, rows, row_count);
    else if (!promised || status == TN_DECLINED)
        skip(g, dtype, why);
    else
        check_fail(g, tn_dtype_name(dtype), "batch", &err);
    free(rows);
}
