/* The loops of one vector width: CEILING_BYTES, with which a file for an instruction set includes this. */
#include "device/ceiling.h"

typedef float vector __attribute__((vector_size(CEILING_BYTES), may_alias));
enum { LANES = CEILING_BYTES / 4, VECTORS = 512 / CEILING_BYTES, STEP = VECTORS * LANES }; /* 512 bytes a step */

static float loop_read(const float *a, int64_t n, int streams)
{
    vector sum[VECTORS] = {{0}};
    float total = 0;
    for (int64_t i = 0, length = n / streams; i < length; i += STEP)
        for (int k = 0; k < streams; k++) {
            const vector *from = (const vector *)(a + k * length + i);
            for (int v = 0; v < VECTORS; v++)
                sum[v] += from[v];
        }
    for (int v = 0; v < VECTORS; v++)
        for (int i = 0; i < LANES; i++)
            total += sum[v][i];
    return total;
}

static void loop_copy(float *to, const float *a, int64_t n, int streams)
{
    for (int64_t i = 0, length = n / streams; i < length; i += STEP)
        for (int k = 0; k < streams; k++) {
            const vector *from = (const vector *)(a + k * length + i);
            vector *out = (vector *)(to + k * length + i), held[VECTORS];
            for (int v = 0; v < VECTORS; v++)
                held[v] = from[v];
            /* Keeps the compiler from calling memcpy, which stores around the caches. */
            __asm__ volatile("" ::: "memory");
            for (int v = 0; v < VECTORS; v++)
                out[v] = held[v];
        }
}

static void loop_triad(float *to, const float *a, const float *b, int64_t n, int streams)
{
    for (int64_t i = 0, length = n / streams; i < length; i += STEP)
        for (int k = 0; k < streams; k++) {
            const vector *first = (const vector *)(a + k * length + i), *second = (const vector *)(b + k * length + i);
            vector *out = (vector *)(to + k * length + i);
            for (int v = 0; v < VECTORS; v++)
                out[v] = first[v] + 3.0f * second[v];
        }
}

static void loop_update(float *a, int64_t n, int streams)
{
    for (int64_t i = 0, length = n / streams; i < length; i += STEP)
        for (int k = 0; k < streams; k++) {
            vector *at = (vector *)(a + k * length + i);
            for (int v = 0; v < VECTORS; v++)
                at[v] *= 3.0f;
        }
}
