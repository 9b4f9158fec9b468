/* Automata over characters: made, freed of empty edges, and what two have in common. */
#include "grammar/codepoints.h"

#include <stdlib.h>
#include <string.h>

void codepoints_free(codepoints *c)
{
    free(c->first);
    free(c->accepts);
    free(c->edges);
    *c = (codepoints){0};
}

uint32_t codepoints_node(codepoints *c)
{
    if (c->count >= AUTOMATON_STATES)
        c->full = true;
    if (c->full || c->lack)
        return 0;
    if (c->count == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 64;
        uint32_t *first = realloc(c->first, capacity * sizeof *first);
        if (first)
            c->first = first;
        bool *accepts = realloc(c->accepts, capacity * sizeof *accepts);
        if (accepts)
            c->accepts = accepts;
        if (!first || !accepts) {
            c->lack = true;
            return 0;
        }
        c->capacity = capacity;
    }
    c->first[c->count] = AUTOMATON_NONE;
    c->accepts[c->count] = false;
    return (uint32_t)c->count++;
}

void codepoints_add(codepoints *c, uint32_t from, int32_t low, int32_t high, uint32_t to)
{
    if (c->edge_count >= AUTOMATON_EDGES)
        c->full = true;
    if (c->full || c->lack)
        return;
    if (c->edge_count == c->edge_capacity) {
        size_t capacity = c->edge_capacity ? 2 * c->edge_capacity : 128;
        codepoints_edge *edges = realloc(c->edges, capacity * sizeof *edges);
        if (!edges) {
            c->lack = true;
            return;
        }
        c->edges = edges;
        c->edge_capacity = capacity;
    }
    c->edges[c->edge_count] = (codepoints_edge){c->first[from], to, low, high};
    c->first[from] = (uint32_t)c->edge_count++;
}

/* One step of making it. */
static void step(codepoints *c)
{
    c->full = c->full || ++c->work > AUTOMATON_WORK;
}

void codepoints_lengths(codepoints *c, int64_t min, int64_t max)
{
    int64_t last = max < 0 ? min : max;
    uint32_t node = codepoints_node(c);
    for (int64_t i = 0; i <= last && !c->full && !c->lack; i++) {
        c->accepts[node] = i >= min;
        if (i == last && max >= 0)
            break;
        uint32_t to = i == last ? node : codepoints_node(c);
        codepoints_add(c, node, 0, CODEPOINTS_LAST, to);
        node = to;
    }
}

/* ---- without empty edges --------------------------------------------------------------------------------------- */

/* What is reached from a node without a character, at the start of the text or not: its edges go to the node `as` of
 * out. Behind an end only the end counts. Each node is visited in two ways at most: before an end, and behind one. */
typedef struct closing {
    const codepoints *from;
    codepoints *out;
    uint32_t *marks, *work; /* [2 * nodes]                                                                    */
    uint32_t *named;        /* [nodes] of from, in out, plus 1                                                 */
    uint32_t *todo;         /* nodes of from that have one in out, in its order                                */
    size_t todo_count;
} closing;

static uint32_t target(closing *k, uint32_t node)
{
    if (!k->named[node]) {
        k->named[node] = codepoints_node(k->out) + 1;
        if (k->out->full || k->out->lack)
            return 0;
        k->todo[k->todo_count++] = node;
    }
    return k->named[node] - 1;
}

static void close_node(closing *k, uint32_t node, uint32_t as, bool at_start, uint32_t mark)
{
    size_t waiting = 0;
    k->work[waiting++] = 2 * node;
    k->marks[2 * node] = mark;
    while (waiting && !k->out->full && !k->out->lack) {
        uint32_t item = k->work[--waiting];
        bool ended = item & 1;
        k->out->accepts[as] = k->out->accepts[as] || k->from->accepts[item / 2];
        for (uint32_t e = k->from->first[item / 2]; e != AUTOMATON_NONE; e = k->from->edges[e].next) {
            const codepoints_edge *edge = &k->from->edges[e];
            step(k->out);
            if (edge->low >= 0) {
                if (!ended)
                    codepoints_add(k->out, as, edge->low, edge->high, target(k, edge->to));
                continue;
            }
            if (edge->low == CODEPOINTS_START && !at_start)
                continue;
            uint32_t next = 2 * edge->to + (ended || edge->low == CODEPOINTS_END);
            if (k->marks[next] == mark)
                continue;
            k->marks[next] = mark;
            k->work[waiting++] = next;
        }
    }
}

void codepoints_plain(codepoints *c)
{
    size_t n = c->count;
    codepoints out = {.full = c->full, .lack = c->lack, .work = c->work + n};
    closing k = {c,
                 &out,
                 calloc(2 * n + 1, sizeof *k.marks),
                 malloc((2 * n + 1) * sizeof *k.work),
                 calloc(n + 1, sizeof *k.named),
                 malloc((n + 1) * sizeof *k.todo),
                 0};
    if (!k.marks || !k.work || !k.named || !k.todo)
        out.lack = true;
    if (!out.full && !out.lack && n) {
        codepoints_node(&out);
        close_node(&k, 0, 0, true, 1);
        for (size_t i = 0; i < k.todo_count; i++)
            close_node(&k, k.todo[i], k.named[k.todo[i]] - 1, false, (uint32_t)i + 2);
    }
    free(k.marks);
    free(k.work);
    free(k.named);
    free(k.todo);
    codepoints_free(c);
    *c = out;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

typedef struct pairs {
    uint64_t *keys; /* [slots] a pair plus 1; 0: free                                                             */
    uint32_t *nodes;
    uint64_t *list; /* [nodes of out] their pairs                                                               */
    size_t slots, listed;
} pairs;

static bool pairs_grow(pairs *p)
{
    if (2 * (p->listed + 1) <= p->slots)
        return true;
    size_t slots = p->slots ? 2 * p->slots : 256;
    pairs larger = {calloc(slots, sizeof *larger.keys), malloc(slots * sizeof *larger.nodes),
                    realloc(p->list, slots * sizeof *larger.list), slots, p->listed};
    p->list = larger.list ? larger.list : p->list;
    if (!larger.keys || !larger.nodes || !larger.list) {
        free(larger.keys);
        free(larger.nodes);
        return false;
    }
    for (size_t i = 0; i < p->slots; i++) {
        if (!p->keys[i])
            continue;
        size_t at = (p->keys[i] * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (slots - 1);
        while (larger.keys[at])
            at = (at + 1) & (slots - 1);
        larger.keys[at] = p->keys[i];
        larger.nodes[at] = p->nodes[i];
    }
    free(p->keys);
    free(p->nodes);
    *p = larger;
    return true;
}

/* The node of out for a pair. */
static uint32_t pair_node(pairs *p, uint32_t a, uint32_t b, codepoints *out)
{
    uint64_t key = ((uint64_t)a << 32 | b) + 1;
    if (!pairs_grow(p))
        out->lack = true;
    if (out->lack)
        return 0;
    size_t at = (key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (p->slots - 1);
    while (p->keys[at] && p->keys[at] != key)
        at = (at + 1) & (p->slots - 1);
    if (p->keys[at])
        return p->nodes[at];
    uint32_t node = codepoints_node(out);
    if (out->full || out->lack)
        return 0;
    p->keys[at] = key;
    p->nodes[at] = node;
    p->list[p->listed++] = key - 1;
    return node;
}

void codepoints_both(const codepoints *a, const codepoints *b, codepoints *out)
{
    pairs p = {0};
    out->full = a->full || b->full;
    out->lack = a->lack || b->lack;
    out->work = a->work + b->work;
    if (!out->full && !out->lack)
        pair_node(&p, 0, 0, out);
    for (size_t i = 0; i < p.listed && !out->full && !out->lack; i++) {
        uint32_t x = (uint32_t)(p.list[i] >> 32), y = (uint32_t)p.list[i];
        out->accepts[i] = a->accepts[x] && b->accepts[y];
        for (uint32_t e = a->first[x]; e != AUTOMATON_NONE; e = a->edges[e].next)
            for (uint32_t f = b->first[y]; f != AUTOMATON_NONE && !out->full; f = b->edges[f].next) {
                step(out);
                const codepoints_edge *m = &a->edges[e], *n = &b->edges[f];
                int32_t low = m->low > n->low ? m->low : n->low, high = m->high < n->high ? m->high : n->high;
                if (low <= high)
                    codepoints_add(out, (uint32_t)i, low, high, pair_node(&p, m->to, n->to, out));
            }
    }
    free(p.keys);
    free(p.nodes);
    free(p.list);
}
