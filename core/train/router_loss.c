/* Routers' loss: probabilities by a softmax over all experts in the logits' type, whatever the router itself does. */
#include "train/router_loss.h"

#include "base/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The probabilities of a row, in its type. */
static void chances_of(const router_loss *l, const tn_tensor *logits, int64_t i)
{
    float *p = l->row, largest = -INFINITY, sum = 0;
    uint16_t half;
    convert_to_f32((const char *)logits->data + (size_t)(i * logits->stride[0]) * tn_dtype_size(logits->dtype),
                   logits->dtype, p, l->experts);
    for (int64_t e = 0; e < l->experts; e++)
        largest = p[e] > largest ? p[e] : largest;
    for (int64_t e = 0; e < l->experts; e++)
        sum += p[e] = expf(p[e] - largest);
    for (int64_t e = 0; e < l->experts; e++) {
        p[e] /= sum;
        if (logits->dtype != TN_F32) {
            convert_from_f32(&p[e], logits->dtype, &half, 1);
            convert_to_f32(&half, logits->dtype, &p[e], 1);
        }
    }
}

/* Counts the k most probable of a row, which loses them. */
static void count_row(router_loss *l, int64_t top_k)
{
    for (int64_t e = 0; e < l->experts; e++)
        l->chances[e] += (double)l->row[e];
    for (int64_t k = 0; k < top_k && k < l->experts; k++) {
        int64_t best = 0;
        for (int64_t e = 1; e < l->experts; e++)
            best = l->row[e] > l->row[best] ? e : best;
        l->chosen[best]++;
        l->row[best] = -1;
    }
    l->rows++;
}

/* dL/dlogits = p (g - sum of g p), g = factor E chosen / M^2. */
static void write_gradients(const router_loss *l, tape *t, const tn_tensor *logits)
{
    tn_tensor g = tape_gradient(t, logits);
    double rows = (double)l->rows, times = l->factor * (double)l->experts / rows / rows;
    for (int64_t i = 0; i < logits->shape[0]; i++) {
        double sum = 0;
        chances_of(l, logits, i);
        for (int64_t e = 0; e < l->experts; e++)
            sum += times * l->chosen[e] * (double)l->row[e];
        for (int64_t e = 0; e < l->experts; e++)
            l->row[e] = (float)((double)l->row[e] * (times * l->chosen[e] - sum));
        convert_from_f32(l->row, g.dtype, (char *)g.data + (size_t)(i * g.stride[0]) * tn_dtype_size(g.dtype),
                         l->experts);
    }
}

static bool make_room(router_loss *l, int64_t experts)
{
    if (l->experts == 0) {
        l->experts = experts;
        l->chosen = calloc((size_t)experts, sizeof *l->chosen);
        l->chances = calloc((size_t)experts, sizeof *l->chances);
        l->row = calloc((size_t)experts, sizeof *l->row);
    }
    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 64;
        tn_tensor *more = realloc(l->logits, capacity * sizeof *more);
        if (!more)
            return false;
        l->logits = more;
        l->capacity = capacity;
    }
    return l->chosen && l->chances && l->row && l->count < l->capacity;
}

static void count_rows(router_loss *l, graph_run *r, const tn_tensor *logits, int64_t top_k)
{
    if (!make_room(l, logits->shape[1]))
        r->status = tn_fail(r->err, TN_E_MEMORY, "router_loss", "out of memory");
    else if (logits->shape[1] != l->experts)
        r->status = tn_fail(r->err, TN_E_INPUT, "router_loss", "layers have %lld and %lld experts",
                            (long long)l->experts, (long long)logits->shape[1]);
    for (int64_t i = 0; i < logits->shape[0] && r->status == TN_OK; i++) {
        chances_of(l, logits, i);
        count_row(l, top_k);
    }
    if (r->tape && r->status == TN_OK)
        l->logits[l->count++] = *logits;
}

/* graph_run.routes. */
static void see(graph_run *r, const tn_site *site, const tn_tensor *x)
{
    router_loss *l = r->routes_ctx;
    size_t mark = arena_mark(r->arena);
    tn_tensor logits = router_logits(r, site, x);
    if (r->status == TN_OK && l->known)
        write_gradients(l, r->tape, &logits);
    else if (r->status == TN_OK)
        count_rows(l, r, &logits, site->dim[TN_DIM_TOP_K]);
    steps_release(r, mark);
}

void router_loss_open(router_loss *l, double factor)
{
    *l = (router_loss){.factor = factor};
}

void router_loss_close(router_loss *l)
{
    free(l->chosen);
    free(l->chances);
    free(l->row);
    free(l->logits);
    *l = (router_loss){0};
}

void router_loss_begin(router_loss *l, graph_run *r)
{
    r->routes = see;
    r->routes_ctx = l;
    for (int64_t e = 0; e < l->experts; e++)
        l->chosen[e] = l->chances[e] = 0;
    l->rows = 0;
    l->count = 0;
    l->known = false;
}

double router_loss_end(router_loss *l, tape *t)
{
    double rows = (double)l->rows, loss = 0;
    for (int64_t e = 0; e < l->experts && l->rows > 0; e++)
        loss += l->chosen[e] / rows * (l->chances[e] / rows);
    for (size_t i = 0; i < l->count; i++)
        write_gradients(l, t, &l->logits[i]);
    l->count = 0;
    l->known = true;
    return loss * (double)l->experts;
}
