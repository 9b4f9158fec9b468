/* Bodies of requests, which are kept whole: each is bounded, and so are all together. */
#include "http_state.h"

#include <stdlib.h>
#include <string.h>

/* How many of the largest size have room at a time. */
enum { BODIES = 16 };

static bool grow(exchange *x, size_t needed)
{
    http *h = x->http;
    size_t most = h->options.body_bytes + 1, capacity = 2 * needed < most ? 2 * needed : most;
    size_t more = capacity - x->body_capacity;
    char *body = NULL;
    if (atomic_fetch_add(&h->bodies, more) + more <= BODIES * most)
        body = realloc(x->body, capacity);
    if (!body) {
        atomic_fetch_sub(&h->bodies, more);
        return false;
    }
    x->body = body;
    x->body_capacity = capacity;
    return true;
}

void body_drop(exchange *x)
{
    atomic_fetch_sub(&x->http->bodies, x->body_capacity);
    free(x->body);
    x->body = NULL;
    x->body_capacity = x->body_length = 0;
}

void body_take(exchange *x, const char *data, size_t length)
{
    size_t needed = x->body_length + length + 1;
    if (!x->refused && length > x->http->options.body_bytes - x->body_length)
        x->refused = 413;
    else if (!x->refused && needed > x->body_capacity && !grow(x, needed))
        x->refused = 503;
    if (x->refused) {
        body_drop(x);
        return;
    }
    memcpy(x->body + x->body_length, data, length);
    x->body_length += length;
    x->body[x->body_length] = '\0';
}
