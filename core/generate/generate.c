/* The decode loop: prompt in, token by token out. */
#include "base/clock.h"
#include "generate/sample.h"
#include "generate/session.h"

#include "base/structs.h"

#include <stdlib.h>
#include <string.h>

typedef struct decode {
    tn_session *session;
    tn_generate_options options;
    tn_model_info info;
    sampler sampler;
    float *logits; /* [vocab] of the last position */
    int64_t *out;
    tn_generate_result result;
} decode;

static tn_status feed(decode *d, const int64_t *ids, int64_t count, int (*progress)(void *, int64_t, int64_t),
                      tn_error *err)
{
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = count, .ids = ids};
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = d->logits};
    return session_run(d->session, &batch, &outputs, progress, d->options.ctx, err);
}

static bool is_eos(const decode *d, int64_t id)
{
    for (int64_t i = 0; i < d->info.eos_total; i++)
        if (d->info.eos_ids[i] == id)
            return true;
    return false;
}

/* Samples, hands out and feeds until something ends it. */
static tn_status decode_tokens(decode *d, tn_error *err)
{
    tn_generate_result *r = &d->result;
    r->stop = TN_STOP_LENGTH;
    while (r->count < d->options.max_tokens) {
        int64_t id;
        sample_penalise(&d->sampler, d->logits);
        tn_status status = sample_pick(&d->sampler, d->logits, &id, err);
        if (status != TN_OK)
            return status;
        d->out[r->count++] = id;
        sample_see(&d->sampler, &id, 1, NULL);
        bool stopped = d->options.on_token && d->options.on_token(d->options.ctx, id) != 0;
        if (is_eos(d, id) && !d->options.ignore_eos) {
            r->stop = TN_STOP_EOS;
            break;
        }
        if (stopped) {
            r->stop = TN_STOP_CALLBACK;
            break;
        }
        if (r->count == d->options.max_tokens)
            break;
        if (tn_session_length(d->session) >= session_context(d->session)) {
            r->stop = TN_STOP_CONTEXT;
            break;
        }
        status = feed(d, &id, 1, NULL, err);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

static tn_status run(decode *d, const int64_t *prompt, int64_t prompt_count, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    double start = clock_seconds();
    tn_status status = feed(d, prompt, prompt_count, d->options.on_prompt, &why);
    double middle = clock_seconds();
    d->result.prompt_seconds = middle - start;
    if (status == TN_E_CANCELLED) { /* by on_prompt: the caller's wish, not an error */
        d->result.stop = TN_STOP_CALLBACK;
        return TN_OK;
    }
    if (status != TN_OK)
        return tn_fail(err, status, why.where, "%s", why.message);
    status = decode_tokens(d, err);
    d->result.decode_seconds = clock_seconds() - middle;
    return status;
}

/* What the repetition penalty is for before anything was generated. */
static tn_status see_all(decode *d, const int64_t *prompt, int64_t prompt_count, tn_error *err)
{
    const tn_generate_options *o = &d->options;
    if (o->history_count < 0 || (o->history_count > 0 && !o->history))
        return tn_fail(err, TN_E_USAGE, "history", "%lld tokens cannot be read", (long long)o->history_count);
    tn_status status = sample_see(&d->sampler, o->history, o->history_count, err);
    return status == TN_OK ? sample_see(&d->sampler, prompt, prompt_count, err) : status;
}

tn_status tn_generate(tn_session *session, const int64_t *prompt, int64_t prompt_count,
                      const tn_generate_options *options, int64_t *out, tn_generate_result *result, tn_error *err)
{
    decode d = {.session = session, .info = {.size = sizeof d.info}, .out = out, .result = {.size = sizeof d.result}};
    tn_status status = !session ? structs_missing("session", err) : TN_OK;
    if (status == TN_OK && options)
        status = structs_take(&d.options, sizeof d.options, options, "tn_generate_options", err);
    if (status == TN_OK && result)
        status = structs_check(result, "tn_generate_result", err);
    if (status != TN_OK)
        return status;
    if (d.options.max_tokens < 0 || (d.options.max_tokens && !out))
        return tn_fail(err, TN_E_USAGE, "max_tokens", "%lld tokens cannot be written", (long long)d.options.max_tokens);
    if (prompt_count < 1 || !prompt)
        return tn_fail(err, TN_E_INPUT, "prompt", "the prompt is empty; give at least one token");
    status = tn_model_get_info(session_model(session), &d.info);
    if (status != TN_OK)
        return tn_fail(err, status, "model", "has no information");
    status = sample_init(&d.sampler, &d.options, d.info.vocab, err);
    if (status == TN_OK && !(d.logits = malloc((size_t)d.info.vocab * sizeof *d.logits)))
        status = tn_fail(err, TN_E_MEMORY, "generate", "out of memory for %lld logits", (long long)d.info.vocab);
    if (status == TN_OK)
        status = see_all(&d, prompt, prompt_count, err);
    if (status == TN_OK)
        status = run(&d, prompt, prompt_count, err);
    if (result)
        structs_give(result, &d.result, sizeof d.result, "tn_generate_result", NULL);
    free(d.logits);
    sample_close(&d.sampler);
    return status;
}
