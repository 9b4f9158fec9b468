/* Samples in two arrays that grow: 4 bytes for an id, 4 for a label. */
#include "dataset/samples.h"

#include "text/buffer.h"

#include <stdlib.h>
#include <string.h>

/* What is not used of the room takes addresses only. */
static tn_status reserve(samples *s, size_t tokens, size_t count, tn_error *err)
{
    int32_t *ids = buffer_grow(s->ids, &s->ids_room, s->tokens + tokens, sizeof *ids);
    s->ids = ids ? ids : s->ids;
    int32_t *labels = buffer_grow(s->labels, &s->labels_room, s->tokens + tokens, sizeof *labels);
    s->labels = labels ? labels : s->labels;
    size_t *ends = buffer_grow(s->ends, &s->ends_room, s->count + count, sizeof *ends);
    s->ends = ends ? ends : s->ends;
    if (ids && labels && ends)
        return TN_OK;
    return tn_fail(err, TN_E_MEMORY, "samples", "out of memory for %zu tokens, at 8 bytes each; take fewer records",
                   s->tokens + tokens);
}

tn_status samples_add(samples *s, const int64_t *ids, const int64_t *labels, size_t count, size_t most, tn_error *err)
{
    size_t kept = count < most ? count : most;
    int64_t counted = 0;
    tn_status status = reserve(s, kept, 1, err);
    if (status != TN_OK)
        return status;
    labels = labels ? labels : ids;
    for (size_t i = 0; i < kept; i++) {
        s->ids[s->tokens + i] = (int32_t)ids[i];
        s->labels[s->tokens + i] = (int32_t)labels[i];
        counted += i > 0 && labels[i] != TN_NO_LABEL;
    }
    if (counted == 0) {
        s->dropped++;
        return TN_OK;
    }
    s->cut += kept < count;
    s->labelled += counted;
    s->tokens += kept;
    s->ends[s->count++] = s->tokens;
    return TN_OK;
}

tn_status samples_join(samples *s, const samples *other, tn_error *err)
{
    tn_status status = reserve(s, other->tokens, other->count, err);
    if (status != TN_OK)
        return status;
    if (other->tokens > 0) {
        memcpy(s->ids + s->tokens, other->ids, other->tokens * sizeof *s->ids);
        memcpy(s->labels + s->tokens, other->labels, other->tokens * sizeof *s->labels);
    }
    for (size_t i = 0; i < other->count; i++)
        s->ends[s->count++] = s->tokens + other->ends[i];
    s->tokens += other->tokens;
    s->cut += other->cut;
    s->dropped += other->dropped;
    s->labelled += other->labelled;
    return TN_OK;
}

void samples_clear(samples *s)
{
    s->tokens = s->count = 0;
    s->cut = s->dropped = s->labelled = 0;
}

void samples_free(samples *s)
{
    free(s->ids);
    free(s->labels);
    free(s->ends);
    *s = (samples){0};
}
