/* tenon perplexity: how well a model predicts a text. The text is cut into windows of N tokens; each predicts its N
 * following tokens from those before them in the window, so that every token but the first counts once. */
#include "cli.h"
#include "ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define USUAL_WINDOW 256
#define PIECE 64 /* tokens whose logits are held at once */

typedef struct perplexity_state {
    tn_session *session;
    const int64_t *ids;
    int64_t count, vocab, window;
    float *logits;          /* [PIECE, vocab]                                                           */
    const int64_t *targets; /* of the piece at hand                                            */
    double nll[PIECE];
} perplexity_state;

/* Negative log-likelihood of each target, in double: -log softmax(logits)[target]. */
static void piece_nll(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    perplexity_state *s = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *row = s->logits + t * s->vocab;
        float largest = row[0];
        for (int64_t v = 1; v < s->vocab; v++)
            largest = row[v] > largest ? row[v] : largest;
        double sum = 0;
        for (int64_t v = 0; v < s->vocab; v++)
            sum += exp((double)row[v] - (double)largest);
        s->nll[t] = log(sum) + (double)largest - (double)row[s->targets[t]];
    }
}

/* The tokens ids[start .. start+tokens-1] predict the token behind each. */
static tn_status run_window(perplexity_state *s, int64_t start, int64_t tokens, double *sum, tn_error *err)
{
    tn_session_reset(s->session);
    for (int64_t at = 0; at < tokens; at += PIECE) {
        int64_t n = tokens - at < PIECE ? tokens - at : PIECE;
        tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = n, .ids = s->ids + start + at};
        tn_outputs outputs = {.size = sizeof outputs, .logits = s->logits};
        tn_status status = tn_session_run(s->session, &batch, &outputs, err);
        if (status)
            return status;
        s->targets = s->ids + start + at + 1;
        tn_parallel_for(n, 1, piece_nll, s);
        for (int64_t i = 0; i < n; i++)
            *sum += s->nll[i];
    }
    return TN_OK;
}

static tn_status print_result(const workspace *w, const perplexity_state *s, double sum, double seconds, tn_error *err)
{
    int64_t predicted = s->count - 1;
    double mean = sum / (double)predicted;
    if (!option_given(w->options, OPT_JSON)) {
        printf("perplexity %.6f (%lld tokens predicted, windows of %lld, %s)\n", exp(mean), (long long)predicted,
               (long long)s->window, tn_dtype_name(w->info.dtype));
        note(w->options, "%.1f s, %.1f tokens/s", seconds, (double)predicted / seconds);
        return TN_OK;
    }
    return json_print(json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:s, s:s}", "perplexity",
                                json_number(exp(mean)), "nll_sum", json_number(sum), "nll_mean", json_number(mean),
                                "tokens", (json_int_t)s->count, "tokens_predicted", (json_int_t)predicted, "context",
                                (json_int_t)s->window, "seconds", json_number(seconds), "kernels", json_kernels(w),
                                "model", w->info.folder, "dtype", tn_dtype_name(w->info.dtype)),
                      false, err);
}

static tn_status run_windows(workspace *w, perplexity_state *s, tn_error *err)
{
    tn_session_options options = {.size = sizeof options, .rows = 1, .context = s->window, .chunk = PIECE};
    s->logits = malloc(sizeof(float) * PIECE * (size_t)s->vocab);
    if (!s->logits)
        return tn_fail(err, TN_E_MEMORY, "perplexity", "no memory for the logits; close other programs");
    s->session = tn_session_new(w->model, &options, err);
    if (!s->session)
        return err->code;
    double sum = 0, started = seconds_now();
    tn_status status = TN_OK;
    progress_start(&w->progress, w->options);
    for (int64_t start = 0; start < s->count - 1 && status == TN_OK; start += s->window) {
        int64_t left = s->count - 1 - start;
        progress_update(&w->progress, "perplexity", start, s->count - 1);
        status = run_window(s, start, left < s->window ? left : s->window, &sum, err);
    }
    progress_clear(&w->progress);
    if (status == TN_OK)
        status = print_result(w, s, sum, seconds_now() - started, err);
    return status;
}

static tn_status run_perplexity(const options *o, tn_error *err)
{
    workspace w = {0};
    perplexity_state s = {0};
    int64_t *ids = NULL;
    size_t count = 0;
    tn_status status = read_ids(o->argument[0], o->argument[1], &ids, &count, err);
    if (status == TN_OK && count < 2)
        status = tn_fail(err, TN_E_INPUT, strcmp(o->argument[1], "-") ? o->argument[1] : "standard input",
                         "the text has %zu tokens; perplexity needs at least two; give a longer one", count);
    if (status == TN_OK)
        status = workspace_model(&w, o, o->argument[0], err);
    if (status == TN_OK) {
        int64_t most = workspace_positions(&w);
        s.ids = ids;
        s.count = (int64_t)count;
        s.vocab = w.info.vocab;
        s.window = option_integer(o, OPT_CONTEXT, most > 0 && most < USUAL_WINDOW ? most : USUAL_WINDOW);
        workspace_check_context(&w, s.window);
        status = check_ids(o->argument[1], ids, count, s.vocab, err);
    }
    if (status == TN_OK)
        status = workspace_apply(&w, err);
    if (status == TN_OK)
        status = run_windows(&w, &s, err);
    tn_session_free(s.session);
    free(s.logits);
    free(ids);
    workspace_close(&w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_CONTEXT, "context", "N", 'c', OPTION_INTEGER, 1, 1e9, "tokens of a window; default 256"},
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    ADAPTER_OPTION,
    LOCK_OPTION,
    PARALLEL_OPTIONS,
    {OPT_SHADOW, "shadow", "P", 0, OPTION_REAL, 0, 1, "compare this part of kernel calls with eager; 0.01 costs 1 %"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "an object instead of a line"},
};

const command command_perplexity = {
    .name = "perplexity",
    .arguments = "MODEL FILE [--context N] [--json]",
    .summary = "Measures how well the model predicts the text in FILE. FILE may be - to read standard input.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 2,
    .max_arguments = 2,
    .missing = "MODEL and FILE are needed",
    .notes =
        "The text is tokenized once, without special tokens, and cut into windows of N tokens. Each window starts\n"
        "with nothing before it. The result is exp of the mean negative log-likelihood of all tokens but the first.",
    .example = "  tenon perplexity models/demo models/demo/heldout.txt --context 256 --dtype f32",
    .run = run_perplexity,
};
