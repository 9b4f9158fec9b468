/* Sorting tokens by expert. */
#include "moe.h"
#include <string.h>

void moe_group(const moe_layer *layer, const int32_t *experts, int64_t tokens, int64_t *offsets, int32_t *slots)
{
    int64_t k = layer->top_k, places = moe_slots(layer);
    memset(offsets, 0, sizeof *offsets * (size_t)(layer->experts + 2));
    for (int64_t i = 0; i < tokens * k; i++)
        if (experts[i] >= 0)
            offsets[experts[i] + 1]++;
    for (int64_t e = 0; e < layer->experts; e++)
        offsets[e + 1] += offsets[e];
    /* offsets[e] runs through the tokens of e, and ends where those of e + 1 begin. */
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t j = 0; j < k; j++)
            if (experts[t * k + j] >= 0)
                slots[offsets[experts[t * k + j]]++] = (int32_t)(t * places + j);
    for (int64_t e = layer->experts; e > 0; e--)
        offsets[e] = offsets[e - 1];
    offsets[0] = 0;
    int64_t shared = places > k ? tokens : 0;
    for (int64_t t = 0; t < shared; t++)
        slots[offsets[layer->experts] + t] = (int32_t)(t * places + k);
    offsets[layer->experts + 1] = offsets[layer->experts] + shared;
}
