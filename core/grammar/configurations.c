/* Configurations of an automaton: made when they are met. */
#include "grammar/configurations.h"

#include <stdlib.h>
#include <string.h>

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static void table_close(configuration_table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->lists[i].next);
        free(t->lists[i].tokens);
    }
    free(t->lists);
    free(t->slots);
    free(t->pool);
}

static uint64_t key_of(const configuration_thread *threads, size_t count, bool ends)
{
    uint64_t h = ends;
    for (size_t i = 0; i < count; i++) {
        h = (h ^ ((uint64_t)threads[i].state << 32 | threads[i].stack)) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

static bool table_rehash(configuration_table *t)
{
    size_t count = t->slot_count ? 2 * t->slot_count : 256;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < t->count; i++) {
        size_t at = key_of(t->pool + t->lists[i].offset, t->lists[i].count, t->lists[i].ends) & (count - 1);
        while (slots[at])
            at = (at + 1) & (count - 1);
        slots[at] = (uint32_t)i + 1;
    }
    free(t->slots);
    t->slots = slots;
    t->slot_count = count;
    return true;
}

static bool table_room(configuration_table *t, size_t count)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 128;
        configuration_list *lists = realloc(t->lists, capacity * sizeof *lists);
        if (!lists)
            return false;
        t->lists = lists;
        t->capacity = capacity;
    }
    if (t->used + count > t->room) {
        size_t room = 2 * (t->used + count) + 256;
        configuration_thread *pool = realloc(t->pool, room * sizeof *pool);
        if (!pool)
            return false;
        t->pool = pool;
        t->room = room;
    }
    return 2 * (t->count + 1) <= t->slot_count || table_rehash(t);
}

static int compare(const void *x, const void *y)
{
    const configuration_thread *a = x, *b = y;
    if (a->state != b->state)
        return a->state < b->state ? -1 : 1;
    return a->stack < b->stack ? -1 : a->stack > b->stack;
}

/* The number of a list, which is put in order and freed of what is there twice. */
static uint32_t table_find(configuration_table *t, configuration_thread *threads, size_t count, bool ends)
{
    size_t n = 0;
    if (count > 1)
        qsort(threads, count, sizeof *threads, compare);
    for (size_t i = 0; i < count; i++)
        if (n == 0 || compare(&threads[n - 1], &threads[i]) != 0)
            threads[n++] = threads[i];
    if (!table_room(t, n))
        return CONFIGURATION_LACK;
    size_t at = key_of(threads, n, ends) & (t->slot_count - 1);
    for (; t->slots[at]; at = (at + 1) & (t->slot_count - 1)) {
        const configuration_list *list = &t->lists[t->slots[at] - 1];
        if (list->count == n && list->ends == ends &&
            (n == 0 || memcmp(t->pool + list->offset, threads, n * sizeof *threads) == 0))
            return t->slots[at] - 1;
    }
    t->lists[t->count] = (configuration_list){.offset = t->used, .count = (uint32_t)n, .ends = ends};
    if (n)
        memcpy(t->pool + t->used, threads, n * sizeof *threads);
    t->used += n;
    t->slots[at] = (uint32_t)++t->count;
    return (uint32_t)t->count - 1;
}

/* ---- what is reached without a byte ------------------------------------------------------------------------------ */

/* A thread on the way: its stack is a number, or a rule that was called at this place, whose callers are not all known
 * yet (FRESH and the rule). */
#define FRESH UINT32_C(0x80000000)

typedef struct caller {
    uint32_t rule;
    configuration_thread at; /* where it goes on                                                               */
} caller;

typedef struct closure {
    configuration_thread *items; /* all that were reached, in order of finding                                   */
    size_t count, capacity;
    uint32_t *slots; /* number of an item plus 1, where its stamp is the current one                             */
    uint32_t *stamps, stamp;
    size_t slot_count;
    caller *callers;
    size_t caller_count, caller_capacity;
    uint32_t *stack_of; /* [rules] of one that was called here, by `called`                                      */
    uint32_t *called;   /* [rules] the stamp of the last place where it was                                      */
    configuration_thread *list; /* [capacity] for table_find                                                    */
    size_t list_capacity;
    bool ends, lack;
} closure;

static bool closure_grow(closure *k)
{
    if (k->count < k->capacity)
        return true;
    size_t capacity = k->capacity ? 2 * k->capacity : 256;
    configuration_thread *items = realloc(k->items, capacity * sizeof *items);
    k->items = items ? items : k->items;
    uint32_t *slots = malloc(2 * capacity * sizeof *slots), *stamps = calloc(2 * capacity, sizeof *stamps);
    if (!items || !slots || !stamps) {
        free(slots);
        free(stamps);
        return false;
    }
    free(k->slots);
    free(k->stamps);
    k->slots = slots;
    k->stamps = stamps;
    k->capacity = capacity;
    k->slot_count = 2 * capacity;
    for (size_t i = 0; i < k->count; i++) {
        size_t at = key_of(&k->items[i], 1, false) & (k->slot_count - 1);
        while (stamps[at] == k->stamp)
            at = (at + 1) & (k->slot_count - 1);
        stamps[at] = k->stamp;
        slots[at] = (uint32_t)i + 1;
    }
    return true;
}

static void reach(closure *k, uint32_t state, uint32_t stack)
{
    configuration_thread item = {state, stack};
    if (k->lack || !closure_grow(k)) {
        k->lack = true;
        return;
    }
    size_t at = key_of(&item, 1, false) & (k->slot_count - 1);
    for (; k->stamps[at] == k->stamp; at = (at + 1) & (k->slot_count - 1))
        if (memcmp(&k->items[k->slots[at] - 1], &item, sizeof item) == 0)
            return;
    k->stamps[at] = k->stamp;
    k->slots[at] = (uint32_t)k->count + 1;
    k->items[k->count++] = item;
}

static void call(closure *k, const automaton *a, uint32_t rule, configuration_thread at)
{
    if (k->caller_count == k->caller_capacity) {
        size_t capacity = k->caller_capacity ? 2 * k->caller_capacity : 64;
        caller *callers = realloc(k->callers, capacity * sizeof *callers);
        if (!callers) {
            k->lack = true;
            return;
        }
        k->callers = callers;
        k->caller_capacity = capacity;
    }
    k->callers[k->caller_count++] = (caller){rule, at};
    if (k->called[rule] == k->stamp)
        return;
    k->called[rule] = k->stamp;
    reach(k, a->rules[rule].start, FRESH | rule);
}

/* A new set of items. */
static void closure_begin(closure *k)
{
    k->count = k->caller_count = 0;
    k->ends = k->lack = false;
    k->stamp++;
}

/* Follows what takes no byte. Rules that were called here are not at their end: they take a byte at least. */
static void follow(configurations *c)
{
    closure *k = c->scratch;
    const automaton *a = c->a;
    for (size_t i = 0; i < k->count && !k->lack; i++) {
        configuration_thread item = k->items[i];
        for (uint32_t e = a->first[item.state]; e != AUTOMATON_NONE; e = a->edges[e].next) {
            const automaton_edge *edge = &a->edges[e];
            if (edge->kind == EDGE_EMPTY)
                reach(k, edge->to, item.stack);
            else if (edge->kind == EDGE_CALL)
                call(k, a, edge->rule, (configuration_thread){edge->to, item.stack});
        }
        if (a->ends[item.state] == AUTOMATON_NONE || item.stack & FRESH)
            continue;
        if (item.stack == 0)
            k->ends = true;
        const configuration_list *below = &c->stacks.lists[item.stack];
        for (uint32_t n = 0; n < below->count; n++)
            reach(k, c->stacks.pool[below->offset + n].state, c->stacks.pool[below->offset + n].stack);
    }
}

static bool list_room(closure *k, size_t count)
{
    if (count <= k->list_capacity)
        return true;
    configuration_thread *list = realloc(k->list, 2 * count * sizeof *list);
    if (!list)
        return false;
    k->list = list;
    k->list_capacity = 2 * count;
    return true;
}

static int by_rank(const void *x, const void *y, void *ctx)
{
    const automaton *a = ctx;
    uint32_t p = a->rules[((const caller *)x)->rule].rank, q = a->rules[((const caller *)y)->rule].rank;
    return p < q ? -1 : p > q;
}

/* The stacks of rules that were called here: those of callers first. */
static void make_stacks(configurations *c)
{
    closure *k = c->scratch;
    if (k->caller_count > 1)
        qsort_r(k->callers, k->caller_count, sizeof *k->callers, by_rank, (void *)(uintptr_t)c->a);
    for (size_t i = 0, end; i < k->caller_count && !k->lack; i = end) {
        uint32_t rule = k->callers[i].rule;
        for (end = i; end < k->caller_count && k->callers[end].rule == rule;)
            end++;
        if (!list_room(k, end - i)) {
            k->lack = true;
            return;
        }
        for (size_t n = i; n < end; n++) {
            configuration_thread at = k->callers[n].at;
            if (at.stack & FRESH)
                at.stack = k->stack_of[at.stack & ~FRESH];
            k->list[n - i] = at;
        }
        k->stack_of[rule] = table_find(&c->stacks, k->list, end - i, false);
        k->lack = k->stack_of[rule] == CONFIGURATION_LACK;
    }
}

static bool takes_bytes(const automaton *a, uint32_t state)
{
    uint32_t e = a->first[state];
    while (e != AUTOMATON_NONE && a->edges[e].kind != EDGE_BYTE)
        e = a->edges[e].next;
    return e != AUTOMATON_NONE;
}

/* The configuration of what was reached: the threads that wait for a byte. */
static uint32_t closure_end(configurations *c)
{
    closure *k = c->scratch;
    follow(c);
    make_stacks(c);
    if (k->lack || !list_room(k, k->count + 1))
        return CONFIGURATION_LACK;
    size_t n = 0;
    for (size_t i = 0; i < k->count; i++) {
        configuration_thread item = k->items[i];
        if (!takes_bytes(c->a, item.state))
            continue;
        if (item.stack & FRESH)
            item.stack = k->stack_of[item.stack & ~FRESH];
        k->list[n++] = item;
    }
    return table_find(&c->sets, k->list, n, k->ends);
}

/* ---- from outside -------------------------------------------------------------------------------------------------
 */

bool configurations_open(configurations *c, const automaton *a)
{
    *c = (configurations){.a = a, .scratch = calloc(1, sizeof *c->scratch)};
    if (!c->scratch)
        return false;
    c->scratch->stack_of = malloc(a->rule_count * sizeof *c->scratch->stack_of);
    c->scratch->called = calloc(a->rule_count, sizeof *c->scratch->called);
    return c->scratch->stack_of && c->scratch->called && table_find(&c->stacks, NULL, 0, false) != CONFIGURATION_LACK &&
           table_find(&c->sets, NULL, 0, false) == CONFIGURATION_DEAD;
}

void configurations_close(configurations *c)
{
    table_close(&c->stacks);
    table_close(&c->sets);
    if (c->scratch) {
        free(c->scratch->items);
        free(c->scratch->slots);
        free(c->scratch->stamps);
        free(c->scratch->callers);
        free(c->scratch->stack_of);
        free(c->scratch->called);
        free(c->scratch->list);
    }
    free(c->scratch);
    *c = (configurations){0};
}

uint32_t configurations_start(configurations *c)
{
    closure_begin(c->scratch);
    reach(c->scratch, c->a->rules[0].start, 0);
    return closure_end(c);
}

static uint32_t step(configurations *c, uint32_t from, uint8_t byte)
{
    const configuration_list *list = &c->sets.lists[from];
    closure_begin(c->scratch);
    for (uint32_t i = 0; i < list->count; i++) {
        configuration_thread thread = c->sets.pool[list->offset + i];
        for (uint32_t e = c->a->first[thread.state]; e != AUTOMATON_NONE; e = c->a->edges[e].next) {
            const automaton_edge *edge = &c->a->edges[e];
            if (edge->kind == EDGE_BYTE && edge->low <= byte && byte <= edge->high)
                reach(c->scratch, edge->to, thread.stack);
        }
    }
    return closure_end(c);
}

uint32_t configurations_step(configurations *c, uint32_t from, uint8_t byte)
{
    uint32_t *next = c->sets.lists[from].next;
    if (next && next[byte] != CONFIGURATION_LACK)
        return next[byte];
    if (!next) {
        next = malloc(256 * sizeof *next);
        if (!next)
            return CONFIGURATION_LACK;
        memset(next, 0xff, 256 * sizeof *next);
        c->sets.lists[from].next = next;
        c->bytes += 256 * sizeof *next;
    }
    return next[byte] = step(c, from, byte);
}

static size_t table_size(const configuration_table *t)
{
    return t->capacity * sizeof *t->lists + t->slot_count * sizeof *t->slots + t->room * sizeof *t->pool;
}

static size_t size_of(const configurations *c)
{
    return c->bytes + table_size(&c->stacks) + table_size(&c->sets);
}

bool configurations_crowded(const configurations *c, size_t times)
{
    size_t most = 2 * c->left > CONFIGURATIONS_KEPT ? 2 * c->left : CONFIGURATIONS_KEPT;
    return size_of(c) > times * most;
}

/* ---- forgetting -----------------------------------------------------------------------------------------------------
 */

/* Marks the stacks below those of the kept configurations: what is below has the lower number. */
static void mark_stacks(const configurations *c, uint32_t *const *kept, size_t count, bool *used)
{
    used[0] = true;
    for (size_t i = 0; i < count; i++) {
        const configuration_list *set = &c->sets.lists[*kept[i]];
        for (uint32_t n = 0; n < set->count; n++)
            used[c->sets.pool[set->offset + n].stack] = true;
    }
    for (size_t s = c->stacks.count; s-- > 0;)
        for (uint32_t n = 0; used[s] && n < c->stacks.lists[s].count; n++)
            used[c->stacks.pool[c->stacks.lists[s].offset + n].stack] = true;
}

/* A list of one table in another, its stacks by their new numbers. */
static uint32_t move(closure *k, const configuration_table *from, size_t number, configuration_table *to,
                     const uint32_t *renamed)
{
    const configuration_list *list = &from->lists[number];
    if (!list_room(k, list->count + 1))
        return CONFIGURATION_LACK;
    for (uint32_t n = 0; n < list->count; n++) {
        configuration_thread thread = from->pool[list->offset + n];
        k->list[n] = (configuration_thread){thread.state, renamed[thread.stack]};
    }
    return table_find(to, k->list, list->count, list->ends);
}

bool configurations_sweep(configurations *c, uint32_t *const *kept, size_t count)
{
    configuration_table stacks = {0}, sets = {0};
    bool *used = calloc(c->stacks.count, sizeof *used);
    uint32_t *renamed = malloc(c->stacks.count * sizeof *renamed), *numbers = malloc((count + 1) * sizeof *numbers);
    bool good = used && renamed && numbers && table_find(&sets, NULL, 0, false) == CONFIGURATION_DEAD;
    if (good)
        mark_stacks(c, kept, count, used);
    for (size_t s = 0; good && s < c->stacks.count; s++)
        good = !used[s] || (renamed[s] = move(c->scratch, &c->stacks, s, &stacks, renamed)) != CONFIGURATION_LACK;
    for (size_t i = 0; good && i < count; i++)
        good = (numbers[i] = move(c->scratch, &c->sets, *kept[i], &sets, renamed)) != CONFIGURATION_LACK;
    for (size_t i = 0; good && i < count; i++)
        *kept[i] = numbers[i];
    if (good) {
        table_close(&c->stacks);
        table_close(&c->sets);
        c->stacks = stacks;
        c->sets = sets;
        c->bytes = 0;
        c->left = size_of(c);
    } else {
        table_close(&stacks);
        table_close(&sets);
    }
    free(used);
    free(renamed);
    free(numbers);
    return good;
}
