/* Classes of characters as the `tokenizers` library has them. Its parts use tables of Unicode 8 to 16, so tables of
 * ours hold what it answers, and do not change with the version of utf8proc. */
#include "text/unicode.h"

#include <utf8proc.h>

typedef struct unicode_range {
    int32_t first, last;
} unicode_range;

typedef struct lower_run {
    int32_t first, last, step, distance;
} lower_run;

typedef struct script_run {
    int32_t first, last, script;
} script_run;

#include "text/unicode_tables.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static bool contains(const unicode_range *ranges, size_t count, int32_t code)
{
    size_t low = 0;
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else if (code < ranges[middle].first)
            count = middle;
        else
            return true;
    }
    return false;
}

bool unicode_is_punctuation(int32_t code)
{
    return contains(punctuation, COUNT(punctuation), code);
}

bool unicode_is_numeric(int32_t code)
{
    return contains(numeric, COUNT(numeric), code);
}

bool unicode_is_mark(int32_t code)
{
    return contains(marks, COUNT(marks), code);
}

bool unicode_is_nonspacing(int32_t code)
{
    return contains(nonspacing, COUNT(nonspacing), code);
}

bool unicode_is_other(int32_t code)
{
    return contains(other, COUNT(other), code);
}

bool unicode_is_word(int32_t code)
{
    return contains(word, COUNT(word), code);
}

int32_t unicode_lower(int32_t code)
{
    size_t low = 0, count = COUNT(lower);
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        const lower_run *run = &lower[middle];
        if (code > run->last)
            low = middle + 1;
        else if (code < run->first)
            count = middle;
        else
            return (code - run->first) % run->step == 0 ? code + run->distance : code;
    }
    return code;
}

int unicode_script(int32_t code)
{
    size_t low = 0, count = COUNT(scripts);
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        if (code > scripts[middle].last)
            low = middle + 1;
        else if (code < scripts[middle].first)
            count = middle;
        else
            return scripts[middle].script;
    }
    return SCRIPT_ANY;
}

const unicode_newer_run *unicode_newer(size_t *count)
{
    *count = COUNT(newer);
    return newer;
}

bool unicode_is_too_new(int32_t code)
{
    /* Scripts whose characters compose with each other since Unicode 13 and 16. */
    static const unicode_range composing[] = {
        {0x105c0, 0x105ff}, {0x11380, 0x113ff}, {0x11900, 0x1195f}, {0x16100, 0x1613f}, {0x16d40, 0x16d7f}};
    if (code < 0x300)
        return false;
    if (contains(composing, COUNT(composing), code))
        return true;
    const utf8proc_property_t *p = utf8proc_get_property(code);
    return (p->combining_class != 0 || p->decomp_seqindex != UINT16_MAX) && !contains(known, COUNT(known), code);
}
