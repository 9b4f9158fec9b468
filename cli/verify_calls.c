/* tenon verify --batch: the same tokens in other calls must have the same bits. */
#include "cli.h"

#include <stdlib.h>

enum { MADE_UP = 600, FIRST_ID = 256, IDS = 1000 };

/* Ordinary tokens in most vocabularies: marks and placeholders of pictures have larger or the smallest ids. */
static tn_status make_ids(const workspace *w, int64_t count, int64_t **ids, tn_error *err)
{
    uint64_t state = 1;
    int64_t vocab = w->info.vocab, first = vocab > FIRST_ID + IDS ? FIRST_ID : 0;
    *ids = malloc((size_t)count * sizeof **ids);
    for (int64_t i = 0; *ids && i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        (*ids)[i] = first + (int64_t)((state >> 33) % (uint64_t)(vocab - first < IDS ? vocab - first : IDS));
    }
    return *ids ? TN_OK : tn_fail(err, TN_E_MEMORY, "verify", "out of memory");
}

static void print_calls(const workspace *w, tn_calls_row *const *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const tn_calls_row *r = rows[i];
        printf("%-32s %5lld tokens  ", r->calls, (long long)r->tokens);
        if (r->different == 0)
            printf("same bits\n");
        else if (r->layer == 0)
            printf("%lld differ, in the embedding (token %lld)\n", (long long)r->different, (long long)r->token);
        else if (r->layer <= w->info.layers)
            printf("%lld differ, from layer %lld on (token %lld)\n", (long long)r->different, (long long)r->layer - 1,
                   (long long)r->token);
        else
            printf("%lld differ, in the logits (token %lld)\n", (long long)r->different, (long long)r->token);
    }
}

static tn_status print_json(const workspace *w, tn_calls_row *const *rows, size_t count, bool passed, tn_error *err)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:I, s:I}", "calls", rows[i]->calls, "tokens",
                                        (json_int_t)rows[i]->tokens, "different", (json_int_t)rows[i]->different,
                                        "result", (json_int_t)rows[i]->layer, "token", (json_int_t)rows[i]->token));
    return json_print(json_pack("{s:s, s:s, s:s, s:b, s:o, s:o}", "model", w->info.folder, "dtype",
                                tn_dtype_name(w->info.dtype), "device", w->info.device, "passed", (int)passed,
                                "kernels", json_kernels(w), "results", list),
                      false, err);
}

tn_status verify_calls(workspace *w, tn_error *err)
{
    const options *o = w->options;
    int64_t *ids = NULL, most = option_integer(o, OPT_MAX_TOKENS, MADE_UP);
    size_t count = 0, row_count = 0;
    tn_calls_row **rows = NULL;
    tn_error failure = TN_ERROR_INIT;
    int64_t longest = w->info.max_positions;
    most = most > longest && !w->info.unbounded ? longest : most;
    tn_status status = option_given(o, OPT_TEXT) ? read_ids(o->argument[0], o->text[OPT_TEXT], &ids, &count, err)
                                                 : make_ids(w, most, &ids, err);
    count = option_given(o, OPT_TEXT) && (int64_t)count < most ? count : (size_t)most;
    if (status == TN_OK)
        status = workspace_apply(w, err);
    tn_status verdict =
        status == TN_OK ? tn_compare_calls(w->model, ids, (int64_t)count, &rows, &row_count, &failure) : TN_OK;
    if (rows && option_given(o, OPT_JSON))
        status = print_json(w, rows, row_count, verdict == TN_OK, err);
    else if (rows)
        print_calls(w, rows, row_count);
    if (status == TN_OK && verdict != TN_OK)
        status = tn_fail(err, verdict, failure.where, "%s", failure.message);
    free(rows);
    free(ids);
    return status;
}
