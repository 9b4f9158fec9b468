/* Sets of characters. */
#include "grammar/pattern_sets.h"

#include "grammar/codepoints.h"

#include <stdlib.h>
#include <string.h>

bool pattern_set_add(pattern_set *s, int32_t low, int32_t high)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 8;
        pattern_range *ranges = realloc(s->ranges, capacity * sizeof *ranges);
        if (!ranges)
            return false;
        s->ranges = ranges;
        s->capacity = capacity;
    }
    s->ranges[s->count++] = (pattern_range){low, high};
    return true;
}

static int compare(const void *x, const void *y)
{
    const pattern_range *a = x, *b = y;
    return a->low < b->low ? -1 : a->low > b->low;
}

bool pattern_set_done(pattern_set *s, bool negated)
{
    size_t n = 0;
    if (s->count > 1)
        qsort(s->ranges, s->count, sizeof *s->ranges, compare);
    for (size_t i = 0; i < s->count; i++)
        if (n && s->ranges[i].low <= s->ranges[n - 1].high + 1) {
            if (s->ranges[i].high > s->ranges[n - 1].high)
                s->ranges[n - 1].high = s->ranges[i].high;
        } else {
            s->ranges[n++] = s->ranges[i];
        }
    s->count = n;
    if (!negated)
        return true;
    pattern_set out = {0};
    int32_t next = 0;
    bool good = true;
    for (size_t i = 0; i < n && good; i++) {
        if (s->ranges[i].low > next)
            good = pattern_set_add(&out, next, s->ranges[i].low - 1);
        next = s->ranges[i].high + 1;
    }
    if (good && next <= CODEPOINTS_LAST)
        good = pattern_set_add(&out, next, CODEPOINTS_LAST);
    free(s->ranges);
    *s = out;
    return good;
}

bool pattern_set_class(pattern_set *s, char letter)
{
    static const struct {
        char letter;
        pattern_range ranges[12];
    } classes[] = {{'d', {{'0', '9'}}},
                   {'w', {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
                   {'s',
                    {{9, 13},
                     {' ', ' '},
                     {0xa0, 0xa0},
                     {0x1680, 0x1680},
                     {0x2000, 0x200a},
                     {0x2028, 0x2029},
                     {0x202f, 0x202f},
                     {0x205f, 0x205f},
                     {0x3000, 0x3000},
                     {0xfeff, 0xfeff}}},
                   {'n', {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}}};
    char known = letter == '.' ? 'n' : (char)(letter | 0x20);
    pattern_set own = {0};
    bool good = true;
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
        for (size_t i = 0; classes[c].letter == known && i < 12 && classes[c].ranges[i].high && good; i++)
            good = pattern_set_add(&own, classes[c].ranges[i].low, classes[c].ranges[i].high);
    good = good && pattern_set_done(&own, letter != known || letter == '.');
    for (size_t i = 0; i < own.count && good; i++)
        good = pattern_set_add(s, own.ranges[i].low, own.ranges[i].high);
    free(own.ranges);
    return good;
}
