/* Grammars from outside: made of parts, and where a text is in one. */
#include "grammar/codepoints.h"
#include "grammar/mask.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"

#include "base/structs.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TN_GRAMMAR_STATES == AUTOMATON_STATES, "the public bound is the automaton's");

struct tn_grammar_state {
    tn_grammar *grammar;
    tn_grammar_state *before, *after; /* of the same grammar                                                     */
    uint32_t at;
    bool over; /* a token of an end came                                                                        */
};

struct tn_grammar {
    const tn_vocabulary *vocabulary;
    automaton a;
    pthread_mutex_t lock; /* of what follows                                                                   */
    configurations c;
    tn_grammar_state *states;
    size_t state_count;
    uint32_t **kept; /* [state_count + longest + 3] */
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

static tn_status add_regex(automaton *a, const char *text, uint32_t from, uint32_t to, tn_error *err)
{
    codepoints c = {0};
    tn_status status = pattern_parse(text, strlen(text), true, &c, "pattern", "", err);
    if (status == TN_OK)
        codepoints_lower(&c, a, from, '\0', to, false);
    codepoints_free(&c);
    return status;
}

static tn_status add_part(schema *s, tn_grammar_part part, const char *text, uint32_t *at, tn_error *err)
{
    automaton *a = s->a;
    uint32_t to;
    switch (part) {
    case TN_GRAMMAR_LITERAL:
        *at = automaton_literal(a, *at, text, strlen(text));
        return TN_OK;
    case TN_GRAMMAR_OBJECT:
        to = automaton_state(a);
        automaton_call(a, *at, schema_any_object(s), to);
        *at = to;
        return TN_OK;
    case TN_GRAMMAR_SCHEMA:
        to = automaton_state(a);
        tn_status status = schema_add(s, text, strlen(text), *at, to, err);
        *at = to;
        return status;
    case TN_GRAMMAR_REGEX:
        to = automaton_state(a);
        status = add_regex(a, text, *at, to, err);
        *at = to;
        return status;
    case TN_GRAMMAR_OR:
        automaton_empty(a, *at, a->rules[0].end);
        *at = a->rules[0].start;
        return TN_OK;
    }
    return tn_fail(err, TN_E_USAGE, "parts", "%d is no kind of part", (int)part);
}

static tn_status compile(tn_grammar *g, const tn_grammar_part *parts, const char *const *texts, size_t count,
                         tn_error *err)
{
    schema s = {.a = &g->a};
    g->a.plain = AUTOMATON_NONE;
    automaton_add_rule(&g->a);
    tn_status status = automaton_check(&g->a, "grammar", err);
    uint32_t at = status == TN_OK ? g->a.rules[0].start : 0;
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        status = add_part(&s, parts[i], texts ? texts[i] : NULL, &at, err);
        if (status == TN_OK)
            status = automaton_check(&g->a, parts[i] == TN_GRAMMAR_REGEX ? "pattern" : "schema", err);
    }
    if (status == TN_OK) {
        automaton_empty(&g->a, at, g->a.rules[0].end);
        status = automaton_check(&g->a, "grammar", err);
    }
    uint32_t circular = AUTOMATON_NONE;
    if (status == TN_OK)
        status = automaton_finish(&g->a, &circular, err);
    if (status == TN_OK)
        status = schema_check(&s, circular, err);
    if (status == TN_OK && !g->a.rules[0].sound)
        status = tn_fail(err, TN_E_INPUT, "grammar", "no text has this form");
    schema_close(&s);
    return status;
}

static tn_status check_parts(const tn_vocabulary *vocabulary, const tn_grammar_part *parts, const char *const *texts,
                             size_t count, tn_error *err)
{
    if (!vocabulary || !parts)
        return structs_missing(vocabulary ? "parts" : "vocabulary", err);
    if (count == 0)
        return tn_fail(err, TN_E_USAGE, "parts", "a grammar has at least one part");
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i] == TN_GRAMMAR_OBJECT || parts[i] == TN_GRAMMAR_OR)
            continue;
        if (!texts || !texts[i])
            return structs_missing("texts", err);
        bytes += strlen(texts[i]);
        if (bytes > TN_GRAMMAR_BYTES)
            return tn_fail(err, TN_E_INPUT, "grammar", "its texts have more than %zu bytes; make them shorter",
                           TN_GRAMMAR_BYTES);
    }
    return TN_OK;
}

/* Room for the numbers of one state more. */
static bool kept_room(tn_grammar *g)
{
    size_t count = g->state_count + 1 + g->vocabulary->longest + 3;
    uint32_t **kept = realloc(g->kept, count * sizeof *kept);
    if (!kept)
        return false;
    g->kept = kept;
    return true;
}

static tn_status no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "grammar", "out of memory");
}

tn_grammar *tn_grammar_new(const tn_vocabulary *vocabulary, const tn_grammar_part *parts, const char *const *texts,
                           size_t count, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    if (check_parts(vocabulary, parts, texts, count, err) != TN_OK)
        return NULL;
    tn_grammar *g = calloc(1, sizeof *g);
    if (!g) {
        no_memory(err);
        return NULL;
    }
    g->vocabulary = vocabulary;
    pthread_mutex_init(&g->lock, NULL);
    tn_status status = compile(g, parts, texts, count, err);
    if (status == TN_OK && !configurations_open(&g->c, &g->a))
        status = no_memory(err);
    if (status == TN_OK)
        return g;
    tn_grammar_free(g);
    return NULL;
}

void tn_grammar_free(tn_grammar *g)
{
    if (!g)
        return;
    configurations_close(&g->c);
    automaton_free(&g->a);
    pthread_mutex_destroy(&g->lock);
    free(g->kept);
    free(g);
}

/* ---- where a text is -----------------------------------------------------------------------------------------------
 */

tn_grammar_state *tn_grammar_state_new(tn_grammar *g, tn_error *err)
{
    if (!g) {
        structs_missing("grammar", err);
        return NULL;
    }
    tn_grammar_state *s = calloc(1, sizeof *s);
    if (!s) {
        no_memory(err);
        return NULL;
    }
    s->grammar = g;
    pthread_mutex_lock(&g->lock);
    bool good = kept_room(g);
    s->at = good ? configurations_start(&g->c) : CONFIGURATION_LACK;
    good = s->at != CONFIGURATION_LACK;
    if (good) {
        s->after = g->states;
        if (g->states)
            g->states->before = s;
        g->states = s;
        g->state_count++;
    }
    pthread_mutex_unlock(&g->lock);
    if (good)
        return s;
    free(s);
    no_memory(err);
    return NULL;
}

void tn_grammar_state_free(tn_grammar_state *s)
{
    if (!s)
        return;
    tn_grammar *g = s->grammar;
    pthread_mutex_lock(&g->lock);
    if (s->before)
        s->before->after = s->after;
    else
        g->states = s->after;
    if (s->after)
        s->after->before = s->before;
    g->state_count--;
    pthread_mutex_unlock(&g->lock);
    free(s);
}

/* What states stand on; the lock is held. */
static mask_kept all_kept(tn_grammar *g)
{
    size_t n = 0;
    for (tn_grammar_state *s = g->states; s; s = s->after)
        g->kept[n++] = &s->at;
    return (mask_kept){g->kept, n};
}

/* Forgets what no state, nor *at, stands on, where there is much of it; the lock is held. */
static bool make_room(tn_grammar *g, uint32_t *at)
{
    if (!configurations_crowded(&g->c, 1))
        return true;
    mask_kept kept = all_kept(g);
    kept.numbers[kept.count++] = at;
    return configurations_sweep(&g->c, kept.numbers, kept.count);
}

static tn_status accept(tn_grammar_state *s, const char *bytes, size_t length, tn_error *err)
{
    tn_grammar *g = s->grammar;
    tn_status status = TN_OK;
    pthread_mutex_lock(&g->lock);
    uint32_t at = s->at;
    for (size_t i = 0; i < length && status == TN_OK; i++) {
        if (!make_room(g, &at)) {
            status = no_memory(err);
            break;
        }
        at = configurations_step(&g->c, at, (uint8_t)bytes[i]);
        if (at == CONFIGURATION_LACK)
            status = no_memory(err);
        else if (at == CONFIGURATION_DEAD)
            status = tn_fail(err, TN_E_INPUT, "grammar", "byte %zu may not come here", i);
    }
    if (status == TN_OK)
        s->at = at;
    pthread_mutex_unlock(&g->lock);
    return status;
}

static tn_status check_going(const tn_grammar_state *s, tn_error *err)
{
    return s->over ? tn_fail(err, TN_E_INPUT, "grammar", "the text has ended") : TN_OK;
}

tn_status tn_grammar_accept_bytes(tn_grammar_state *s, const char *bytes, size_t length, tn_error *err)
{
    if (!s || (!bytes && length > 0))
        return structs_missing(s ? "bytes" : "state", err);
    tn_status status = check_going(s, err);
    return status == TN_OK ? accept(s, bytes, length, err) : status;
}

tn_status tn_grammar_accept(tn_grammar_state *s, int64_t id, tn_error *err)
{
    if (!s)
        return structs_missing("state", err);
    const tn_vocabulary *v = s->grammar->vocabulary;
    tn_status status = check_going(s, err);
    if (status != TN_OK)
        return status;
    if (id >= 0 && id < v->size && vocabulary_has(v->ends, id)) {
        s->over = tn_grammar_is_done(s);
        return s->over ? TN_OK : tn_fail(err, TN_E_INPUT, "grammar", "the text may not end here");
    }
    size_t length = id >= 0 && id < v->size ? v->offsets[id + 1] - v->offsets[id] : 0;
    if (length == 0)
        return tn_fail(err, TN_E_INPUT, "grammar", "token %lld is never allowed", (long long)id);
    return accept(s, v->bytes + v->offsets[id], length, err);
}

tn_status tn_grammar_mask(tn_grammar_state *s, uint64_t *bits, tn_error *err)
{
    if (!s || !bits)
        return structs_missing(s ? "bits" : "state", err);
    tn_grammar *g = s->grammar;
    const tn_vocabulary *v = g->vocabulary;
    if (s->over) {
        memcpy(bits, v->ends, v->words * sizeof *bits);
        return TN_OK;
    }
    pthread_mutex_lock(&g->lock);
    const uint64_t *mask = mask_of(&g->c, v, all_kept(g), &s->at);
    bool ends = mask && g->c.sets.lists[s->at].ends;
    uint64_t any = ends;
    for (size_t w = 0; mask && w < v->words; w++) {
        bits[w] = mask[w] | (ends ? v->ends[w] : 0);
        any |= bits[w];
    }
    pthread_mutex_unlock(&g->lock);
    if (!mask)
        return no_memory(err);
    return any ? TN_OK
               : tn_fail(err, TN_E_INPUT, "grammar",
                         "no token of the vocabulary can come next, and the text is not whole");
}

tn_status tn_grammar_constrain(tn_grammar_state *s, float *logits, int64_t count, tn_error *err)
{
    if (!s || !logits)
        return structs_missing(s ? "logits" : "state", err);
    const tn_vocabulary *v = s->grammar->vocabulary;
    if (count != v->size)
        return tn_fail(err, TN_E_USAGE, "count", "%lld logits for a vocabulary of %lld", (long long)count,
                       (long long)v->size);
    uint64_t *bits = malloc(v->words * sizeof *bits);
    tn_status status = bits ? tn_grammar_mask(s, bits, err) : no_memory(err);
    for (int64_t id = 0; id < count && status == TN_OK; id++)
        if (!vocabulary_has(bits, id))
            logits[id] = -INFINITY;
    free(bits);
    return status;
}

bool tn_grammar_is_done(const tn_grammar_state *s)
{
    if (!s)
        return false;
    pthread_mutex_lock(&s->grammar->lock);
    bool ends = s->over || s->grammar->c.sets.lists[s->at].ends;
    pthread_mutex_unlock(&s->grammar->lock);
    return ends;
}
