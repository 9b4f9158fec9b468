/* How far two names are apart. */
#include "base/nearest.h"

#include <stdint.h>
#include <string.h>
#include <tenon/error.h>

enum { NAME_MAX_BYTES = 127, PART_MIN = 3 };

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Of a from b or, if part is set, from the nearest part of b: what stands before and behind it costs nothing. */
static size_t distance(const char *a, const char *b, bool part)
{
    size_t rows[3][NAME_MAX_BYTES + 1];
    size_t n = strnlen(a, NAME_MAX_BYTES), m = strnlen(b, NAME_MAX_BYTES);
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = part ? 0 : j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t d = smaller(last[j] + 1, now[j - 1] + 1);
            d = smaller(d, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = smaller(d, before[j - 2] + 1);
            now[j] = d;
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    size_t best = last[m];
    for (size_t j = 0; part && j < m; j++)
        best = smaller(best, last[j]);
    return best;
}

size_t nearest_distance(const char *a, const char *b)
{
    return distance(a, b, false);
}

bool nearest_closer(nearest *n, const char *word, const char *name)
{
    size_t length = strnlen(word, NAME_MAX_BYTES), whole = distance(word, name, false), cost = whole;
    size_t part = length >= PART_MIN ? distance(word, name, true) : length;
    if (part <= length / 4)
        cost = smaller(whole, part + 1);
    if (length == 0 || cost > 1 + length / 3 ||
        (n->found && (cost > n->cost || (cost == n->cost && whole >= n->whole))))
        return false;
    *n = (nearest){true, cost, whole};
    return true;
}

const char *nearest_of(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    nearest n = {0};
    for (size_t i = 0; i < count; i++)
        if (nearest_closer(&n, word, names[i]))
            best = names[i];
    return best;
}

const char *tn_nearest_name(const char *word, const char *const *texts, size_t count)
{
    return word && texts && count <= PTRDIFF_MAX / sizeof *texts ? nearest_of(word, texts, count) : NULL;
}
