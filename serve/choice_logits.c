/* What is done to a sequence's logits before a token is drawn from them. */
#include "reply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what was generated ------------------------------------------------------------------------ */

/* Where the token stands, or would, among those that were seen. */
static size_t place_of(const choice *c, int64_t id)
{
    size_t low = 0, high = c->seen_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c->seen[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool choice_count_token(choice *c, int64_t id)
{
    const sampling *s = &c->of->sampling;
    if (s->presence == 0 && s->frequency == 0)
        return true;
    size_t at = place_of(c, id);
    if (at < c->seen_count && c->seen[at].id == id) {
        c->seen[at].count++;
        return true;
    }
    if (c->seen_count == c->seen_capacity) {
        size_t capacity = c->seen_capacity * 2 + 64;
        choice_seen *larger = realloc(c->seen, capacity * sizeof *larger);
        if (!larger)
            return choice_fail(c, 500, "out of memory");
        c->seen = larger;
        c->seen_capacity = capacity;
    }
    memmove(c->seen + at + 1, c->seen + at, (c->seen_count - at) * sizeof *c->seen);
    c->seen[at] = (choice_seen){id, 1};
    c->seen_count++;
    return true;
}

/* ---- changes ------------------------------------------------------------------------------------ */

static void add_biases(const choice *c, float *logits)
{
    const sampling *s = &c->of->sampling;
    for (size_t i = 0; i < s->bias_count; i++)
        logits[s->biases[i].id] += (float)s->biases[i].bias;
    for (size_t i = 0; i < c->seen_count; i++)
        logits[c->seen[i].id] -= (float)(s->presence + s->frequency * (double)c->seen[i].count);
}

/* At the beginning of a text whose form is fixed only behind a thought, the thought may begin, too. */
static bool constrain(choice *c, float *logits, int64_t vocab)
{
    int64_t open = c->of->api->think_open;
    bool may_think = c->first && open >= 0 && open < vocab && c->of->api->think_close >= 0 && c->splitter;
    float think = may_think ? logits[open] : 0;
    tn_error err = TN_ERROR_INIT;
    if (tn_grammar_constrain(c->grammar, logits, vocab, &err) != TN_OK)
        return choice_fail(c, 500, err.message);
    if (may_think)
        logits[open] = think;
    return true;
}

/* What ends a text is excluded, unless nothing else is left. */
static void exclude_ends(const choice *c, float *logits, int64_t vocab)
{
    const sampling *s = &c->of->sampling;
    const tn_model_info *info = &c->of->api->info;
    bool other = !c->grammar;
    for (int64_t i = 0; i < vocab && !other; i++)
        other = logits[i] > -INFINITY && !state_ends(c->of->api, i);
    for (int64_t i = 0; i < info->eos_total && other; i++)
        if (info->eos_ids[i] >= 0 && info->eos_ids[i] < vocab)
            logits[info->eos_ids[i]] = -INFINITY;
    for (size_t i = 0; i < s->stop_id_count && other && !c->grammar; i++)
        logits[s->stop_ids[i]] = -INFINITY;
}

bool choice_sees_logits(const choice *c)
{
    const sampling *s = &c->of->sampling;
    return c->likely || c->grammar || s->bias_count > 0 || s->presence != 0 || s->frequency != 0 || s->min_tokens > 0;
}

int choice_on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    choice *c = ctx;
    (void)row;
    if (c->ending != CHOICE_RUNS || vocab != c->of->api->info.vocab)
        return TN_NEXT_END_ALL;
    if (c->likely && !likelihood_see(&c->likelihood, logits)) {
        choice_fail(c, 500, "out of memory");
        return TN_NEXT_END_ALL;
    }
    add_biases(c, logits);
    if (c->grammar && !c->free_yet && !constrain(c, logits, vocab))
        return TN_NEXT_END_ALL;
    if (step < c->of->sampling.min_tokens)
        exclude_ends(c, logits, vocab);
    return TN_NEXT_TOKEN;
}
