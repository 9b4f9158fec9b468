/* Adding up the calls of a run, by operation and kernel. */
#include "profile.h"

#include <stdlib.h>
#include <string.h>

profile_limit profile_limit_of(const tn_machine *m, tn_dtype dtype, double bytes, double operations)
{
    double rate = m->f32[1];
    profile_limit limit = {.by = "f32"};
    if (dtype == TN_BF16 && m->bf16[1] > rate) {
        rate = m->bf16[1];
        limit.by = "bf16";
    }
    if (dtype == TN_BF16 && m->amx_bf16[1] > rate) {
        rate = m->amx_bf16[1];
        limit.by = "amx";
    }
    limit.memory = m->read[1] > 0 ? bytes / m->read[1] : 0;
    limit.arithmetic = rate > 0 ? operations / rate : 0;
    if (limit.memory >= limit.arithmetic)
        limit.by = "mem";
    return limit;
}

/* The path with a star for the number of the layer or expert. */
static void fold_numbers(const char *path, char *to, size_t size)
{
    size_t used = 0;
    for (const char *at = path; *at && used + 2 < size;) {
        size_t length = strcspn(at, ".");
        bool number = length > 0 && strspn(at, "0123456789") >= length;
        used += (size_t)snprintf(to + used, size - used, "%.*s%s", (int)(number ? 1 : length), number ? "*" : at,
                                 at[length] ? "." : "");
        at += length + (at[length] == '.');
    }
}

static bool is_same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static profile_row *find_row(profile_row *rows, size_t *count, const profile_row *like)
{
    for (size_t i = 0; i < *count; i++)
        if (is_same(rows[i].op, like->op) && is_same(rows[i].kernel, like->kernel) &&
            strcmp(rows[i].module, like->module) == 0)
            return &rows[i];
    rows[*count] = *like;
    return &rows[(*count)++];
}

static void add_call(profile_row *row, const tn_event *e, const tn_machine *m)
{
    profile_limit limit = profile_limit_of(m, e->dtype, e->bytes, e->operations);
    bool memory = limit.memory >= limit.arithmetic;
    row->calls++;
    row->seconds += e->end - e->begin;
    row->bytes += e->bytes;
    row->operations += e->operations;
    row->least += memory ? limit.memory : limit.arithmetic;
    row->least_memory += memory ? limit.memory : 0;
    if (!memory)
        row->by = limit.by;
}

static int longest_first(const void *a, const void *b)
{
    double x = ((const profile_row *)a)->seconds, y = ((const profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

profile_row *profile_rows(const profile_run *run, const tn_machine *m, bool modules, size_t *count)
{
    size_t capacity = 0;
    profile_row *rows = NULL;
    *count = 0;
    for (size_t i = 0; i < run->count; i++) {
        const tn_event *e = &run->calls[i];
        profile_row like = {.op = tn_op_name(e->op), .kernel = e->kernel, .by = "mem"};
        if (*count == capacity) {
            profile_row *more = realloc(rows, (capacity = 2 * capacity + 16) * sizeof *rows);
            if (!more) {
                free(rows);
                return NULL;
            }
            rows = more;
        }
        if (modules && e->path)
            fold_numbers(e->path, like.module, sizeof like.module);
        add_call(find_row(rows, count, &like), e, m);
    }
    if (rows)
        qsort(rows, *count, sizeof *rows, longest_first);
    return rows ? rows : calloc(1, sizeof *rows);
}

double profile_between(const profile_run *run)
{
    double seconds = run->seconds - run->message_seconds;
    for (size_t i = 0; i < run->count; i++)
        seconds -= run->calls[i].end - run->calls[i].begin;
    return seconds > 0 ? seconds : 0;
}

const char *profile_row_by(const profile_row *row)
{
    return 2 * row->least_memory >= row->least ? "mem" : row->by;
}

const char *profile_case_name(const bench_case *c, char buffer[96])
{
    if (c->decode)
        snprintf(buffer, 96, "decode %lld tokens behind %lld", (long long)c->tokens, (long long)c->context);
    else
        snprintf(buffer, 96, "prompt of %lld token%s", (long long)c->tokens, c->tokens == 1 ? "" : "s");
    return buffer;
}
