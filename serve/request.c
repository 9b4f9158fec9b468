/* Reading the members of a request's body. */
#include "request.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory that jansson lacked ------------------------------------------------------------------- */

static _Thread_local bool lost;
static json_malloc_t allocate;

static void *watched(size_t size)
{
    void *memory = allocate(size);
    lost = lost || !memory;
    return memory;
}

static void put_around(void)
{
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(watched, release);
}

void request_watch_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, put_around);
}

bool request_had_memory(request_error *e)
{
    if (!lost)
        return true;
    *e = (request_error){0};
    return request_no_memory(e);
}

/* ---- what is wrong ---------------------------------------------------------------------------- */

bool request_refuse(request_error *e, int status, const char *param, const char *format, ...)
{
    if (e->status)
        return false;
    va_list values;
    va_start(values, format);
    vsnprintf(e->message, sizeof e->message, format, values);
    va_end(values);
    /* A text that was cut must end in a whole character. */
    size_t end = strlen(e->message);
    for (size_t back = 1; end == sizeof e->message - 1 && back <= 4 && back <= end; back++) {
        unsigned char c = (unsigned char)e->message[end - back];
        if (c < 0x80)
            break;
        if (c >= 0xC0) {
            e->message[end - back] = '\0';
            break;
        }
    }
    for (char *c = e->message; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    e->status = status;
    return false;
}

bool request_no_memory(request_error *e)
{
    return request_refuse(e, 500, NULL, "out of memory");
}

bool request_failed(request_error *e, const char *param, const tn_error *err)
{
    bool theirs = err->code == TN_E_INPUT || err->code == TN_E_USAGE;
    return request_refuse(e, theirs ? 400 : 500, param, "%s", err->message[0] ? err->message : "it failed");
}

void request_answer(exchange *x, request_error *e)
{
    request_had_memory(e);
    int status = e->status ? e->status : 500;
    if (status == 429 || status == 503)
        exchange_header(x, "Retry-After", status == 429 ? "1" : "5");
    exchange_error(x, status, e->param[0] ? e->param : NULL, "%s", e->message);
    lost = false;
}

json_t *request_parse(exchange *x, request_error *e)
{
    size_t length = 0;
    const char *body = exchange_body(x, &length);
    json_error_t at;
    lost = false;
    json_t *root = json_loadb(body ? body : "", length, JSON_ALLOW_NUL, &at);
    if (!root) {
        /* What jansson says quotes the text near the place, of which the first line is enough and the rest is cut. */
        if (request_had_memory(e))
            request_refuse(e, 400, NULL, "the body is not valid JSON: line %d, column %d: %.100s", at.line, at.column,
                           at.text);
        return NULL;
    }
    if (json_is_object(root))
        return root;
    json_decref(root);
    request_refuse(e, 400, NULL, "the body must be a JSON object");
    return NULL;
}

/* ---- members ---------------------------------------------------------------------------------- */

json_t *request_member(const json_t *body, const char *name)
{
    json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

double request_real(const json_t *body, const char *name, double low, double high, double otherwise, request_error *e)
{
    const json_t *value = request_member(body, name);
    if (!value)
        return otherwise;
    double number = json_number_value(value);
    if (!json_is_number(value))
        request_refuse(e, 400, name, "%s must be a number", name);
    else if (!(number >= low && number <= high))
        request_refuse(e, 400, name, "%s must be between %g and %g", name, low, high);
    else
        return number;
    return otherwise;
}

bool request_whole(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double number = json_real_value(value);
    if (!json_is_real(value) || number != floor(number) || fabs(number) > 9007199254740992.0)
        return false;
    *out = (int64_t)number;
    return true;
}

int64_t request_integer(const json_t *body, const char *name, int64_t low, int64_t high, int64_t otherwise,
                        request_error *e)
{
    const json_t *value = request_member(body, name);
    int64_t number;
    if (!value)
        return otherwise;
    if (!request_whole(value, &number))
        request_refuse(e, 400, name, "%s must be an integer", name);
    else if (number < low)
        request_refuse(e, 400, name, "%s must be at least %lld", name, (long long)low);
    else if (number > high)
        request_refuse(e, 400, name, "%s must be at most %lld", name, (long long)high);
    else
        return number;
    return otherwise;
}

bool request_flag(const json_t *body, const char *name, bool otherwise, request_error *e)
{
    const json_t *value = request_member(body, name);
    if (value && !json_is_boolean(value))
        request_refuse(e, 400, name, "%s must be true or false", name);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

const char *request_text(const json_t *body, const char *name, const char *otherwise, request_error *e)
{
    const json_t *value = request_member(body, name);
    if (value && !json_is_string(value))
        request_refuse(e, 400, name, "%s must be a string", name);
    return json_is_string(value) ? json_string_value(value) : otherwise;
}

int64_t *request_ids(const json_t *list, const char *name, int64_t vocab, size_t *count, request_error *e)
{
    size_t n = json_array_size(list);
    int64_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) {
        request_no_memory(e);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        if (request_whole(json_array_get(list, i), &ids[i]) && ids[i] >= 0 && ids[i] < vocab)
            continue;
        request_refuse(e, 400, name, "%s[%zu] must be a token id, 0 to %lld", name, i, (long long)vocab - 1);
        free(ids);
        return NULL;
    }
    *count = n;
    return ids;
}
