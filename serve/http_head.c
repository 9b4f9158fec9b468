/* The head of a request: can it be read in one way only, and may who sent it ask? libmicrohttpd has taken it apart, and
 * bears more than others on the way may bear, who then see other requests in the same bytes. */
#include "http_state.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- one way to read it --------------------------------------------------------------------------- */

typedef struct head {
    exchange *x;
    int lengths, codings, hosts;
    bool odd, lost; /* lost: no memory                                                               */
} head;

static bool is_in(const char *text, size_t length, const char *others)
{
    for (size_t i = 0; i < length; i++) {
        bool alphanumeric = (text[i] >= '0' && text[i] <= '9') || ((text[i] | 32) >= 'a' && (text[i] | 32) <= 'z');
        if (!alphanumeric && (!text[i] || !strchr(others, text[i])))
            return false;
    }
    return length > 0;
}

/* What HTTP calls a token: without blanks, above all. */
static bool is_token(const char *text, size_t length)
{
    return is_in(text, length, "!#$%&'*+-.^_`|~");
}

static bool has_controls(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (((unsigned char)text[i] < ' ' && text[i] != '\t') || text[i] == 0x7f)
            return true;
    return false;
}

/* Who answers may look at it when the connection is gone. */
static bool keep(exchange *x, const char *name, const char *value)
{
    size_t name_size = strlen(name) + 1, value_size = strlen(value) + 1;
    size_t length = x->head_length + name_size + value_size;
    if (length > x->head_capacity) {
        char *more = realloc(x->head, 2 * length);
        if (!more)
            return false;
        x->head = more;
        x->head_capacity = 2 * length;
    }
    memcpy(x->head + x->head_length, name, name_size);
    memcpy(x->head + x->head_length + name_size, value, value_size);
    x->head_length = length;
    return true;
}

static enum MHD_Result look_at(void *ctx, enum MHD_ValueKind kind, const char *name, size_t name_size,
                               const char *value, size_t value_size)
{
    head *h = ctx;
    (void)kind;
    value = value ? value : "";
    h->lost |= !keep(h->x, name, value);
    h->odd |= !is_token(name, name_size) || has_controls(value, value_size);
    if (strcasecmp(name, "Content-Length") == 0) {
        h->lengths++;
        h->odd |= value_size == 0 || strspn(value, "0123456789") != value_size;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->codings++;
        h->odd |= value_size == 0 || strcasecmp(value, "chunked") != 0;
    } else if (strcasecmp(name, "Host") == 0) {
        h->hosts++;
    }
    return MHD_YES;
}

/* Who says twice how long a body is may mean to hide a second request in it. */
static bool is_ambiguous(const head *h)
{
    return h->odd || h->lengths > 1 || h->codings > 1 || h->hosts > 1 || (h->lengths && h->codings);
}

/* ---- who may ask ---------------------------------------------------------------------------------- */

static bool is_address(const char *name)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

/* A page from elsewhere whose name was made to point here says its own name. Where others than this machine can ask
 * anyway, under names that nobody here knows, keys are what protects. */
static bool is_own_host(const http *h, const char *host)
{
    char name[256];
    if (!h->local || !host)
        return true;
    if (snprintf(name, sizeof name, "%s", host) >= (int)sizeof name)
        return false;
    char *end = name[0] == '[' ? strchr(name, ']') : strrchr(name, ':');
    const char *port = end && *end == ']' ? end + 1 : end;
    if ((name[0] == '[' && !end) ||
        (port && *port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1))))
        return false;
    if (end)
        *end = '\0';
    const char *bare = name + (name[0] == '[');
    return strcasecmp(bare, "localhost") == 0 || strcasecmp(bare, h->options.host) == 0 || is_address(bare);
}

static bool is_public(const exchange *x)
{
    return strcmp(x->path, "/health") == 0 || strcmp(x->path, "/") == 0;
}

static bool is_too_long(const http *h, const char *length)
{
    return length && strtoull(length, NULL, 10) > h->options.body_bytes; /* a number, and what overflows is large */
}

int http_read_head(exchange *x)
{
    const http *h = x->http;
    head found = {.x = x};
    MHD_get_connection_values_n(x->connection, MHD_HEADER_KIND, look_at, &found);
    if (x->line->odd_path || is_ambiguous(&found))
        return 400;
    if (found.lost)
        return 503;
    if (!is_own_host(h, exchange_header_of(x, "Host")))
        return 421;
    if (strcmp(x->method, "OPTIONS") == 0)
        return 204;
    if (!is_public(x) &&
        !keys_match(&h->keys, exchange_header_of(x, "Authorization"), exchange_header_of(x, "X-Api-Key")))
        return 401;
    return is_too_long(h, exchange_header_of(x, "Content-Length")) ? 413 : 0;
}

/* ---- pages from elsewhere ------------------------------------------------------------------------- */

static bool may_read(const http *h, const char *from)
{
    for (size_t i = 0; from && i < h->options.origin_count; i++)
        if (strcmp(h->options.origins[i], "*") == 0 || strcmp(h->options.origins[i], from) == 0)
            return true;
    return false;
}

/* Clients of OpenAI's make send headers of their own, which a browser asks about by name. */
static const char *allowed_headers(const exchange *x)
{
    const char *asked = exchange_header_of(x, "Access-Control-Request-Headers");
    return asked && is_in(asked, strlen(asked), "-_, ") ? asked : "authorization, content-type, x-api-key";
}

void http_share(const exchange *x, struct MHD_Response *r)
{
    const char *from = exchange_header_of(x, "Origin");
    if (x->http->options.origin_count == 0)
        return;
    MHD_add_response_header(r, "Vary", "Origin");
    if (!may_read(x->http, from))
        return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", from);
    MHD_add_response_header(r, "Access-Control-Expose-Headers", "x-request-id, retry-after");
    if (strcmp(x->method, "OPTIONS") != 0)
        return;
    MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    MHD_add_response_header(r, "Access-Control-Allow-Headers", allowed_headers(x));
    MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    if (exchange_header_of(x, "Access-Control-Request-Private-Network"))
        MHD_add_response_header(r, "Access-Control-Allow-Private-Network", "true");
}
