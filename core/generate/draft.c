/* Drafts by lookup. */
#include "generate/draft.h"

#include <stdlib.h>
#include <string.h>

/* A passage of fewer tokens says nothing; more than so many are as good as all. */
enum { SHORTEST = 2, LONGEST = 32 };

enum { FIRST_LENGTH = 4, LONGEST_PAUSE = 64 };

tn_status draft_init(draft *d, int64_t most, int64_t capacity, tn_error *err)
{
    *d = (draft){.most = most, .capacity = capacity, .length = most < FIRST_LENGTH ? most : FIRST_LENGTH};
    if (most > 0 && !(d->text = malloc((size_t)capacity * sizeof *d->text + 1)))
        return tn_fail(err, TN_E_MEMORY, "generate", "out of memory for the text");
    return TN_OK;
}

void draft_close(draft *d)
{
    free(d->text);
    *d = (draft){0};
}

void draft_see(draft *d, const int64_t *ids, int64_t count)
{
    int64_t left = d->capacity - d->count, n = count < left ? count : left;
    if (!d->text || n <= 0)
        return;
    memcpy(d->text + d->count, ids, (size_t)n * sizeof *ids);
    d->count += n;
}

/* How far the text up to `end` is the same as all of it, from their ends on. */
static int64_t match(const draft *d, int64_t end)
{
    int64_t n = 0;
    while (n < LONGEST && n < end && d->text[end - 1 - n] == d->text[d->count - 1 - n])
        n++;
    return n;
}

int64_t draft_make(draft *d, int64_t room, int64_t *ids)
{
    int64_t longest = SHORTEST - 1, from = -1, n = d->length < room ? d->length : room;
    if (d->pause > 0 || n <= 0 || !d->text) {
        d->pause -= d->pause > 0;
        return 0;
    }
    for (int64_t end = d->count - 1; end > longest && longest < LONGEST; end--) {
        int64_t here = match(d, end);
        if (here > longest) {
            longest = here;
            from = end;
        }
    }
    if (from < 0)
        return 0;
    n = n < d->count - from ? n : d->count - from;
    memcpy(ids, d->text + from, (size_t)n * sizeof *ids);
    return n;
}

void draft_learn(draft *d, int64_t made, int64_t kept)
{
    d->made += made;
    d->kept += kept;
    if (kept == made)
        d->length = d->length * 2 < d->most ? d->length * 2 : d->most;
    else
        d->length = kept + 1 < d->most ? kept + 1 : d->most;
    d->failures = kept > 0 ? 0 : d->failures + 1;
    d->pause = d->failures == 0 ? 0 : d->failures > 6 ? LONGEST_PAUSE : (int64_t)1 << d->failures;
}
