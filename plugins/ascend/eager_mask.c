/* Which keys queries see. */
#include "eager_mask.h"

#include <float.h>
#include <string.h>

/* The first position that a query sees. */
static int32_t lowest_of(const mask_rule *rule, int32_t q)
{
    int64_t lowest = rule->window > 0 && rule->window <= q ? q - rule->window + 1 : 0;
    int64_t chunk = rule->chunk > 0 && q > 0 ? q / rule->chunk * rule->chunk : 0;
    return (int32_t)(lowest > chunk ? lowest : chunk);
}

/* The last one; -1: it sees none. */
static int32_t highest_of(const mask_rule *rule, int32_t q)
{
    if (q < 0 || !rule->both_sides)
        return q;
    int64_t highest = rule->window > 0 ? q + rule->window - 1 : INT32_MAX;
    int64_t chunk = rule->chunk > 0 ? (q / rule->chunk + 1) * rule->chunk - 1 : INT32_MAX;
    highest = chunk < highest ? chunk : highest;
    return highest < INT32_MAX ? (int32_t)highest : INT32_MAX;
}

mask_span mask_find(const mask_rule *rule, const int32_t *q, int64_t queries, const int32_t *k, int64_t keys)
{
    mask_span span = {0};
    int32_t low = INT32_MAX, high = -1, last_low = 0, first_high = INT32_MAX;
    for (int64_t t = 0; t < queries; t++) {
        int32_t lowest = lowest_of(rule, q[t]), highest = highest_of(rule, q[t]);
        low = lowest < low ? lowest : low;
        last_low = lowest > last_low ? lowest : last_low;
        high = highest > high ? highest : high;
        first_high = highest < first_high ? highest : first_high;
    }
    for (int64_t s = 0; s < keys; s++)
        if (k[s] >= low && k[s] <= high) {
            span.first = span.end > 0 ? span.first : s;
            span.end = s + 1;
        }
    /* What the query with the highest start and the one with the lowest end see, all see. */
    for (int64_t s = span.first; s < span.end && !span.masked; s++)
        span.masked = k[s] < last_low || k[s] > first_high;
    return span;
}

bool mask_fill(const mask_rule *rule, const int32_t *q, int64_t queries, const int32_t *k, int64_t keys, float *mask,
               float *sees)
{
    bool blind = false;
    for (int64_t t = 0; t < queries; t++) {
        float *row = mask + t * keys;
        int32_t lowest = lowest_of(rule, q[t]), highest = highest_of(rule, q[t]);
        bool any = false;
        for (int64_t s = 0; s < keys; s++) {
            bool seen = k[s] >= lowest && k[s] <= highest;
            any |= seen;
            row[s] = seen ? 0 : -FLT_MAX;
        }
        sees[t] = any ? 1 : 0;
        blind |= !any;
        if (!any)
            memset(row, 0, (size_t)keys * sizeof *row);
    }
    return blind;
}

bool mask_hide(const mask_rule *rule, const int32_t *q, int64_t queries, const int32_t *k, int64_t keys, bool *hidden)
{
    bool blind = false;
    for (int64_t t = 0; t < queries; t++) {
        int32_t lowest = lowest_of(rule, q[t]), highest = highest_of(rule, q[t]);
        bool any = false;
        for (int64_t s = 0; s < keys; s++) {
            bool seen = k[s] >= lowest && k[s] <= highest;
            any |= seen;
            hidden[t * keys + s] = !seen;
        }
        blind |= !any;
    }
    return blind;
}
