/* Decoding: what a cache must not change, and the tokens that come of it. */
#include "check.h"

#include <stdio.h>

static void check_chunk(const golden *g, tn_model *model, const run_results *whole, const char *spec, int64_t chunk)
{
    char text[128], line[160];
    tn_error err = TN_ERROR_INIT;
    run_results r = {0};
    int64_t from = g->ids.shape[1] > g->steady_until ? g->steady_from : 0;
    if (!run_allocate(g, model, false, &r) || !run_case(g, model, chunk, false, &r, &err)) {
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

void check_greedy(const golden *g, tn_model *model, const char *spec)
{
    tn_error err = TN_ERROR_INIT;
    int64_t count = g->greedy.shape[0], tokens = g->ids.shape[1], out[256];
    if (count > 256)
        count = 256;
    tn_session_options so = {.size = sizeof so, .context = tokens + count};
    tn_session *session = tn_session_new(model, &so, &err);
    tn_generate_options go = {.size = sizeof go, .max_tokens = count, .ignore_eos = true};
    tn_generate_result result = {.size = sizeof result};
    if (!session || tn_generate(session, g->ids.data, tokens, &go, out, &result, &err) != TN_OK) {
        check_fail(g, "greedy", spec, &err);
    } else {
        int64_t same = 0;
        while (same < result.count && out[same] == ((const int64_t *)g->greedy.data)[same])
            same++;
        char text[64];
        snprintf(text, sizeof text, "%lld of %lld tokens", (long long)same, (long long)count);
        check_report(g, "greedy", spec, same == count, text);
    }
    tn_session_free(session);
}
