/* Decoding: what a cache must not change, and the tokens that come of it. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

static void check_chunk(const golden *g, tn_model *model, const run_results *whole, const char *spec, int64_t chunk)
{
    char text[128], line[160];
    tn_error err = TN_ERROR_INIT;
    run_results r = {0};
    int64_t from = g->ids.shape[1] > g->steady_until ? g->steady_from : 0;
    if (!run_allocate(g, model, false, &r) || !run_case(g, model, chunk, RUN_GIVEN, &r, &err)) {
        check_fail(g, "steps", spec, &err);
    } else {
        bool ok = compare_logits(g, r.logits, whole->logits, from, text);
        snprintf(line, sizeof line, "of %lld: %s", (long long)chunk, text);
        check_report(g, "steps", spec, ok, line);
    }
    run_free(&r);
}

void check_steps(const golden *g, tn_model *model, const run_results *r, const char *spec)
{
    if (g->ids.shape[1] > g->steady_until && g->steady_from == 0)
        return; /* no position has the frequencies of one pass */
    check_chunk(g, model, r, spec, 1);
    check_chunk(g, model, r, spec, 3);
}

static int64_t largest(const float *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* How many tokens come out as expected before one does not: the prompt with its media in one call, then one by one. */
static bool decode(const golden *g, tn_session *session, int64_t vocab, int64_t *same, tn_error *err)
{
    const int64_t *expected = g->greedy.data;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    bool ok = logits && run_prompt(g, session, logits, err);
    for (*same = 0; ok && *same < g->greedy.shape[0]; ++*same) {
        int64_t id = largest(logits, vocab);
        if (id != expected[*same])
            break;
        tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 1, .ids = &id};
        tn_outputs out = {.size = sizeof out, .last_logits = logits};
        ok = tn_session_run(session, &batch, &out, err) == TN_OK;
    }
    free(logits);
    return ok;
}

/* The same by tn_generate, which knows prompts of text. */
static bool generate(const golden *g, tn_session *session, int64_t *same, tn_error *err)
{
    int64_t count = g->greedy.shape[0], *out = calloc((size_t)count, sizeof *out);
    tn_generate_options go = {.size = sizeof go, .max_tokens = count, .ignore_eos = true};
    tn_generate_result result = {.size = sizeof result};
    bool ok = out && tn_generate(session, g->ids.data, g->ids.shape[1], &go, out, &result, err) == TN_OK;
    *same = 0;
    while (ok && *same < result.count && out[*same] == ((const int64_t *)g->greedy.data)[*same])
        ++*same;
    free(out);
    return ok;
}

void check_greedy(const golden *g, tn_model *model, const char *spec)
{
    char text[64];
    tn_error err = TN_ERROR_INIT;
    int64_t count = g->greedy.shape[0], same = 0;
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    tn_session_options so = {.size = sizeof so, .context = g->ids.shape[1] + count};
    tn_session *session = tn_session_new(model, &so, &err);
    if (session &&
        (golden_has_media(g) ? decode(g, session, info.vocab, &same, &err) : generate(g, session, &same, &err))) {
        snprintf(text, sizeof text, "%lld of %lld tokens", (long long)same, (long long)count);
        check_report(g, "greedy", spec, same == count, text);
    } else {
        check_fail(g, "greedy", spec, &err);
    }
    tn_session_free(session);
}
