/* A step: what each sequence feeds, the run, and what comes of it. */
#include "engine/engine_state.h"

#include "base/structs.h"

#include <string.h>

/* ---- what is fed ---------------------------------------------------------------------------------- */

static bool is_answering(const sequence *s)
{
    return s->text.fed >= s->prompt && s->text.count - s->text.fed == 1;
}

/* What a step has taken so far. */
typedef struct taken {
    int64_t budget; /* what is left of it                                                             */
    bool prompts;   /* there is a piece of a prompt                                                   */
    bool pictures;  /* ... with pictures or sounds, of which there is one in a step                    */
} taken;

/* Tokens of a sequence in this step. */
static int64_t piece_of_text(const tn_engine *e, const sequence *s, const taken *t)
{
    int64_t left = sequence_left(s, e->replays), fed = s->text.fed;
    if (left <= 1)
        return left;
    if (!e->has_states || fed >= s->prompt)
        return left < t->budget ? left : t->budget;
    int64_t cut = (fed / ENGINE_GRID + 1) * ENGINE_GRID - fed;
    left = left < cut ? left : cut;
    return left <= t->budget || !t->prompts ? left : 0;
}

static bool has_media(const sequence *s, int64_t tokens)
{
    int64_t fed = s->text.fed;
    return s->media && fed < s->media->tokens && media_plain(s->media, fed, tokens) < tokens;
}

/* The same, cut where pictures want it: those whose tokens see each other are a piece of their own. */
static int64_t piece_of(const tn_engine *e, const sequence *s, const taken *t)
{
    int64_t left = piece_of_text(e, s, t), fed = s->text.fed;
    if (!s->media || fed >= s->media->tokens || left == 0)
        return left;
    int64_t mutual = media_mutual(s->media, fed, s->media->tokens - fed);
    if (mutual > 0)
        return !t->pictures && (mutual <= t->budget || !t->prompts) ? mutual : 0;
    left = left < -mutual ? left : -mutual;
    return t->pictures ? media_plain(s->media, fed, left) : left;
}

/* Are frequencies those of long texts already? */
static bool has_moved(const model_shape *shape, const held_text *t)
{
    bool moved = false;
    for (int32_t i = 0; i < shape->rope_count; i++)
        moved |= rope_tables_moved(&shape->rope[i], t->rope_length[i]);
    return moved;
}

/* Frequencies of the next tokens: some kinds follow the length, and one of these asks for all tokens again. */
static void follow_length(const tn_engine *e, sequence *s, int64_t tokens)
{
    const model_shape *shape = e->maker.shape;
    held_text *t = &s->text;
    bool again =
        t->fed > 0 && t->fed <= shape->restart_at && t->fed + tokens > shape->restart_at && !has_moved(shape, t);
    if (again) {
        cache_reset(&t->cache);
        t->fed = 0;
    }
    int64_t length = again ? t->count : t->fed + tokens;
    for (int32_t i = 0; i < shape->rope_count; i++) /* pieces of a prompt have that of all of it          */
        if (length > t->rope_length[i])
            t->rope_length[i] = rope_tables_length(&shape->rope[i], t->rope_length[i], length);
}

static void add_part(tn_engine *e, sequence *s, int64_t tokens)
{
    bool whole = s->on_prompt_logits && s->heard < s->prompt;
    bool last = s->text.fed + tokens == s->text.count;
    e->of_part[e->part_count] = s;
    e->part[e->part_count++] = (compute_part){&s->text, tokens, whole ? tokens : last, s->media};
}

/* Features of pictures among its next tokens are there. false: they cannot be made, and it has ended. */
static bool see(tn_engine *e, sequence *s, int64_t tokens)
{
    tn_error err = TN_ERROR_INIT;
    tn_status status = has_media(s, tokens) ? compute_see(&e->compute, s->media, e->limits.context, &err) : TN_OK;
    if (status != TN_OK)
        sequence_end(s, status, &err);
    return status == TN_OK;
}

/* The oldest first. What answers has a token each, and prompts share the rest. */
static void plan(tn_engine *e)
{
    int64_t answering = 0;
    for (int64_t i = 0; i < e->running_count; i++)
        answering += is_answering(e->running[i]);
    taken t = {.budget = e->budget - answering > 0 ? e->budget - answering : 1};
    e->part_count = 0;
    for (int64_t i = 0; i < e->running_count; i++) {
        sequence *s = e->running[i];
        int64_t tokens = is_answering(s) ? 1 : t.budget > 0 ? piece_of(e, s, &t) : 0;
        if (tokens == 0 || !admit_room(e, s, s->text.fed + tokens))
            continue; /* who gives way is the last one                                                   */
        int64_t fed = s->text.fed;
        follow_length(e, s, tokens);
        if (s->text.fed < fed)
            tokens = piece_of(e, s, &t);
        if (!see(e, s, tokens))
            continue;
        if (!is_answering(s)) {
            t.budget -= tokens;
            t.prompts = true;
        }
        t.pictures |= has_media(s, tokens);
        add_part(e, s, tokens);
    }
}

/* First what gives no logits, then ends of prompts, then what answers: see compute_run. */
static int rank(const compute_part *p)
{
    return p->wanted == 0 ? 0 : p->tokens > 1 ? 1 : 2;
}

static void sort_parts(tn_engine *e)
{
    for (int64_t i = 1; i < e->part_count; i++)
        for (int64_t k = i; k > 0 && rank(&e->part[k - 1]) > rank(&e->part[k]); k--) {
            compute_part part = e->part[k];
            sequence *of = e->of_part[k];
            e->part[k] = e->part[k - 1];
            e->of_part[k] = e->of_part[k - 1];
            e->part[k - 1] = part;
            e->of_part[k - 1] = of;
        }
}

/* ---- what comes ----------------------------------------------------------------------------------- */

static void hear(void *ctx, int64_t part, int64_t position, float *logits, const tn_error *err)
{
    tn_engine *e = ctx;
    sequence *s = e->of_part[part];
    if (s->ended)
        return;
    if (err) {
        sequence_end(s, err->code, err);
        return;
    }
    if (s->on_prompt_logits && position == s->heard && position < s->prompt) {
        s->on_prompt_logits(s->options.ctx, position, logits, e->limits.vocab);
        s->heard++;
    }
    if (position + 1 == s->text.count) {
        int64_t before = s->result.count;
        sequence_choose(s, &e->limits, logits);
        e->info.generated_tokens += s->result.count - before;
    }
}

static void count(tn_engine *e)
{
    e->info.steps++;
    for (int64_t i = 0; i < e->part_count; i++) {
        sequence *s = e->of_part[i];
        e->info.prompt_tokens += s->text.fed <= s->prompt ? e->part[i].tokens : 0;
        s->text.used = (uint64_t)e->info.steps;
        if (s->media && s->text.fed >= s->media->tokens)
            media_drop(s->media);
    }
}

/* States behind what a pass over a prompt has fed. */
static void note_states(tn_engine *e)
{
    for (int64_t i = 0; i < e->part_count && e->has_states; i++) {
        const sequence *s = e->of_part[i];
        bool noted = s->text.snapshots > 0 && s->text.snapshot[0].length >= s->text.fed;
        if (s->text.fed <= s->prompt && s->text.fed % ENGINE_GRID == 0 && !noted)
            held_note_states(e->part[i].text, NULL); /* without them it is only not shared              */
    }
}

static void clear_ended(tn_engine *e)
{
    for (int64_t i = e->running_count - 1; i >= 0; i--)
        if (e->running[i]->ended)
            admit_leave(e, i);
}

static tn_status run(tn_engine *e, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    tn_status status = compute_run(&e->compute, e->part, e->part_count, hear, e, &why);
    if (status != TN_OK) {
        for (int64_t i = 0; i < e->part_count; i++) {
            held_drop_cache(&e->of_part[i]->text);
            sequence_end(e->of_part[i], status, &why);
        }
        return tn_fail(err, status, why.where, "%s", why.message);
    }
    count(e);
    note_states(e);
    return TN_OK;
}

tn_status tn_engine_step(tn_engine *e, bool *more, tn_error *err)
{
    if (!e)
        return structs_missing("engine", err);
    admit_sequences(e);
    plan(e);
    sort_parts(e);
    tn_status status = e->part_count > 0 ? run(e, err) : TN_OK;
    clear_ended(e);
    if (more)
        *more = e->running_count > 0 || e->waiting_count > 0;
    return status;
}
