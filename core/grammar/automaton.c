/* The automaton: its states, edges and rules. */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

void automaton_free(automaton *a)
{
    free(a->first);
    free(a->ends);
    free(a->run);
    free(a->edges);
    free(a->rules);
    *a = (automaton){0};
}

static bool grow(void **array, size_t capacity, size_t element)
{
    void *larger = realloc(*array, capacity * element);
    if (larger)
        *array = larger;
    return larger != NULL;
}

uint32_t automaton_state(automaton *a)
{
    if (a->states >= AUTOMATON_STATES)
        a->full = true;
    if (a->full || a->lack)
        return 0;
    if (a->states == a->state_capacity) {
        size_t capacity = a->state_capacity ? 2 * a->state_capacity : 1024;
        a->lack = !grow((void **)&a->first, capacity, sizeof *a->first) ||
                  !grow((void **)&a->ends, capacity, sizeof *a->ends);
        if (a->lack)
            return 0;
        a->state_capacity = capacity;
    }
    a->first[a->states] = a->ends[a->states] = AUTOMATON_NONE;
    return (uint32_t)a->states++;
}

uint32_t automaton_add_rule(automaton *a)
{
    uint32_t start = automaton_state(a), end = automaton_state(a);
    if (!a->full && !a->lack && a->rule_count == a->rule_capacity) {
        size_t capacity = a->rule_capacity ? 2 * a->rule_capacity : 64;
        a->lack = !grow((void **)&a->rules, capacity, sizeof *a->rules);
        a->rule_capacity = a->lack ? a->rule_capacity : capacity;
    }
    if (a->full || a->lack)
        return 0;
    a->ends[end] = (uint32_t)a->rule_count;
    a->rules[a->rule_count] = (automaton_rule){.start = start, .end = end};
    return (uint32_t)a->rule_count++;
}

static void add_edge(automaton *a, uint32_t from, automaton_edge edge)
{
    if (a->edge_count >= AUTOMATON_EDGES)
        a->full = true;
    if (a->full || a->lack)
        return;
    if (a->edge_count == a->edge_capacity) {
        size_t capacity = a->edge_capacity ? 2 * a->edge_capacity : 2048;
        a->lack = !grow((void **)&a->edges, capacity, sizeof *a->edges);
        if (a->lack)
            return;
        a->edge_capacity = capacity;
    }
    edge.next = a->first[from];
    a->first[from] = (uint32_t)a->edge_count;
    a->edges[a->edge_count++] = edge;
}

void automaton_bytes(automaton *a, uint32_t from, uint8_t low, uint8_t high, uint32_t to)
{
    add_edge(a, from, (automaton_edge){.to = to, .kind = EDGE_BYTE, .low = low, .high = high});
}

void automaton_empty(automaton *a, uint32_t from, uint32_t to)
{
    add_edge(a, from, (automaton_edge){.to = to, .kind = EDGE_EMPTY});
}

void automaton_call(automaton *a, uint32_t from, uint32_t rule, uint32_t to)
{
    add_edge(a, from, (automaton_edge){.to = to, .rule = rule, .kind = EDGE_CALL});
}

uint32_t automaton_literal(automaton *a, uint32_t from, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length && !a->full && !a->lack; i++) {
        uint32_t to = automaton_state(a);
        automaton_bytes(a, from, (uint8_t)bytes[i], (uint8_t)bytes[i], to);
        from = to;
    }
    return from;
}

uint32_t automaton_branch(automaton *a, uint32_t from, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length && !a->full && !a->lack; i++) {
        uint32_t e = a->first[from];
        while (e != AUTOMATON_NONE && !(a->edges[e].kind == EDGE_BYTE && a->edges[e].low == (uint8_t)bytes[i] &&
                                        a->edges[e].high == (uint8_t)bytes[i]))
            e = a->edges[e].next;
        if (e == AUTOMATON_NONE)
            return automaton_literal(a, from, bytes + i, length - i);
        from = a->edges[e].to;
    }
    return from;
}

bool automaton_spend(automaton *a, size_t work)
{
    a->full = a->full || work > AUTOMATON_WORK - a->work;
    a->work += a->full ? 0 : work;
    return !a->full;
}

tn_status automaton_check(const automaton *a, const char *where, tn_error *err)
{
    if (a->lack)
        return tn_fail(err, TN_E_MEMORY, where, "out of memory");
    if (a->full)
        return tn_fail(err, TN_E_INPUT, where,
                       "it takes more than %d states, or too long to make; make lengths, lists and repetitions smaller",
                       AUTOMATON_STATES);
    return TN_OK;
}

/* ---- what no text ends ------------------------------------------------------------------------------------- */

/* For each edge, the state it comes from; and for each state and rule, a list of edges to look at when it is known to
 * be sound: those that lead there, or call it. */
typedef struct backward {
    uint32_t *from;      /* [edges]                                                                        */
    uint32_t *into;      /* [states] the first edge to it, then by next_into                               */
    uint32_t *next_into; /* [edges]                                                                        */
    uint32_t *calls;     /* [rules] the first edge that calls it, then by next_call                        */
    uint32_t *next_call; /* [edges]                                                                        */
    uint32_t *work;      /* [states]                                                                       */
    bool *sound;         /* [states]                                                                       */
    size_t waiting;
} backward;

static void backward_close(backward *b)
{
    free(b->from);
    free(b->into);
    free(b->next_into);
    free(b->calls);
    free(b->next_call);
    free(b->work);
    free(b->sound);
}

static bool backward_open(backward *b, const automaton *a)
{
    size_t edges = a->edge_count + 1;
    *b = (backward){malloc(edges * sizeof *b->from),      malloc(a->states * sizeof *b->into),
                    malloc(edges * sizeof *b->next_into), malloc(a->rule_count * sizeof *b->calls),
                    malloc(edges * sizeof *b->next_call), malloc(a->states * sizeof *b->work),
                    calloc(a->states, sizeof *b->sound),  0};
    if (!b->from || !b->into || !b->next_into || !b->calls || !b->next_call || !b->work || !b->sound)
        return false;
    memset(b->into, 0xff, a->states * sizeof *b->into);
    memset(b->calls, 0xff, a->rule_count * sizeof *b->calls);
    for (uint32_t s = 0; s < a->states; s++)
        for (uint32_t e = a->first[s]; e != AUTOMATON_NONE; e = a->edges[e].next) {
            const automaton_edge *edge = &a->edges[e];
            b->from[e] = s;
            b->next_into[e] = b->into[edge->to];
            b->into[edge->to] = e;
            if (edge->kind == EDGE_CALL) {
                b->next_call[e] = b->calls[edge->rule];
                b->calls[edge->rule] = e;
            }
        }
    return true;
}

static void found(backward *b, uint32_t state)
{
    if (!b->sound[state])
        b->work[b->waiting++] = state;
    b->sound[state] = true;
}

/* A rule whose start is sound is; its start is looked up by the state. */
static void spread(backward *b, automaton *a, const uint32_t *starts)
{
    for (size_t r = 0; r < a->rule_count; r++)
        found(b, a->rules[r].end);
    while (b->waiting) {
        uint32_t state = b->work[--b->waiting];
        for (uint32_t e = b->into[state]; e != AUTOMATON_NONE; e = b->next_into[e])
            if (a->edges[e].kind != EDGE_CALL || a->rules[a->edges[e].rule].sound)
                found(b, b->from[e]);
        uint32_t rule = starts[state];
        if (rule == AUTOMATON_NONE)
            continue;
        a->rules[rule].sound = true;
        for (uint32_t e = b->calls[rule]; e != AUTOMATON_NONE; e = b->next_call[e])
            if (b->sound[a->edges[e].to])
                found(b, b->from[e]);
    }
}

static void drop_edges(automaton *a, const bool *sound)
{
    for (size_t s = 0; s < a->states; s++) {
        uint32_t *link = &a->first[s];
        while (*link != AUTOMATON_NONE) {
            const automaton_edge *edge = &a->edges[*link];
            bool keep = sound[edge->to] && (edge->kind != EDGE_CALL || a->rules[edge->rule].sound);
            if (keep)
                link = &a->edges[*link].next;
            else
                *link = edge->next;
        }
    }
}

static bool trim(automaton *a)
{
    backward b;
    uint32_t *starts = malloc(a->states * sizeof *starts);
    bool good = backward_open(&b, a) && starts;
    if (good) {
        memset(starts, 0xff, a->states * sizeof *starts);
        for (size_t r = 0; r < a->rule_count; r++)
            starts[a->rules[r].start] = (uint32_t)r;
        spread(&b, a, starts);
        drop_edges(a, b.sound);
    }
    backward_close(&b);
    free(starts);
    return good;
}

/* ---- ranks: rules that are called before a byte was taken ------------------------------------------------------- */

typedef struct leftmost {
    uint32_t *seen;  /* [states] the last rule whose beginning reached it, plus 1                      */
    uint32_t *work;  /* [states]                                                                       */
    uint32_t *calls; /* [rules] how many beginnings call it                                             */
    uint32_t *ready; /* [rules]                                                                        */
} leftmost;

/* For each rule that this one calls at its beginning, as often as it does: one call more; where ready is given, one
 * less, and those that are called no more become ready. */
static void each_call(const automaton *a, leftmost *l, uint32_t rule, uint32_t mark, uint32_t *ready, size_t *count)
{
    size_t waiting = 0;
    l->work[waiting++] = a->rules[rule].start;
    l->seen[a->rules[rule].start] = mark;
    while (waiting) {
        uint32_t state = l->work[--waiting];
        for (uint32_t e = a->first[state]; e != AUTOMATON_NONE; e = a->edges[e].next) {
            const automaton_edge *edge = &a->edges[e];
            if (edge->kind == EDGE_EMPTY && l->seen[edge->to] != mark) {
                l->seen[edge->to] = mark;
                l->work[waiting++] = edge->to;
            } else if (edge->kind == EDGE_CALL && !ready) {
                l->calls[edge->rule]++;
            } else if (edge->kind == EDGE_CALL && --l->calls[edge->rule] == 0) {
                ready[(*count)++] = edge->rule;
            }
        }
    }
}

static bool rank(automaton *a, uint32_t *circular)
{
    uint32_t rules = (uint32_t)a->rule_count;
    leftmost l = {calloc(a->states, sizeof *l.seen), malloc(a->states * sizeof *l.work), calloc(rules, sizeof *l.calls),
                  malloc(rules * sizeof *l.ready)};
    bool good = l.seen && l.work && l.calls && l.ready;
    size_t count = 0;
    for (uint32_t r = 0; good && r < rules; r++)
        each_call(a, &l, r, r + 1, NULL, NULL);
    for (uint32_t r = 0; good && r < rules; r++)
        if (l.calls[r] == 0)
            l.ready[count++] = r;
    for (size_t i = 0; good && i < count; i++) {
        a->rules[l.ready[i]].rank = (uint32_t)i;
        each_call(a, &l, l.ready[i], rules + l.ready[i] + 1, l.ready, &count);
    }
    *circular = AUTOMATON_NONE;
    for (uint32_t r = 0; good && r < rules && count < rules; r++)
        if (l.calls[r]) {
            *circular = r;
            break;
        }
    free(l.seen);
    free(l.work);
    free(l.calls);
    free(l.ready);
    return good;
}

/* ---- runs of plain characters --------------------------------------------------------------------------------------
 */

/* Where a plain character leads from here, AUTOMATON_NONE: nowhere; RUN_UNSURE in *run: more than one way. */
static uint32_t plain_next(const automaton *a, uint32_t state, uint32_t *run)
{
    uint32_t next = AUTOMATON_NONE;
    *run = 0;
    for (uint32_t e = a->first[state]; e != AUTOMATON_NONE; e = a->edges[e].next) {
        const automaton_edge *edge = &a->edges[e];
        bool plain = edge->kind == EDGE_CALL && edge->rule == a->plain;
        bool quote = edge->kind == EDGE_BYTE && edge->low == '"' && edge->high == '"';
        if ((plain && next != AUTOMATON_NONE) || (!plain && !quote))
            *run = RUN_UNSURE;
        next = plain ? edge->to : next;
    }
    return next;
}

/* Follows the characters to a state that is known, then back. BUSY marks what is on the way. */
static bool find_runs(automaton *a)
{
    const uint32_t UNKNOWN = UINT32_MAX - 2, BUSY = UINT32_MAX - 3;
    uint32_t *way = malloc(a->states * sizeof *way);
    a->run = malloc(a->states * sizeof *a->run);
    for (size_t s = 0; a->run && s < a->states; s++)
        a->run[s] = UNKNOWN;
    for (uint32_t s = 0; way && a->run && s < a->states; s++) {
        size_t length = 0;
        uint32_t state = s, run = 0;
        while (state != AUTOMATON_NONE && a->run[state] == UNKNOWN) {
            uint32_t next = plain_next(a, state, &run);
            a->run[state] = run ? run : BUSY;
            way[length++] = state;
            state = run ? AUTOMATON_NONE : next;
        }
        if (state != AUTOMATON_NONE)
            run = a->run[state] == BUSY ? RUN_ENDLESS : a->run[state];
        else if (length)
            run = a->run[way[length - 1]] == BUSY ? 0 : RUN_UNSURE;
        bool last = state == AUTOMATON_NONE; /* the last on the way has nothing behind it */
        while (length) {
            if (!last && run < BUSY)
                run++;
            last = false;
            a->run[way[--length]] = run;
        }
    }
    free(way);
    return way && a->run;
}

tn_status automaton_finish(automaton *a, uint32_t *circular, tn_error *err)
{
    /* Ranks first: a circle takes no text either, and is to be called a circle. */
    return rank(a, circular) && trim(a) && find_runs(a) ? TN_OK : tn_fail(err, TN_E_MEMORY, "grammar", "out of memory");
}
