/* The worker's loop, and what other threads hand to it. */
#include "worker.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct worker {
    api *api;
    tn_engine *engine;
    tn_engine_info info;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows                                                          */
    pthread_cond_t wake, idle;
    reply *inbox, **inbox_end;
    worker_job *jobs, **jobs_end;
    int64_t requests, sequences; /* that have places                                                   */
    int64_t room;                /* sequences that may have one                                        */
    bool ending, cutting, stopped;

    reply *active, **active_end; /* the thread's own: the oldest first                            */
    worker_job *doing, **doing_end;
};

/* ---- places ------------------------------------------------------------------------------------- */

static bool check_room(const worker *w, request_error *e)
{
    if (w->ending)
        return request_refuse(e, 503, NULL, "the server is shutting down");
    if (w->sequences >= w->room)
        return request_refuse(e, 429, NULL, "too many requests are waiting; try again later");
    return true;
}

bool worker_has_room(worker *w, request_error *e)
{
    pthread_mutex_lock(&w->lock);
    bool room = check_room(w, e);
    pthread_mutex_unlock(&w->lock);
    return room;
}

bool worker_reserve(worker *w, size_t sequences, request_error *e)
{
    pthread_mutex_lock(&w->lock);
    bool room = check_room(w, e);
    w->requests += room;
    w->sequences += room ? (int64_t)sequences : 0;
    pthread_mutex_unlock(&w->lock);
    return room;
}

void worker_release(worker *w, size_t sequences)
{
    pthread_mutex_lock(&w->lock);
    w->requests--;
    w->sequences -= (int64_t)sequences;
    if (w->requests == 0)
        pthread_cond_broadcast(&w->idle);
    pthread_mutex_unlock(&w->lock);
}

int64_t worker_active(worker *w)
{
    pthread_mutex_lock(&w->lock);
    int64_t requests = w->requests;
    pthread_mutex_unlock(&w->lock);
    return requests;
}

bool worker_ending(worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool ending = w->ending;
    pthread_mutex_unlock(&w->lock);
    return ending;
}

bool worker_cutting(worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool cutting = w->cutting;
    pthread_mutex_unlock(&w->lock);
    return cutting;
}

void worker_add(worker *w, reply *g)
{
    pthread_mutex_lock(&w->lock);
    g->next = NULL;
    *w->inbox_end = g;
    w->inbox_end = &g->next;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void worker_add_job(worker *w, worker_job *job)
{
    pthread_mutex_lock(&w->lock);
    job->next = NULL;
    *w->jobs_end = job;
    w->jobs_end = &job->next;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

/* ---- taking in ------------------------------------------------------------------------------------ */

static void start_choice(worker *w, choice *c)
{
    const reply *g = c->of;
    const sampling *s = &g->sampling;
    const reply_prompt *p = &g->prompts[c->prompt];
    int64_t room = w->api->context - (int64_t)p->count;
    tn_generate_options options = {.size = sizeof options,
                                   .max_tokens = s->max_tokens < 0 || s->max_tokens > room ? room : s->max_tokens,
                                   .temperature = s->temperature,
                                   .top_k = s->top_k,
                                   .top_p = s->top_p,
                                   .min_p = s->min_p,
                                   .repetition_penalty = s->repetition,
                                   .seed = sampling_seed(s, c->number),
                                   .ignore_eos = s->ignore_eos && !g->grammar,
                                   .on_logits = choice_sees_logits(c) ? choice_on_logits : NULL,
                                   .on_row_token = choice_on_token,
                                   .ctx = c};
    tn_engine_request request = {.size = sizeof request,
                                 .prompt = p->ids,
                                 .prompt_count = (int64_t)p->count,
                                 .options = &options,
                                 .salt = g->salt,
                                 .on_prompt_logits = g->echo && c->likely ? choice_on_prompt_logits : NULL,
                                 .on_end = choice_on_end,
                                 .images = tn_media_pictures(p->media),
                                 .sounds = tn_media_sounds(p->media)};
    tn_error err = TN_ERROR_INIT;
    tn_status status = tn_engine_add(w->engine, &request, &c->engine_id, &err);
    if (status == TN_OK) {
        c->added = true;
        return;
    }
    choice_fail(c, status == TN_E_INPUT || status == TN_E_USAGE ? 400 : 500, err.message);
    choice_abandon(c);
}

/* New requests and jobs become the thread's; waits while there is nothing to do. false: it is to end. */
static bool take_in(worker *w, bool work)
{
    pthread_mutex_lock(&w->lock);
    while (!work && !w->doing && !w->inbox && !w->jobs && !w->stopped)
        pthread_cond_wait(&w->wake, &w->lock);
    bool more = !w->stopped;
    reply *first = w->inbox;
    worker_job *job = w->jobs;
    if (first) {
        *w->active_end = first;
        w->active_end = w->inbox_end;
        w->inbox = NULL;
        w->inbox_end = &w->inbox;
    }
    if (job) {
        *w->doing_end = job;
        w->doing_end = w->jobs_end;
        w->jobs = NULL;
        w->jobs_end = &w->jobs;
    }
    pthread_mutex_unlock(&w->lock);
    for (reply *g = first; g; g = g->next)
        for (size_t i = 0; i < g->choice_count; i++)
            if (!g->failed && atomic_load(&g->client) == REPLY_HERE)
                start_choice(w, &g->choices[i]);
    return more;
}

/* ---- letting go ----------------------------------------------------------------------------------- */

/* A request whose client has gone, or that failed, is not computed any further. */
static void end_unwanted(worker *w, reply *g, bool cutting)
{
    int client = atomic_load(&g->client);
    if (client == REPLY_GONE)
        reply_fail(g, 499, "the client has gone");
    else if (client == REPLY_LATE)
        reply_fail(g, 504, "the request took longer than this server allows");
    else if (cutting)
        reply_fail(g, 503, "the server is shutting down");
    for (size_t i = 0; i < g->choice_count && g->failed; i++) {
        choice *c = &g->choices[i];
        if (!c->ended && c->added)
            tn_engine_cancel(w->engine, c->engine_id);
        if (!c->ended)
            choice_abandon(c);
    }
}

static void sweep(worker *w)
{
    bool cutting = worker_cutting(w);
    for (reply **at = &w->active; *at;) {
        reply *g = *at;
        end_unwanted(w, g, cutting);
        if (g->ended < g->choice_count) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        if (!*at)
            w->active_end = at;
        size_t sequences = g->choice_count;
        reply_finish(g);
        reply_free(g);
        worker_release(w, sequences);
    }
}

static void do_jobs(worker *w)
{
    for (worker_job **at = &w->doing; *at;) {
        worker_job *next = (*at)->next;
        if ((*at)->run(*at)) {
            at = &(*at)->next;
            continue;
        }
        *at = next;
        if (!next)
            w->doing_end = at;
    }
}

/* ---- the thread ----------------------------------------------------------------------------------- */

static void tell(worker *w)
{
    tn_engine_info info = {.size = sizeof info};
    if (!w->engine || tn_engine_get_info(w->engine, &info) != TN_OK)
        return;
    pthread_mutex_lock(&w->lock);
    int64_t waiting = w->sequences - info.running;
    pthread_mutex_unlock(&w->lock);
    metrics_now now = {.running = info.running,
                       .waiting = waiting > 0 ? waiting : 0,
                       .steps = info.steps,
                       .preempted = info.preempted,
                       .prefix_queries = info.prefix_queries,
                       .prefix_hits = info.prefix_hits,
                       .cache_used = info.cache_bytes > 0 ? (double)info.cache_held / (double)info.cache_bytes : 0};
    metrics_set_now(&w->api->metrics, &now);
}

static void *work(void *ctx)
{
    worker *w = ctx;
    bool more = false;
    while (take_in(w, more)) {
        do_jobs(w);
        sweep(w);
        /* An error of the step has ended those that took part in it, which have been told so. */
        if (w->engine && tn_engine_step(w->engine, &more, NULL) != TN_OK)
            more = true;
        sweep(w);
        tell(w);
    }
    return NULL;
}

/* Signals are for the thread that waits for them. */
static int start_thread(worker *w)
{
    sigset_t all, before;
    sigfillset(&all);
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static bool start_conditions(worker *w)
{
    pthread_condattr_t monotonic;
    if (pthread_mutex_init(&w->lock, NULL) != 0)
        return false;
    if (pthread_condattr_init(&monotonic) == 0) {
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        bool good = pthread_cond_init(&w->wake, NULL) == 0;
        if (good && pthread_cond_init(&w->idle, &monotonic) != 0) {
            pthread_cond_destroy(&w->wake);
            good = false;
        }
        pthread_condattr_destroy(&monotonic);
        if (good)
            return true;
    }
    pthread_mutex_destroy(&w->lock);
    return false;
}

static void end_conditions(worker *w)
{
    pthread_cond_destroy(&w->wake);
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->lock);
}

/* Of a model that only makes vectors there is none. */
static bool make_engine(worker *w, const tn_engine_options *options, tn_error *err)
{
    api *a = w->api;
    w->engine = tn_engine_new(a->model, options, err);
    if (w->engine)
        return tn_engine_get_info(w->engine, &w->info) == TN_OK;
    if (!a->embedder || err->code != TN_E_INPUT)
        return false;
    a->silent = *err;
    tn_error_clear(err);
    w->info.sequences = 1;
    w->info.context = a->info.max_positions;
    return true;
}

worker *worker_new(api *a, const tn_engine_options *options, int64_t queue, tn_error *err)
{
    worker *w = calloc(1, sizeof *w);
    if (!w || !start_conditions(w)) {
        free(w);
        tn_fail(err, TN_E_MEMORY, "serve", "out of memory");
        return NULL;
    }
    w->api = a;
    w->inbox_end = &w->inbox;
    w->jobs_end = &w->jobs;
    w->active_end = &w->active;
    w->doing_end = &w->doing;
    w->info.size = sizeof w->info;
    bool made = make_engine(w, options, err);
    w->room = w->info.sequences + queue;
    a->context = w->info.context;
    if (made)
        tell(w);
    int failed = made ? start_thread(w) : 0;
    if (made && !failed)
        return w;
    if (failed)
        tn_fail(err, TN_E_MEMORY, "serve", "no thread can be started: %s", strerror(failed));
    tn_engine_free(w->engine);
    end_conditions(w);
    free(w);
    return NULL;
}

/* ---- the end -------------------------------------------------------------------------------------- */

void worker_stop(worker *w, double drain_seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    drain_seconds = drain_seconds > 0 ? drain_seconds < 1e6 ? drain_seconds : 1e6 : 0;
    until.tv_sec += (time_t)drain_seconds;
    until.tv_nsec += (long)((drain_seconds - (double)(time_t)drain_seconds) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    int waited = 0;
    while (w->requests > 0 && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&w->idle, &w->lock, &until);
    w->cutting = true;
    pthread_cond_signal(&w->wake);
    while (w->requests > 0)
        pthread_cond_wait(&w->idle, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

void worker_free(worker *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopped = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    tn_engine_free(w->engine);
    end_conditions(w);
    free(w);
}
