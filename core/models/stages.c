/* Layers dealt out to ranks. */
#include "models/stages.h"

#include "group/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- dealing out ---------------------------------------------------------------------------------------------- */

/* Where the next rank may begin. */
typedef struct places {
    double *bytes; /* [layers + 1]: of all layers before                                            */
    bool *joined;  /* [layers]: from there on some layer uses the keys of one before                  */
    int64_t layers;
} places;

/* The first number in a tensor's name; -1: there is none. */
static int64_t number_in(const char *name)
{
    for (const char *at = name; at; at = strchr(at, '.')) {
        at += *at == '.';
        size_t digits = strspn(at, "0123456789");
        if (digits > 0 && digits < 10 && at[digits] == '.')
            return strtoll(at, NULL, 10);
    }
    return -1;
}

/* Of each layer what the file has under its number; where it numbers none all are alike. */
static void weigh(const graph_builder *b, places *p)
{
    double total = 0;
    for (size_t k = 0; k < shards_count(b->weights); k++) {
        const char *name = shards_name(b->weights, k);
        int64_t i = models_stands_beside(name) ? -1 : number_in(name);
        tn_tensor t;
        if (i < 0 || i >= p->layers || !shards_get(b->weights, name, &t))
            continue;
        p->bytes[i + 1] += (double)tn_dtype_bytes(t.dtype, tn_tensor_count(&t));
        total += p->bytes[i + 1];
    }
    for (int64_t i = 1; i <= p->layers; i++)
        p->bytes[i] = p->bytes[i - 1] + (total > 0 ? p->bytes[i] : 1);
}

static void join(const config_reader *c, const decoder_spec *s, const places *p)
{
    for (int64_t i = 0; i < p->layers; i++) {
        decoder_layer_spec spec = s->layer;
        if (s->differ)
            s->differ(c, i, &spec);
        for (int64_t j = spec.attention.from_layer + 1; spec.attention.borrows && j <= i; j++)
            p->joined[j] = true;
    }
}

/* The place behind at that is nearest to that share of all bytes, with more others behind it; 0: there is none. */
static int64_t nearest(const places *p, int64_t at, double share, int64_t more)
{
    int64_t best = 0, free_ones = 0;
    double target = share * p->bytes[p->layers];
    for (int64_t i = p->layers - 1; i > at; i--) {
        if (p->joined[i] || free_ones++ < more)
            continue;
        if (!best || fabs(p->bytes[i] - target) < fabs(p->bytes[best] - target))
            best = i;
    }
    return best;
}

/* How as many ranks can have the model: any number of them can have parts. */
static const char *what_works(int32_t ranks, int64_t most, char text[64])
{
    int32_t stages = most < ranks ? (int32_t)most : ranks;
    while (ranks % stages)
        stages--;
    if (stages > 1)
        snprintf(text, 64, "pipeline=%d,tensor=%d", (int)stages, (int)(ranks / stages));
    else
        snprintf(text, 64, "tensor=%d", (int)ranks);
    return text;
}

static int32_t *deal(graph_builder *b, const places *p)
{
    int32_t stages = group_stages(b->stages), *owner = calloc((size_t)p->layers, sizeof *owner);
    int64_t at = 0, free_ones = 1;
    for (int64_t i = 1; i < p->layers; i++)
        free_ones += !p->joined[i];
    if (!owner)
        return build_fail(b, TN_E_MEMORY, "parallel", "out of memory");
    if (free_ones < stages) {
        char instead[64];
        free(owner);
        return build_fail(b, TN_E_USAGE, "parallel",
                          "num_hidden_layers is %lld%s: pipeline takes at most %lld %s, not %d; %s",
                          (long long)p->layers, free_ones < p->layers ? ", and some use the keys of others" : "",
                          (long long)free_ones, b->stages->stage ? "stages" : "ranks", (int)stages,
                          what_works(b->stages->end.ranks, free_ones, instead));
    }
    for (int32_t r = 1; r < stages; r++) {
        at = nearest(p, at, (double)r / stages, stages - 1 - r);
        for (int64_t i = at; i < p->layers; i++)
            owner[i] = r;
    }
    return owner;
}

int32_t *stages_deal(graph_builder *b, const config_reader *c, const decoder_spec *s)
{
    if (!b->stages || b->status != TN_OK)
        return NULL;
    places p = {calloc((size_t)s->layers + 1, sizeof *p.bytes), calloc((size_t)s->layers, sizeof *p.joined), s->layers};
    int32_t *owner = NULL;
    if (p.bytes && p.joined) {
        weigh(b, &p);
        join(c, s, &p);
        owner = deal(b, &p);
    } else {
        build_fail(b, TN_E_MEMORY, "parallel", "out of memory");
    }
    free(p.bytes);
    free(p.joined);
    return owner;
}

/* ---- running -------------------------------------------------------------------------------------------------- */

bool stages_here(const model_shape *shape, int64_t layer)
{
    return !shape->owner || shape->owner[layer] == shape->stages->end.rank / group_stage_ranks(shape->stages);
}

/* What comes before h. */
typedef struct note {
    int64_t tokens, trails, broken;
} note;

/* The last layer may have been left with the tokens that are wanted. */
static void narrow(graph_run *r, model_walk *w, int64_t tokens)
{
    if (tokens >= r->tokens)
        return;
    w->h = steps_last(&w->h, tokens);
    w->sum = steps_last(&w->sum, tokens);
    steps_narrow(r, tokens);
}

static void take_note(graph_run *r, model_walk *w, const note *n)
{
    if (n->tokens < 0 || n->tokens > r->tokens || (n->tokens < r->tokens && r->rows > 1)) {
        r->status = tn_fail(r->err, TN_E_INTERNAL, "parallel", "another rank went on with other tokens; report this");
        return;
    }
    narrow(r, w, n->tokens);
    w->trails = n->trails;
    r->broken = r->broken ? r->broken : n->broken;
}

static void pass_on(graph_run *r, group *g, int32_t from, int32_t to, const tn_tensor *t)
{
    size_t bytes = t->data ? tn_dtype_bytes(t->dtype, tn_tensor_count(t)) : 0;
    if (r->status == TN_OK && bytes > 0)
        r->status = group_pass(g, from, to, t->data, bytes, r->err);
}

static void pass_walk(graph_run *r, group *g, int32_t from, int32_t to, bool last, model_walk *w)
{
    note n = {r->tokens, w->trails, r->broken};
    if (r->status == TN_OK)
        r->status = group_pass(g, from, to, &n, sizeof n, r->err);
    if (r->status == TN_OK && g->end.rank == to)
        take_note(r, w, &n);
    pass_on(r, g, from, to, &w->h);
    if (w->trails)
        pass_on(r, g, from, to, &w->sum);
    if (!last)
        pass_on(r, g, from, to, &r->chosen);
}

/* The same, of which only the memory is measured. */
static void expect_walk(const graph_run *r, group *g, bool last, const model_walk *w)
{
    const tn_tensor *const list[] = {&w->h, w->trails ? &w->sum : NULL, last ? NULL : &r->chosen};
    group_expect_pass(g, sizeof(note));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i] && list[i]->ndim > 0)
            group_expect_pass(g, tn_dtype_bytes(list[i]->dtype, tn_tensor_count(list[i])));
}

void stages_hand_on(graph_run *r, const model_shape *shape, int64_t layer, model_walk *walk)
{
    bool last = layer + 1 == shape->layers;
    if (!shape->owner || (!last && shape->owner[layer + 1] == shape->owner[layer]))
        return;
    group *g = shape->stages; /* a rank passes to those that have its place in their stages                  */
    int32_t each = group_stage_ranks(g), own = g->end.rank, place = own % each;
    int32_t from = shape->owner[layer] * each + place, next = last ? 0 : shape->owner[layer + 1] * each + place;
    if (r->arena->measuring) {
        for (int32_t to = 0; to < (last ? group_stages(g) - 1 : 1); to++)
            expect_walk(r, g, last, walk);
        return;
    }
    if (!last) {
        if (own == from || own == next)
            pass_walk(r, g, from, next, false, walk);
        return;
    }
    if (r->wanted == 0) { /* nobody goes on: other ranks may begin with what comes next                  */
        if (own != from && r->rows == 1)
            narrow(r, walk, 0);
        return;
    }
    for (int32_t to = place; to < g->end.ranks; to += each)
        if (to != from && (own == from || own == to))
            pass_walk(r, g, from, to, true, walk);
}
