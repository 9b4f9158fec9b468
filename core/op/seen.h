/* Inside core: which positions a query of ATTENTION sees, as its site says. */
#ifndef TENON_CORE_SEEN_H
#define TENON_CORE_SEEN_H

#include <tenon/operation.h>

typedef struct seen_rule {
    int64_t window, chunk; /* 0: none                                                                  */
    bool both_sides;
} seen_rule;

static inline seen_rule seen_of(const tn_site *site)
{
    return (seen_rule){.window = site->features & TN_HAS_WINDOW ? site->dim[TN_DIM_WINDOW] : 0,
                       .chunk = site->features & TN_HAS_CHUNK ? site->dim[TN_DIM_CHUNK] : 0,
                       .both_sides = site->features & TN_HAS_BOTH_SIDES};
}

/* The first position that the query at position q may see. */
static inline int32_t seen_low(const seen_rule *rule, int32_t q)
{
    int64_t lowest = rule->window > 0 && rule->window <= q ? q - rule->window + 1 : 0;
    int64_t chunk = rule->chunk > 0 && q > 0 ? q / rule->chunk * rule->chunk : 0;
    return (int32_t)(lowest > chunk ? lowest : chunk);
}

/* The last one; -1: it sees nothing. */
static inline int32_t seen_high(const seen_rule *rule, int32_t q)
{
    if (q < 0 || !rule->both_sides)
        return q < 0 ? -1 : q;
    int64_t highest = INT32_MAX, chunk = rule->chunk > 0 ? (q / rule->chunk + 1) * rule->chunk - 1 : highest;
    if (rule->window > 0 && q + rule->window - 1 < highest)
        highest = q + rule->window - 1;
    return (int32_t)(chunk < highest ? chunk : highest);
}

#endif
