/* Calls that come again in the same order, as one graph: in decode every token is the same calls, and launching them
 * one by one takes longer than what they do. The calls since the stream was last used otherwise (a copy of the host's,
 * a wait) are a run. One that is not like any before goes into the stream call by call, and its list stays. While a run
 * is like the beginning of such a list nothing goes into the stream: at its end it is the whole list, which is captured
 * when that happens first and replayed from then on, or the calls go into the stream after all, as they do where one
 * differs. So whatever changes, shapes, addresses, workspace, order, is seen call by call, and a graph is never run for
 * anything but its own calls. What captured calls use stays: graphs go before executors and memory do. */
#include "npu_ops.h"
#include "queue.h"

#include <stdlib.h>
#include <string.h>

/* Shorter runs are launched, a graph's launch being more than that of a call; but not before a longer one came more
 * often than anything does while a model is opened: the calls of one operation that are compared with the CPU then are
 * tried as graphs. */
enum { LEAST = 32, OFTEN = 8 };

static const ascend_api *api_of(const npu *n)
{
    return n->queue.api;
}

tn_status npu_graphs_open(npu *n, tn_error *err)
{
    const ascend_api *api = api_of(n);
    const char *wanted = getenv("TENON_NPU_GRAPH");
    bool no = wanted && strcmp(wanted, "no") == 0;
    if (wanted && !no && strcmp(wanted, "yes") != 0)
        return tn_fail(err, TN_E_USAGE, "npu", "TENON_NPU_GRAPH is '%.40s', not yes or no", wanted);
    n->graphs = api->aclmdlRICaptureBegin && api->aclmdlRICaptureEnd && api->aclmdlRIExecuteAsync &&
                api->aclmdlRIDestroy && !no;
    n->now.follows = n->graphs;
    return TN_OK;
}

/* A new run, which may become any of the lists. */
static void begin(npu *n)
{
    n->now.list.count = n->now.done = n->now.like = 0;
    n->now.follows = n->graphs;
    for (unsigned i = 0; i < GRAPHS && n->graphs; i++)
        n->now.like |= n->graph[i].list.count > 0 ? 1u << i : 0;
}

/* ---- calls one by one ------------------------------------------------------------------------------------------- */

static int32_t put(const npu *n, const ascend_launch *l)
{
    return l->second(l->workspace, l->bytes, l->executor, n->queue.stream);
}

/* The calls of the run that are not in the stream yet. After a failure the rest is given up. */
static tn_status put_rest(npu *n, tn_error *err)
{
    npu_now *now = &n->now;
    tn_status status = TN_OK;
    for (; now->done < now->list.count && status == TN_OK; now->done++) {
        const ascend_launch *l = &now->list.calls[now->done];
        status = ascend_check(api_of(n), l->name, put(n, l), err);
    }
    if (status != TN_OK)
        now->list.count = now->done = 0;
    now->follows &= status == TN_OK;
    return status;
}

static bool same(const ascend_launch *a, const ascend_launch *b)
{
    return a->executor == b->executor && a->second == b->second && a->workspace == b->workspace && a->bytes == b->bytes;
}

/* Behind the others of its run; false: there is no memory. */
static bool note(npu_now *now, const ascend_launch *l)
{
    npu_calls *list = &now->list;
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        ascend_launch *more = realloc(list->calls, room * sizeof *more);
        if (!more)
            return false;
        list->calls = more;
        list->room = room;
    }
    list->calls[list->count++] = *l;
    return true;
}

/* What nobody could be told of so far. */
static tn_status untold(npu *n, tn_error *err)
{
    tn_error why = n->untold;
    if (why.code == TN_OK || !err)
        return TN_OK;
    n->untold = (tn_error)TN_ERROR_INIT;
    return tn_fail(err, why.code, why.where, "%s", why.message);
}

tn_status npu_launch(tn_queue *queue, const ascend_launch *l, bool kept, tn_error *err)
{
    npu *n = npu_of(queue);
    npu_now *now = &n->now;
    tn_error *to = err ? err : &n->untold;
    tn_status status = untold(n, err);
    queue->idle = false;
    if (now->follows && kept && note(now, l)) {
        size_t at = now->list.count - 1;
        for (unsigned i = 0; i < GRAPHS; i++)
            if (n->graph[i].list.count <= at || !same(&n->graph[i].list.calls[at], l))
                now->like &= ~(1u << i);
        return status == TN_OK && !now->like ? put_rest(n, to) : status;
    }
    if (status == TN_OK)
        status = put_rest(n, to);
    now->follows = false;
    now->like = 0;
    /* Whatever became of the others: an executor that is not kept ends so. */
    tn_status own = ascend_check(api_of(n), l->name, put(n, l), to);
    return status == TN_OK ? own : status;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

/* Makes the list a graph; false: this installation does not, which is no error. */
static bool capture(npu *n, npu_graph *g)
{
    const ascend_api *api = api_of(n);
    aclmdlRI model = NULL;
    bool good = true;
    if (api->aclmdlRICaptureBegin(n->queue.stream, ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL) != 0)
        return false;
    for (size_t i = 0; i < g->list.count && good; i++)
        good = put(n, &g->list.calls[i]) == 0;
    if (api->aclmdlRICaptureEnd(n->queue.stream, &model) != 0)
        return false;
    g->model = model;
    if (good)
        return true;
    api->aclmdlRIDestroy(model);
    g->model = NULL;
    return false;
}

/* The run, which is this list. */
static tn_status replay(npu *n, npu_graph *g, tn_error *err)
{
    const ascend_api *api = api_of(n);
    g->used = ++n->uses;
    if (g->list.count >= LEAST && ++g->times > OFTEN)
        n->least = LEAST;
    if (!g->model && !capture(n, g)) {
        api->aclGetRecentErrMsg(); /* launched instead, from now on                                          */
        n->graphs = false;
        return put_rest(n, err);
    }
    return ascend_check(api, "aclmdlRIExecuteAsync", api->aclmdlRIExecuteAsync(g->model, n->queue.stream), err);
}

/* The run's list stays, in the place of the one that was not used for longest. Its graph may be running: it ends when
 * the stream is empty, and until then no other leaves its place. */
static void remember(npu *n)
{
    npu_graph *g = n->graph;
    for (unsigned i = 1; i < GRAPHS; i++)
        if (n->graph[i].used < g->used)
            g = &n->graph[i];
    if (g->model && n->past)
        return;
    if (g->model)
        n->past = g->model;
    npu_calls list = g->list;
    *g = (npu_graph){.list = n->now.list, .used = ++n->uses};
    n->now.list = list;
}

tn_status npu_end_run(tn_queue *queue, tn_error *err)
{
    npu *n = npu_of(queue);
    npu_now *now = &n->now;
    tn_error *to = err ? err : &n->untold;
    tn_status status = npu_flush(queue, err);
    npu_graph *g = NULL;
    if (status == TN_OK)
        status = untold(n, err);
    if (status != TN_OK)
        return status;
    for (unsigned i = 0; i < GRAPHS && now->done == 0 && now->list.count > 0; i++)
        if (now->like >> i & 1 && n->graph[i].list.count == now->list.count)
            g = &n->graph[i];
    status = g ? replay(n, g, to) : put_rest(n, to);
    if (status == TN_OK && !g && now->follows && now->list.count > 0 && now->list.count >= n->least)
        remember(n);
    begin(n);
    return status;
}

void npu_graphs_waited(npu *n)
{
    if (n->past)
        api_of(n)->aclmdlRIDestroy(n->past);
    n->past = NULL;
}

void npu_graphs_drop(npu *n)
{
    npu_graphs_waited(n);
    for (unsigned i = 0; i < GRAPHS; i++) {
        npu_graph *g = &n->graph[i];
        if (g->model)
            api_of(n)->aclmdlRIDestroy(g->model);
        g->model = NULL;
        g->list.count = 0;
        g->used = 0;
    }
    n->now.like = 0;
}

void npu_graphs_close(npu *n)
{
    npu_graphs_drop(n);
    for (unsigned i = 0; i < GRAPHS; i++)
        free(n->graph[i].list.calls);
    free(n->now.list.calls);
}
