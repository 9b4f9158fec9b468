/* Which sites bring the difference? The model runs with parts of its kernels on a part of the text that shows it:
 * halves that fail are searched on their own; what fails only together is made smaller as long as it fails. What was
 * found is left out, and the search goes on until the rest passes. */
#include "bind/apply.h"
#include "plugin/registry.h"
#include "verify/whole.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Runs of the model; beyond that what was found is told. And tokens of the shortest part. */
enum { MOST_RUNS = 600, LEAST_TOKENS = 16, LEAST_NARROW = 64 };

typedef struct search_state {
    whole_search *s;
    whole_text part;
    float *truth, *logits;
    double *each, *yard; /* of each token of the part                                             */
    bool *keep;          /* [site]                                                                           */
    int64_t runs;
    tn_error *err;
    tn_status status; /* an error, or TN_DECLINED: too many runs                                    */
} search_state;

/* Does the difference show with these sites alone? */
static bool fails(search_state *st, const size_t *sites, size_t count)
{
    whole_search *s = st->s;
    int64_t token;
    if (st->status != TN_OK)
        return false;
    if (st->runs++ >= MOST_RUNS) {
        st->status = TN_DECLINED;
        return false;
    }
    memset(st->keep, 0, s->model->target.graph->site_count * sizeof *st->keep);
    for (size_t i = 0; i < count; i++)
        st->keep[sites[i]] = true;
    apply_only(&s->model->target, st->keep);
    st->status = whole_tell(&s->progress, "searching", st->runs, MOST_RUNS, st->err);
    if (st->status == TN_OK)
        st->status = whole_run(s->model, &st->part, false, st->logits, st->err);
    apply_only(&s->model->target, NULL);
    whole_distance apart;
    int64_t tokens = whole_run_count(&st->part);
    if (st->status == TN_OK)
        st->status = whole_distance_of(st->truth, st->logits, tokens, s->model->info.vocab, st->each, &apart, st->err);
    if (st->status != TN_OK)
        return false;
    double worst = whole_rule_worst(s->rule, st->yard, st->each, tokens, &token);
    if (isnan(worst))
        st->status = whole_no_memory(st->err);
    return worst > 1;
}

/* They fail, and no half of them does: leaves out what need not be there. */
static void find_together(search_state *st, const size_t *sites, size_t count)
{
    size_t *left = malloc(2 * count * sizeof *left), n = count;
    if (!left) {
        st->status = whole_no_memory(st->err);
        return;
    }
    size_t *fewer = left + count;
    memcpy(left, sites, count * sizeof *left);
    for (size_t piece = (count + 1) / 2; piece > 0 && st->status == TN_OK; piece = piece > 1 ? (piece + 1) / 2 : 0)
        for (size_t at = 0; at < n && n > 1;) {
            size_t end = at + piece < n ? at + piece : n;
            memcpy(fewer, left, at * sizeof *left);
            memcpy(fewer + at, left + end, (n - end) * sizeof *left);
            if (n > end - at && fails(st, fewer, n - (end - at))) {
                n -= end - at;
                memcpy(left, fewer, n * sizeof *left);
            } else
                at = end;
        }
    for (size_t i = 0; i < n && st->status == TN_OK; i++)
        st->s->found[left[i]] = true;
    free(left);
}

/* They fail. */
static void isolate(search_state *st, const size_t *sites, size_t count)
{
    if (count == 1) {
        st->s->found[sites[0]] = true;
        return;
    }
    size_t half = count / 2;
    bool front = fails(st, sites, half), back = fails(st, sites + half, count - half);
    if (front)
        isolate(st, sites, half);
    if (back)
        isolate(st, sites + half, count - half);
    if (!front && !back && st->status == TN_OK)
        find_together(st, sites, count);
}

/* What is applied and not found yet, in graph order kernel by kernel. */
static size_t list_sites(const whole_search *s, size_t *sites)
{
    const graph *g = s->model->target.graph;
    size_t count = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        const struct registry_kernel *kernel = g->sites[i]->bound.kernel;
        bool again = !kernel;
        for (size_t j = 0; j < i && !again; j++)
            again = g->sites[j]->bound.kernel == kernel;
        for (size_t j = i; j < g->site_count && !again; j++)
            if (g->sites[j]->bound.kernel == kernel && !s->found[j])
                sites[count++] = j;
    }
    return count;
}

/* Eager's logits of the part. */
static tn_status begin_part(search_state *st, int64_t first, int64_t count, int64_t window)
{
    whole_search *s = st->s;
    st->part = (whole_text){s->text.ids + first, count, window};
    for (int64_t i = 0, tokens = whole_run_count(&st->part); i < tokens; i++)
        st->yard[i] = s->yard[first + whole_run_position(&st->part, i)];
    return whole_run(s->truth, &st->part, true, st->truth, st->err);
}

/* The shortest beginning of the window with the worst token that shows the difference; the whole text if none does. */
static void choose_part(search_state *st, const size_t *sites, size_t count)
{
    const whole_search *s = st->s;
    int64_t window = s->text.window, first = s->token / window * window;
    int64_t most = s->text.count - first < window ? s->text.count - first : window;
    for (int64_t n = s->rule->narrow ? LEAST_NARROW : LEAST_TOKENS; st->status == TN_OK; n *= 2) {
        n = n < most ? n : most;
        st->status = begin_part(st, first, n, n);
        if (st->status != TN_OK || fails(st, sites, count))
            return;
        if (n == most)
            break;
    }
    if (st->status == TN_OK)
        st->status = begin_part(st, 0, s->text.count, window);
}

static void search(search_state *st, size_t *sites)
{
    size_t count = list_sites(st->s, sites);
    choose_part(st, sites, count);
    bool more = st->status == TN_OK && fails(st, sites, count);
    while (more && st->status == TN_OK) {
        isolate(st, sites, count);
        count = list_sites(st->s, sites);
        more = count > 0 && fails(st, sites, count);
    }
}

tn_status whole_search_run(whole_search *s, tn_error *err)
{
    size_t sites = s->model->target.graph->site_count;
    int64_t vocab = s->model->info.vocab;
    search_state st = {.s = s,
                       .truth = whole_run_alloc(&s->text, vocab, err),
                       .logits = whole_run_alloc(&s->text, vocab, err),
                       .each = malloc((size_t)whole_run_count(&s->text) * sizeof *st.each),
                       .yard = malloc((size_t)whole_run_count(&s->text) * sizeof *st.yard),
                       .keep = calloc(sites + 1, sizeof *st.keep),
                       .err = err};
    size_t *list = malloc((sites + 1) * sizeof *list);
    if (st.truth && st.logits && st.each && st.yard && st.keep && list)
        search(&st, list);
    else
        st.status = whole_no_memory(err);
    s->complete = st.status == TN_OK;
    free(st.truth);
    free(st.logits);
    free(st.each);
    free(st.yard);
    free(st.keep);
    free(list);
    return st.status == TN_DECLINED ? TN_OK : st.status;
}
