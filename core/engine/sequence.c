/* One sequence: taking it, choosing its tokens, ending it. */
#include "engine/sequence.h"

#include "base/clock.h"
#include "base/structs.h"
#include "engine/prints.h"

#include <stdlib.h>

static tn_status check_prompt(const tn_engine_request *r, const sequence_limits *limits, tn_error *err)
{
    if (r->prompt_count < 1)
        return tn_fail(err, TN_E_INPUT, "input", "the prompt is empty; give at least one token");
    if (r->prompt_count > limits->context)
        return tn_fail(err, TN_E_INPUT, "input", "%lld tokens do not fit into the context of %lld",
                       (long long)r->prompt_count, (long long)limits->context);
    for (int64_t i = 0; i < r->prompt_count; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= limits->vocab)
            return tn_fail(err, TN_E_INPUT, "input", "token id %lld at position %lld is outside the vocabulary of %lld",
                           (long long)r->prompt[i], (long long)i, (long long)limits->vocab);
    return TN_OK;
}

/* ---- pictures and sounds -------------------------------------------------------------------------- */

/* Each thing that is given has tokens, and those that see each other fit into a step. */
static tn_status check_media(const media *m, const sequence_limits *limits, tn_error *err)
{
    static const char *const what[] = {"", "images", "videos", "sounds"};
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS; kind++)
        if (m->given[kind] && m->count[kind] == 0)
            return tn_fail(err, TN_E_INPUT, what[kind], "are given, but no token of the prompt stands for them");
    for (int64_t at = 0, n; at < m->tokens; at += n < 0 ? -n : n) {
        n = media_mutual(m, at, m->tokens - at);
        if (n > limits->budget)
            return tn_fail(err, TN_E_INPUT, "picture",
                           "its %lld tokens see each other, and a step takes %lld of prompts; raise the budget "
                           "(tn_engine_options)",
                           (long long)n, (long long)limits->budget);
    }
    return TN_OK;
}

static bool follows_length(const model_shape *shape)
{
    bool follows = false;
    for (int32_t i = 0; i < shape->rope_count; i++)
        follows |= rope_tables_follow(&shape->rope[i]);
    return follows;
}

static tn_status take_media(sequence *s, const tn_engine_request *r, const sequence_limits *limits, tn_error *err)
{
    if (!r->images && !r->videos && !r->sounds)
        return TN_OK;
    if (follows_length(limits->shape))
        return tn_fail(err, TN_E_INPUT, "input",
                       "an engine takes no pictures and sounds of a model whose rotary "
                       "frequencies follow the length; a session does");
    if (!(s->media = calloc(1, sizeof *s->media)))
        return tn_fail(err, TN_E_MEMORY, "engine", "out of memory");
    const tn_model *model = limits->model;
    const tn_batch batch = {.size = sizeof batch,
                            .rows = 1,
                            .tokens = r->prompt_count,
                            .ids = r->prompt,
                            .images = r->images,
                            .videos = r->videos,
                            .sounds = r->sounds};
    tn_status status =
        media_init(s->media, model->target.device, model->dtype, limits->shape, 1, limits->run_tokens, err);
    if (status == TN_OK)
        status = media_take(s->media, &batch, err);
    if (status == TN_OK)
        status = media_begin(s->media, &batch, NULL, &(int64_t){0}, err);
    if (status == TN_OK)
        status = check_media(s->media, limits, err);
    if (status == TN_OK)
        prints_set(&s->text, s->media, limits->key);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------------- */

sequence *sequence_new(const tn_engine_request *request, const sequence_limits *limits, tn_error *err)
{
    tn_engine_request r = {0};
    tn_status status = structs_take(&r, sizeof r, request, "tn_engine_request", err);
    if (status == TN_OK && (!r.prompt || !r.options || !r.on_end))
        status = structs_missing(!r.prompt    ? "tn_engine_request.prompt"
                                 : !r.options ? "tn_engine_request.options"
                                              : "tn_engine_request.on_end",
                                 err);
    if (status == TN_OK)
        status = check_prompt(&r, limits, err);
    if (status != TN_OK)
        return NULL;
    sequence *s = calloc(1, sizeof *s);
    if (!s) {
        tn_fail(err, TN_E_MEMORY, "engine", "out of memory");
        return NULL;
    }
    s->prompt = r.prompt_count;
    s->text.salt = r.salt;
    s->on_prompt_logits = r.on_prompt_logits;
    s->on_end = r.on_end;
    s->added = clock_seconds();
    s->result = (tn_engine_result){.size = sizeof s->result, .error = TN_ERROR_INIT};
    status = structs_take(&s->options, sizeof s->options, r.options, "tn_generate_options", err);
    if (status == TN_OK && s->options.max_tokens < 0)
        status =
            tn_fail(err, TN_E_USAGE, "max_tokens", "%lld tokens cannot be written", (long long)s->options.max_tokens);
    if (status == TN_OK)
        status = sample_init(&s->sampler, &s->options, limits->vocab, err);
    if (status == TN_OK)
        status = sample_see(&s->sampler, r.prompt, r.prompt_count, err);
    if (status == TN_OK)
        status = held_append(&s->text, r.prompt, r.prompt_count, err);
    if (status == TN_OK)
        status = take_media(s, &r, limits, err);
    if (status == TN_OK)
        return s;
    sequence_free(s);
    return NULL;
}

void sequence_free(sequence *s)
{
    if (!s)
        return;
    if (s->media) {
        media_end(s->media);
        media_close(s->media);
        free(s->media);
    }
    sample_close(&s->sampler);
    held_close(&s->text);
    free(s);
}

int64_t sequence_left(const sequence *s, bool replays)
{
    int64_t known = s->text.count - s->text.fed;
    if (!replays)
        return known;
    return s->text.fed < s->prompt ? s->prompt - s->text.fed : known > 0;
}

void sequence_end(sequence *s, tn_status status, const tn_error *err)
{
    if (s->ended)
        return;
    double now = clock_seconds();
    s->ended = true;
    s->result.status = status;
    if (status != TN_OK && err)
        s->result.error = *err;
    s->result.cached = s->cached;
    s->result.queue_seconds = (s->begun ? s->started : now) - s->added;
    s->result.prompt_seconds = s->begun ? (s->answered > 0 ? s->answered : now) - s->started : 0;
    s->result.decode_seconds = s->answered > 0 ? now - s->answered : 0;
    s->on_end(s->options.ctx, &s->result);
}

static void stop(sequence *s, tn_stop why)
{
    s->result.stop = why;
    sequence_end(s, TN_OK, NULL);
}

void sequence_choose(sequence *s, const sequence_limits *limits, float *logits)
{
    const tn_generate_options *o = &s->options;
    tn_error err = TN_ERROR_INIT;
    int64_t position = s->text.count, id = 0;
    if (s->answered == 0)
        s->answered = clock_seconds();
    if (o->max_tokens == 0) {
        stop(s, TN_STOP_LENGTH);
        return;
    }
    int next;
    tn_status status = next_choose(&s->sampler, o, 0, s->result.count, position, logits, &id, &next, &err);
    if (status == TN_OK && next != TN_NEXT_TOKEN) {
        stop(s, TN_STOP_CALLBACK);
        return;
    }
    if (status == TN_OK)
        status = held_append(&s->text, &id, 1, &err);
    if (status != TN_OK) {
        sequence_end(s, status, &err);
        return;
    }
    s->result.count++;
    next = next_tell(o, 0, id);
    if (next_is_end(limits->info, id) && !o->ignore_eos)
        stop(s, TN_STOP_EOS);
    else if (next != TN_NEXT_TOKEN)
        stop(s, TN_STOP_CALLBACK);
    else if (s->result.count == o->max_tokens)
        stop(s, TN_STOP_LENGTH);
    else if (position >= limits->context)
        stop(s, TN_STOP_CONTEXT);
}
