/* Recording the calls of a run, and adding them up. */
#include "profile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ------------------------------------------------------------------------------------- */

static tn_status open_file(const options *o, option_id id, const char *name, FILE **file, tn_error *err)
{
    if (!option_given(o, id))
        return TN_OK;
    *file = fopen(o->text[id], "we");
    return *file ? TN_OK
                 : tn_fail(err, TN_E_INPUT, o->text[id], "cannot be written: %s; give %s another file", strerror(errno),
                           name);
}

tn_status profile_open(profile *p, const options *o, tn_error *err)
{
    const char *by = option_text(o, OPT_PROFILE, "");
    p->options = o;
    if (*by && strcmp(by, "modules") != 0)
        return tn_fail(err, TN_E_USAGE, o->command->name, "--profile: unknown value '%s'; choose modules, or give none",
                       by);
    tn_status status = option_given(o, OPT_PLOT) ? roofline_check(err) : TN_OK;
    if (status == TN_OK)
        status = open_file(o, OPT_TRACE, "--trace", &p->trace, err);
    return status == TN_OK ? open_file(o, OPT_PLOT, "--plot", &p->plot, err) : status;
}

bool profile_wanted(const profile *p)
{
    return option_given(p->options, OPT_PROFILE) || p->trace || p->plot;
}

/* Closes what was written; a full disk shows only here. */
static tn_status finish(FILE **file, const char *name, tn_status status, tn_error *err)
{
    bool failed = ferror(*file);
    failed = fclose(*file) != 0 || failed;
    *file = NULL;
    if (status == TN_OK && failed)
        return tn_fail(err, TN_E_INTERNAL, name, "cannot be written to its end: %s; free space or write elsewhere",
                       strerror(errno));
    return status;
}

tn_status profile_write(profile *p, const bench *b, const tn_machine *m, tn_error *err)
{
    tn_status status = TN_OK;
    if (p->trace)
        status = finish(&p->trace, p->options->text[OPT_TRACE], trace_write(p->trace, b, m, err), err);
    if (status == TN_OK && p->plot)
        status = finish(&p->plot, p->options->text[OPT_PLOT], roofline_draw(p->plot, b, m, err), err);
    return status;
}

static void free_run(profile_run *run)
{
    free(run->calls);
    *run = (profile_run){0};
}

void profile_close(profile *p)
{
    for (size_t c = 0; c < MAX_CASES; c++)
        free_run(&p->run[c]);
    if (p->trace)
        fclose(p->trace);
    if (p->plot)
        fclose(p->plot);
    p->trace = p->plot = NULL;
}

/* ---- recording --------------------------------------------------------------------------------- */

/* What this takes lies between two calls, and is taken off again. */
static void record(void *ctx, const tn_event *event)
{
    profile_run *run = ctx;
    if (run->count == run->capacity && !run->failed) {
        size_t capacity = run->capacity ? 2 * run->capacity : 4096;
        tn_event *calls = realloc(run->calls, capacity * sizeof *calls);
        run->failed = !calls;
        run->calls = calls ? calls : run->calls;
        run->capacity = calls ? capacity : run->capacity;
    }
    if (!run->failed)
        run->calls[run->count++] = *event;
    run->recording += seconds_now() - event->end;
}

static tn_status record_run(profile_run *run, const bench *b, const bench_case *c, tn_session *session, tn_error *err)
{
    *run = (profile_run){0};
    tn_status status = bench_begin_case(b, session, c, err);
    if (status == TN_OK)
        status = tn_session_observe(session, record, run, err);
    if (status != TN_OK)
        return status;
    run->began = seconds_now();
    status = bench_run_case(b, session, c, err);
    run->seconds = seconds_now() - run->began - run->recording;
    tn_session_observe(session, NULL, NULL, NULL);
    return status == TN_OK && run->failed ? tn_fail(err, TN_E_MEMORY, "bench", "out of memory; profile shorter cases")
                                          : status;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const profile_run *)a)->seconds, y = ((const profile_run *)b)->seconds;
    return (x > y) - (x < y);
}

/* As many runs as were timed, of which the one in the middle is kept: its parts add up to what it took. */
static tn_status measure_case(profile_run *kept, const bench *b, size_t c, tn_session *session, tn_error *err)
{
    size_t count = (size_t)bench_samples(b, c), done = 0;
    profile_run *runs = calloc(count, sizeof *runs);
    if (!runs)
        return tn_fail(err, TN_E_MEMORY, "bench", "out of memory; lower --repeat");
    tn_status status = TN_OK;
    while (done < count && status == TN_OK)
        status = record_run(&runs[done++], b, &b->cases[c], session, err);
    qsort(runs, done, sizeof *runs, by_seconds);
    *kept = runs[(done - 1) / 2];
    runs[(done - 1) / 2] = (profile_run){0};
    for (size_t i = 0; i < done; i++)
        free_run(&runs[i]);
    free(runs);
    return status;
}

tn_status profile_measure(profile *p, const bench *b, tn_session *session, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t c = 0; c < b->case_count && status == TN_OK; c++)
        status = measure_case(&p->run[c], b, c, session, err);
    return status;
}

/* ---- adding up --------------------------------------------------------------------------------- */

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
    double seconds = run->seconds;
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
