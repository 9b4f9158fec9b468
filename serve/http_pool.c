/* The threads on which the handler is called of requests with a body: to read a long one, with all its tokens, takes
 * seconds, in which the threads of connections go on with others. Long ones never have all of them. */
#include "http_state.h"

#include <string.h>

static bool holds(const exchange *x, const char *words)
{
    return x->body && memmem(x->body, x->body_length, words, strlen(words));
}

/* A picture, which may be large in a small file, takes as long as many tokens. */
static bool is_long(const exchange *x)
{
    return x->body_length > POOL_LONG_BODY || holds(x, "image_url") || holds(x, "input_audio");
}

/* With the lock. Of the long ones the first goes before the short ones, so that these never keep it waiting for ever.
 * NULL: nothing may be begun now. */
static exchange *take(pool *p)
{
    int most = p->first[0] ? 1 : POOL_THREADS / 2, kind = p->first[1] && p->long_running < most;
    exchange *x = p->first[kind];
    if (!x)
        return NULL;
    p->first[kind] = x->next_in_pool;
    if (!p->first[kind])
        p->last[kind] = NULL;
    p->long_running += kind;
    return x;
}

static void call(http *h, exchange *x)
{
    exchange_handler *handler = atomic_load(&h->handler);
    if (exchange_is_gone(x))
        exchange_answer(x, 499, "text/plain", "", 0);
    else
        handler(atomic_load(&h->ctx), x);
}

static void *work(void *http_)
{
    http *h = http_;
    pool *p = &h->pool;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        exchange *x = take(p);
        if (!x && p->closing)
            break;
        if (!x) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        int kind = x->is_long;
        pthread_mutex_unlock(&p->lock);
        call(h, x);
        pthread_mutex_lock(&p->lock);
        p->long_running -= kind;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void pool_add(http *h, exchange *x)
{
    pool *p = &h->pool;
    int kind = x->is_long = is_long(x);
    pthread_mutex_lock(&p->lock);
    bool closing = p->closing;
    if (!closing) {
        x->next_in_pool = NULL;
        *(p->last[kind] ? &p->last[kind]->next_in_pool : &p->first[kind]) = x;
        p->last[kind] = x;
        pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    if (closing) /* its handler has ended, and refuses                                                    */
        call(h, x);
}

tn_status pool_open(http *h, tn_error *err)
{
    pool *p = &h->pool;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (p->opened = true; p->threads < POOL_THREADS; p->threads++)
        if (pthread_create(&p->thread[p->threads], NULL, work, h) != 0)
            return tn_fail(err, TN_E_MEMORY, "http", "a thread cannot be started");
    return TN_OK;
}

void pool_close(http *h)
{
    pool *p = &h->pool;
    if (!p->opened)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    while (p->threads > 0)
        pthread_join(p->thread[--p->threads], NULL);
}

void pool_free(http *h)
{
    if (!h->pool.opened)
        return;
    pthread_cond_destroy(&h->pool.changed);
    pthread_mutex_destroy(&h->pool.lock);
}
