/* How far two names are apart. */
#include "plugin/nearest.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { NAME_MAX_BYTES = 127 };

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t nearest_distance(const char *a, const char *b)
{
    size_t rows[3][NAME_MAX_BYTES + 1];
    size_t n = strnlen(a, NAME_MAX_BYTES), m = strnlen(b, NAME_MAX_BYTES);
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = j;
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
    return last[m];
}

const char *nearest_of(const char *name, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        size_t d = nearest_distance(name, names[i]);
        size_t longer = strnlen(name, NAME_MAX_BYTES), other = strnlen(names[i], NAME_MAX_BYTES);
        if (other > longer)
            longer = other;
        if (d < longer && d < best_distance) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}
