/* Running a text through a model: as a prompt, and its end token by token. */
#include "whole/whole.h"

#include "apply/apply.h"
#include "generate/session.h"

#include <stdlib.h>

/* The part of a window that is fed token by token, and the most of it. */
enum { STEPS_PART = 4, MOST_STEPS = 16 };

tn_status whole_no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "verify", "out of memory for the logits; use fewer tokens");
}

float *whole_run_alloc(const whole_text *text, int64_t vocab, tn_error *err)
{
    float *logits = malloc((size_t)text->count * (size_t)vocab * sizeof *logits);
    if (!logits)
        whole_no_memory(err);
    return logits;
}

static tn_status run_window(tn_session *session, const int64_t *ids, int64_t count, int64_t vocab, float *logits,
                            tn_error *err)
{
    int64_t steps = count / STEPS_PART < MOST_STEPS ? count / STEPS_PART : MOST_STEPS;
    tn_status status = TN_OK;
    tn_session_reset(session);
    for (int64_t at = 0; at < count && status == TN_OK;) {
        int64_t n = at == 0 ? count - steps : 1;
        tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = n, .ids = ids + at};
        tn_outputs outputs = {.size = sizeof outputs, .logits = logits + at * vocab};
        status = tn_session_run(session, &batch, &outputs, err);
        at += n;
    }
    return status;
}

static tn_status run_windows(tn_model *model, const whole_text *text, float *logits, tn_error *err)
{
    int64_t vocab = model->info.vocab;
    tn_session_options options = {.size = sizeof options, .rows = 1, .context = text->window};
    tn_session *session = tn_session_new(model, &options, err);
    tn_status status = session ? TN_OK : err->code;
    if (session)
        session_take_any_logits(session);
    for (int64_t at = 0; at < text->count && status == TN_OK; at += text->window) {
        int64_t n = text->count - at < text->window ? text->count - at : text->window;
        status = run_window(session, text->ids + at, n, vocab, logits + at * vocab, err);
    }
    tn_session_free(session);
    return status;
}

tn_status whole_run(tn_model *model, const whole_text *text, bool eager, float *logits, tn_error *err)
{
    if (!eager)
        return run_windows(model, text, logits, err);
    bool *none = calloc(model->target.graph->site_count + 1, sizeof *none);
    if (!none)
        return whole_no_memory(err);
    apply_only(&model->target, none);
    tn_status status = run_windows(model, text, logits, err);
    apply_only(&model->target, NULL);
    free(none);
    return status;
}
