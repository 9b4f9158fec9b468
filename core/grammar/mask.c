/* Masks: the tree of a vocabulary walked together with the automaton. */
#include "grammar/mask.h"

#include <stdlib.h>
#include <string.h>

/* Could a plain token begin with one of these bytes? */
static bool begins_plain(uint8_t low, uint8_t high)
{
    static const uint8_t starts[][2] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x7f}, {0xc2, 0xf4}};
    for (int i = 0; i < 4; i++)
        if (low <= starts[i][1] && high >= starts[i][0])
            return true;
    return false;
}

static bool takes_plain(const automaton *a, uint32_t state)
{
    for (uint32_t e = a->first[state]; e != AUTOMATON_NONE; e = a->edges[e].next)
        if (a->edges[e].kind == EDGE_BYTE && begins_plain(a->edges[e].low, a->edges[e].high))
            return true;
    return false;
}

/* Within a JSON string without a pattern: how many characters of it may follow, so that plain tokens need no walk. 0: a
 * walk is needed. */
static uint32_t plain_run(const configurations *c, uint32_t at)
{
    const automaton *a = c->a;
    const configuration_list *set = &c->sets.lists[at];
    uint32_t most = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        configuration_thread thread = c->sets.pool[set->offset + i];
        if (a->plain == AUTOMATON_NONE || thread.state != a->rules[a->plain].start) {
            if (takes_plain(a, thread.state))
                return 0;
            continue;
        }
        const configuration_list *stack = &c->stacks.lists[thread.stack];
        for (uint32_t n = 0; n < stack->count; n++) {
            uint32_t run = a->run[c->stacks.pool[stack->offset + n].state];
            if (run == RUN_UNSURE)
                return 0;
            run = run == RUN_ENDLESS ? run : run + 1;
            most = run > most ? run : most;
        }
    }
    return most;
}

/* path[depth] is where the bytes above a node lead. */
static bool walk(configurations *c, const tn_vocabulary *v, const vocabulary_tree *tree, mask_kept kept, uint32_t *path,
                 uint64_t *bits)
{
    size_t work = 0;
    for (size_t i = 0; i < tree->count;) {
        vocabulary_node node = tree->nodes[i];
        work += c->sets.lists[path[node.depth]].count;
        uint32_t to = configurations_step(c, path[node.depth], node.byte);
        if (to == CONFIGURATION_LACK)
            return false;
        if (to == CONFIGURATION_DEAD) {
            i = node.skip;
            continue;
        }
        for (uint32_t id = node.token; id != VOCABULARY_NONE; id = v->same[id])
            vocabulary_set(bits, id);
        path[node.depth + 1] = to;
        i = work > MASK_WORK ? node.skip : i + 1;
        if (configurations_crowded(c, 2)) {
            for (size_t d = 0; d < (size_t)node.depth + 2; d++)
                kept.numbers[kept.count + d] = &path[d];
            if (!configurations_sweep(c, kept.numbers, kept.count + node.depth + 2))
                return false;
        }
    }
    return true;
}

const uint64_t *mask_of(configurations *c, const tn_vocabulary *v, mask_kept kept, uint32_t *at)
{
    if (c->sets.lists[*at].tokens)
        return c->sets.lists[*at].tokens;
    if (configurations_crowded(c, 1) && !configurations_sweep(c, kept.numbers, kept.count))
        return NULL;
    uint64_t *bits = calloc(v->words, sizeof *bits);
    uint32_t *path = malloc((v->longest + 2) * sizeof *path);
    bool good = bits && path;
    if (good) {
        uint32_t run = plain_run(c, *at);
        path[0] = *at;
        if (run)
            vocabulary_add_plain(v, bits, run);
        good = walk(c, v, run ? &v->rest : &v->all, kept, path, bits);
    }
    free(path);
    if (!good) {
        free(bits);
        return NULL;
    }
    c->sets.lists[*at].tokens = bits;
    c->bytes += v->words * sizeof *bits;
    return bits;
}
