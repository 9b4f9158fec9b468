/* Recording the calls of a run, and showing what they add up to. */
#include "profile.h"

#include "gnuplot.h"

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
    tn_status status = option_given(o, OPT_PLOT) ? gnuplot_check(err) : TN_OK;
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
    tn_model_info before = {.size = sizeof before}, after = {.size = sizeof after};
    tn_model_get_info(b->w.model, &before);
    run->began = seconds_now();
    status = bench_run_case(b, session, c, err);
    run->seconds = seconds_now() - run->began - run->recording;
    tn_model_get_info(b->w.model, &after);
    run->messages = after.messages - before.messages;
    run->message_bytes = after.message_bytes - before.message_bytes;
    run->message_seconds = after.message_seconds - before.message_seconds;
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
