/* tenon bench --trace: trace events as Chrome and Perfetto read them. One slice for each call, a thread for each case.
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU has the format. */
#include "profile.h"

/* Names of processes and threads are events, too. */
static json_t *name_event(const char *what, size_t thread, const char *name)
{
    return json_pack("{s:s, s:s, s:i, s:I, s:{s:s}}", "name", what, "ph", "M", "pid", 1, "tid", (json_int_t)thread,
                     "args", "name", name);
}

static json_t *slice(const tn_event *e, size_t thread, double zero, const tn_machine *m)
{
    profile_limit limit = profile_limit_of(m, e->dtype, e->bytes, e->operations);
    double seconds = e->end - e->begin;
    double least = limit.memory > limit.arithmetic ? limit.memory : limit.arithmetic;
    const char *op = tn_op_name(e->op), *path = e->path && *e->path ? e->path : op;
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:i, s:I, s:{s:s, s:s, s:s?, s:I, s:s, s:o, s:o, s:o, s:s}}", "name",
                     path, "cat", op, "ph", "X", "ts", json_number((e->begin - zero) * 1e6), "dur",
                     json_number(seconds * 1e6), "pid", 1, "tid", (json_int_t)thread, "args", "op", op, "kernel",
                     e->kernel ? e->kernel : "eager", "module", e->path, "tokens", (json_int_t)e->tokens, "dtype",
                     tn_dtype_name(e->dtype), "bytes", json_number(e->bytes), "flops", json_number(e->operations),
                     "of_limit", seconds > 0 ? json_number(least / seconds) : json_null(), "limited_by", limit.by);
}

/* Events one by one: a long run has hundreds of thousands. event is taken. */
static tn_status write_event(FILE *to, json_t *event, bool last, tn_error *err)
{
    if (!event || json_lost()) {
        json_decref(event);
        return tn_fail(err, TN_E_MEMORY, "--trace", "out of memory; trace shorter cases");
    }
    json_dumpf(event, to,
               JSON_COMPACT | JSON_REAL_PRECISION(12)); /* who closes the file asks whether all came through */
    json_decref(event);
    if (json_lost())
        return tn_fail(err, TN_E_MEMORY, "--trace", "out of memory; trace shorter cases");
    fputs(last ? "\n" : ",\n", to);
    return TN_OK;
}

static tn_status write_case(FILE *to, const bench *b, size_t c, const tn_machine *m, tn_error *err)
{
    const profile_run *run = &b->profile->run[c];
    char name[96];
    tn_status status =
        write_event(to, name_event("thread_name", c + 1, profile_case_name(&b->cases[c], name)), false, err);
    for (size_t i = 0; i < run->count && status == TN_OK; i++)
        status = write_event(to, slice(&run->calls[i], c + 1, run->began, m), false, err);
    return status;
}

tn_status trace_write(FILE *to, const bench *b, const tn_machine *m, tn_error *err)
{
    char name[640];
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", to);
    tn_status status = TN_OK;
    for (size_t c = 0; c < b->case_count && status == TN_OK; c++)
        status = write_case(to, b, c, m, err);
    snprintf(name, sizeof name, "tenon %s, %s", tn_version(), b->side[0].summary);
    if (status == TN_OK)
        status = write_event(to, name_event("process_name", 0, name), true, err);
    fputs("]}\n", to);
    return status;
}
