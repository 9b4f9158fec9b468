/* One call for a text: what programs otherwise do step by step, with the public functions that they would use. */
#include "base/structs.h"

#include <tenon/tenon.h>

#include <stdlib.h>
#include <string.h>

enum { USUAL_TOKENS = 64 };

typedef struct continuation {
    tn_continue_options options;
    tn_config *config;
    tn_model *model;
    tn_tokenizer *tokenizer;
    tn_stream *stream;
    int64_t *ids;
    size_t count; /* of ids                                                                       */
    tn_error err; /* the caller may have none, and callbacks have no other                        */
} continuation;

/* ---- text that comes ------------------------------------------------------------------------- */

/* text NULL: what made it failed. Non-zero: no more is wanted. */
static int hand_out(const continuation *c, const char *text, size_t length)
{
    const tn_continue_options *o = &c->options;
    return !text || (length > 0 && o->on_text && o->on_text(o->ctx, text, length) != 0);
}

static int on_token(void *ctx, int64_t id)
{
    continuation *c = ctx;
    size_t length = 0;
    const char *text = tn_stream_push(c->stream, id, &length, &c->err);
    return hand_out(c, text, length);
}

/* ---- step by step ---------------------------------------------------------------------------- */

static tn_status open_all(continuation *c, const char *folder)
{
    tn_error *err = &c->err;
    c->config = tn_config_new();
    if (!c->config)
        return tn_fail(err, TN_E_MEMORY, "configuration", "out of memory");
    if (c->options.plugins && tn_config_add_plugins(c->config, c->options.plugins, err) != TN_OK)
        return err->code;
    if (tn_scan(c->config, err) != TN_OK || !(c->model = tn_model_open(folder, c->options.model, err)))
        return err->code;
    c->tokenizer = tn_tokenizer_open(folder, err);
    c->stream = c->tokenizer ? tn_stream_new(c->tokenizer, true, err) : NULL;
    return c->stream ? TN_OK : err->code;
}

static tn_status encode(continuation *c, const char *prompt)
{
    if (!prompt[0]) /* a beginning-of-text token alone is no prompt */
        return tn_fail(&c->err, TN_E_INPUT, "prompt", "the prompt is empty; give at least one token");
    return tn_tokenizer_encode(c->tokenizer, prompt, strlen(prompt), true, &c->ids, &c->count, &c->err);
}

static tn_status apply(continuation *c)
{
    const tn_continue_options *o = &c->options;
    tn_report *report = NULL;
    tn_status status = tn_apply_kernels(c->model, c->config, o->kernels, &report, &c->err);
    if (status == TN_OK && o->on_report)
        o->on_report(o->ctx, report);
    tn_report_free(report);
    return status;
}

static tn_status generate(continuation *c)
{
    const tn_continue_options *o = &c->options;
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(c->model, &info);
    int64_t count = (int64_t)c->count, most = o->max_tokens ? o->max_tokens : USUAL_TOKENS;
    tn_session_options so = {.size = sizeof so, .context = count + most};
    if (info.max_positions > 0 && !info.unbounded && so.context > info.max_positions)
        so.context = info.max_positions;
    tn_generate_options g = {.size = sizeof g,
                             .max_tokens = most,
                             .temperature = o->temperature,
                             .top_p = o->top_p,
                             .top_k = o->top_k,
                             .seed = o->seed,
                             .on_token = on_token,
                             .ctx = c};
    int64_t *out = malloc((size_t)most * sizeof *out);
    if (!out)
        return tn_fail(&c->err, TN_E_MEMORY, "max_tokens", "out of memory; ask for fewer");
    tn_session *session = tn_session_new(c->model, &so, &c->err);
    size_t length = 0;
    if (session && tn_generate(session, c->ids, count, &g, out, o->result, &c->err) == TN_OK && !c->err.code) {
        const char *rest = tn_stream_flush(c->stream, &length, &c->err);
        hand_out(c, rest, length);
    }
    tn_session_free(session);
    free(out);
    return c->err.code;
}

tn_status tn_continue_text(const char *folder, const char *prompt, const tn_continue_options *options, tn_error *err)
{
    continuation c = {.err = TN_ERROR_INIT};
    tn_status status = TN_OK;
    if (!folder || !prompt)
        status = structs_missing(!folder ? "folder" : "prompt", &c.err);
    if (status == TN_OK && options)
        status = structs_take(&c.options, sizeof c.options, options, "tn_continue_options", &c.err);
    if (status == TN_OK && c.options.result)
        status = structs_check(c.options.result, "tn_generate_result", &c.err);
    if (status == TN_OK && (c.options.max_tokens < 0 || c.options.max_tokens > INT32_MAX))
        status =
            tn_fail(&c.err, TN_E_USAGE, "max_tokens", "%lld tokens cannot be written", (long long)c.options.max_tokens);
    if (status == TN_OK)
        status = open_all(&c, folder);
    if (status == TN_OK)
        status = encode(&c, prompt);
    if (status == TN_OK)
        status = apply(&c);
    if (status == TN_OK)
        status = generate(&c);
    tn_stream_free(c.stream);
    tn_tokenizer_free(c.tokenizer);
    tn_model_close(c.model);
    tn_config_free(c.config);
    free(c.ids);
    return status == TN_OK ? TN_OK : tn_fail(err, status, c.err.where, "%s", c.err.message);
}
