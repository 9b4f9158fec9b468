/* Tokens that may have to be computed again. */
#include "generate/past.h"

#include <stdlib.h>

tn_status past_init(session_past *p, int64_t rows, int64_t capacity, tn_error *err)
{
    *p = (session_past){.rows = rows, .capacity = capacity};
    if (capacity == 0)
        return TN_OK;
    size_t count = (size_t)(rows * capacity);
    p->ids = malloc(count * sizeof *p->ids);
    p->positions = malloc(count * sizeof *p->positions);
    p->mask = malloc(count * sizeof *p->mask);
    if (p->ids && p->positions && p->mask)
        return TN_OK;
    past_close(p);
    return tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows");
}

void past_close(session_past *p)
{
    free(p->ids);
    free(p->positions);
    free(p->mask);
    *p = (session_past){0};
}

void past_keep(session_past *p, int64_t tokens, const int64_t *ids, float (*positions)[3], const int32_t *index)
{
    for (int64_t t = 0; t < tokens && p->count < p->capacity; t++, p->count++)
        for (int64_t b = 0; b < p->rows; b++) {
            int64_t from = b * tokens + t, to = b * p->capacity + p->count;
            p->ids[to] = ids[from];
            p->positions[to] = (int64_t)positions[from][0];
            p->mask[to] = index[from] >= 0;
        }
}

bool past_restarts(const session_past *p, int64_t columns, int64_t tokens)
{
    return columns > 0 && columns <= p->capacity && columns + tokens > p->capacity;
}

tn_batch past_batch(const session_past *p)
{
    return (tn_batch){.size = sizeof(tn_batch),
                      .rows = p->rows,
                      .tokens = p->count,
                      .ids = p->ids,
                      .mask = p->mask,
                      .positions = p->positions};
}
