/* Which calls a kernel is checked with before its first use, and what that covers, in words. */
#include "check/check.h"

#include "base/hash.h"
#include "base/text.h"
#include "op/op.h"

#include <string.h>

/* For which operations a call says something. FOR_TOKENS: where each token is computed by itself. */
typedef enum planned_for { FOR_ALL, FOR_ROWS, FOR_EXPERTS, FOR_ATTENTION, FOR_ROPE, FOR_TOKENS } planned_for;

/* Where it is cheap; however heavy it is; even where each call reads a vocabulary's weights, which get the fewest. */
typedef enum planned_when { IF_CHEAP, ALWAYS, EVERYWHERE } planned_when;

typedef struct planned_case {
    check_case size;
    planned_for what;
    planned_when when;
} planned_case;

/* A session's prompts come in chunks of 512 tokens. 66 and 300 are more than a block of 64, 128 or 256 and a part of
 * one, 512 is whole blocks only; some experts of a crowded call have half of its tokens. The smallest comes first:
 * what hangs between threads ends there. Sizes rise and fall, because what is kept from a call must not reach the next.
 */
static const planned_case all_cases[] = {
    {{.batch = 1, .tokens = 1}, FOR_ALL, EVERYWHERE},
    {{.batch = 1, .tokens = 0}, FOR_ALL, EVERYWHERE},
    {{.batch = 1, .tokens = 19, .profile = INPUTS_SCALED}, FOR_ALL, ALWAYS},
    {{.batch = 1, .tokens = 3}, FOR_ALL, ALWAYS},
    {{.batch = 1, .tokens = 5, .profile = INPUTS_OUTLIERS}, FOR_ALL, EVERYWHERE},
    {{.batch = 2, .tokens = 33}, FOR_ALL, IF_CHEAP},
    {{.batch = 1, .tokens = 128, .profile = INPUTS_CROWDED}, FOR_EXPERTS, IF_CHEAP},
    {{.batch = 1, .tokens = 300, .profile = INPUTS_CROWDED}, FOR_ALL, IF_CHEAP},
    {{.batch = 1, .tokens = CHECK_CHUNK, .profile = INPUTS_CROWDED}, FOR_ALL, EVERYWHERE},
    {{.batch = 1, .tokens = 21, .past = 131071}, FOR_ROPE, ALWAYS},
    {{.batch = 1, .tokens = 8195}, FOR_ROWS, ALWAYS},
    {{.batch = 2, .tokens = 1, .past = 1100}, FOR_ATTENTION, ALWAYS},
    {{.batch = 1, .tokens = 1, .past = CHECK_CACHED, .profile = INPUTS_CROWDED}, FOR_ATTENTION, ALWAYS},
    {{.batch = 1, .tokens = CHECK_CHUNK, .past = 300, .profile = INPUTS_CROWDED, .seed = 2}, FOR_ATTENTION, ALWAYS},
    {{.batch = 1, .tokens = 7, .profile = INPUTS_EXTREME, .once = true}, FOR_TOKENS, ALWAYS},
};

/* What is left of blocks of 2 to 128 rows, and paths for exactly so many: tried once each. Sizes of the list above are
 * not here. The same for the keys of one query, which sees one more than came before it. */
static const int16_t more_tokens[] = {2, 4, 6, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129};
static const int16_t more_keys[] = {2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};
enum { FEW_TOKENS = 9, ANY_SIZES = 3, ANY_LEAST = 10, ANY_MOST = 250 };

/* Most operations and elements of a call that is not made always, operations of one for its size alone (which is
 * compared when it is first met, too), and elements of one for rows. */
static const double MOST_WORK = 1.5e9, MOST_ELEMENTS = 3e5, MOST_FOR_SIZE = 1.5e8, MOST_IN_ROWS = 1.1e6;

/* Longest window whose edge is looked at. */
enum { LONGEST_WINDOW = 8192 };

static bool is_for(const planned_case *p, const tn_site *site)
{
    switch (p->what) {
    case FOR_EXPERTS:
        return site->dim[TN_DIM_EXPERTS] > 0;
    case FOR_ATTENTION:
        return site->op == TN_OP_ATTENTION;
    case FOR_ROPE:
        return site->op == TN_OP_ROPE;
    case FOR_TOKENS:
        return site->op == TN_OP_RMS_NORM || site->op == TN_OP_ADD_RMS_NORM || site->op == TN_OP_LAYER_NORM ||
               site->op == TN_OP_ROPE || site->op == TN_OP_MLP || site->op == TN_OP_LINEAR ||
               site->op == TN_OP_GROUPED_MATMUL || site->op == TN_OP_MOE_EXPERTS;
    case FOR_ROWS: /* norms of heads: many rows a token */
        return site->dim[TN_DIM_WIDTH] > 0 && (double)site->dim[TN_DIM_WIDTH] * (double)p->size.tokens <= MOST_IN_ROWS;
    default:
        return true;
    }
}

static bool is_cheap(const tn_site *site, const check_case *size, double most)
{
    tn_call call = inputs_call_case(site, size);
    return op_operations(&call) <= most && (double)tn_tensor_count(&call.in[0]) <= MOST_ELEMENTS;
}

static bool is_time(const planned_case *p, const tn_site *site)
{
    return p->when == EVERYWHERE ||
           (!graph_is_wide(site) && (p->when == ALWAYS || is_cheap(site, &p->size, MOST_WORK)));
}

/* Numbers that nobody knows when the kernel is written, but the same for the site in every run. */
static int64_t any_size(const tn_site *site, int64_t i)
{
    uint64_t hash = hash_bytes(HASH_START, site->path ? site->path : "", site->path ? strlen(site->path) : 0);
    hash = hash_bytes(hash_bytes(hash, site->dim, sizeof site->dim), &i, sizeof i);
    return ANY_LEAST + (int64_t)(hash >> 20) % (ANY_MOST - ANY_LEAST);
}

static size_t add_sizes(const tn_site *site, check_case *cases)
{
    size_t count = 0;
    if (graph_is_wide(site))
        return 0;
    for (size_t i = 0; i < sizeof more_tokens / sizeof *more_tokens + ANY_SIZES; i++) {
        size_t listed = sizeof more_tokens / sizeof *more_tokens;
        check_case size = {.batch = 1, .once = true, .seed = i};
        size.tokens = i < listed ? more_tokens[i] : any_size(site, (int64_t)i);
        if (size.tokens <= FEW_TOKENS || is_cheap(site, &size, MOST_FOR_SIZE))
            cases[count++] = size;
    }
    for (size_t i = 0; site->op == TN_OP_ATTENTION && i < sizeof more_keys / sizeof *more_keys; i++)
        cases[count++] = (check_case){.batch = 1, .tokens = 1, .past = more_keys[i] - 1, .once = true, .seed = i};
    return count;
}

size_t check_first_use_cases(const tn_site *site, check_case cases[CHECK_FIRST_USE])
{
    size_t count = 0;
    for (size_t i = 0; i < sizeof all_cases / sizeof *all_cases; i++) {
        const planned_case *p = &all_cases[i];
        if (!is_for(p, site) || !is_time(p, site))
            continue;
        cases[count] = p->size;
        if (graph_is_wide(site) && p->size.tokens > GRAPH_WIDE_TRIED)
            cases[count].tokens = GRAPH_WIDE_TRIED;
        count++;
    }
    /* Queries that see all but one, all, and one less than all of what came before them. */
    int64_t window = site->dim[TN_DIM_WINDOW];
    if (site->op == TN_OP_ATTENTION && window > 2 && window <= LONGEST_WINDOW)
        cases[count++] = (check_case){.batch = 1, .tokens = 3, .past = window - 2, .seed = 3};
    return count + add_sizes(site, cases + count);
}

/* ---- coverage --------------------------------------------------------------------------------------------------- */

void check_coverage_add(check_coverage *c, const check_coverage *more)
{
    if (!more->any)
        return;
    c->least_tokens = c->any && c->least_tokens < more->least_tokens ? c->least_tokens : more->least_tokens;
    c->most_tokens = c->most_tokens > more->most_tokens ? c->most_tokens : more->most_tokens;
    c->most_cached = c->most_cached > more->most_cached ? c->most_cached : more->most_cached;
    c->threads = c->threads > more->threads ? c->threads : more->threads;
    c->other_weights = (c->other_weights || !c->any) && more->other_weights;
    c->gradients |= more->gradients;
    c->busy = (c->busy || !c->any) && more->busy;
    c->any = true;
}

void check_coverage_text(const check_coverage *c, char *text, size_t size)
{
    if (!c->any) {
        text_cut(text, size, "nothing");
        return;
    }
    size_t used = text_cut(text, size, "%lld to %lld tokens", (long long)c->least_tokens, (long long)c->most_tokens);
    if (c->most_cached > 0)
        used += text_cut(text + used, size - used, ", up to %lld cached positions", (long long)c->most_cached);
    used += c->busy ? text_cut(text + used, size - used, ", %d threads that this busy machine never ran at one time",
                               (int)c->threads)
            : c->threads > 1 ? text_cut(text + used, size - used, ", 1 and %d threads", (int)c->threads)
                             : text_cut(text + used, size - used, ", 1 thread");
    used += text_cut(text + used, size - used, ", normal, scaled and outlying inputs");
    if (c->other_weights)
        used += text_cut(text + used, size - used, ", after other weights");
    if (c->gradients)
        text_cut(text + used, size - used, ", gradients");
}
