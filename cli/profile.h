/* tenon bench: where the time goes. profile.c records the calls of one run of each case, profile_rows.c adds them up by
 * operation and kernel; profile_print.c, trace.c and roofline.c show them. */
#ifndef TENON_CLI_PROFILE_H
#define TENON_CLI_PROFILE_H

#include "bench.h"

/* Of one case: the run whose time is the median of some. */
typedef struct profile_run {
    tn_event *calls;
    size_t count, capacity;
    int64_t messages, message_bytes; /* of a model of several ranks: between them, in that run           */
    double message_seconds;
    double began, seconds; /* less what was spent on recording                                    */
    double recording;
    bool failed; /* out of memory                                                               */
} profile_run;

typedef struct profile {
    profile_run run[MAX_CASES];
    FILE *trace, *plot; /* or NULL                                                              */
    const options *options;
} profile;

/* Opens the files that were asked for, so that a wrong name is told before anything is measured. */
tn_status profile_open(profile *p, const options *o, tn_error *err);
bool profile_wanted(const profile *p);
void profile_close(profile *p);

/* Runs every case of the bench with what is applied, and keeps what was performed. */
tn_status profile_measure(profile *p, const bench *b, tn_session *session, tn_error *err);

/* Writes the trace and draws the plot, where they were asked for. */
tn_status profile_write(profile *p, const bench *b, const tn_machine *m, tn_error *err);

/* ---- adding up: profile_rows.c -------------------------------------------------------------------------------- */

/* The least time that a call can take on this machine, with the threads in use: that of its bytes at the rate that
 * memory is read at, or that of its operations on the fastest arithmetic for their type, whichever is longer. */
typedef struct profile_limit {
    double memory, arithmetic; /* seconds                                                       */
    const char *by;            /* "mem", or the arithmetic: "f32", "bf16", "amx"                 */
} profile_limit;

profile_limit profile_limit_of(const tn_machine *m, tn_dtype dtype, double bytes, double operations);

/* The calls of one operation by one kernel. */
typedef struct profile_row {
    const char *op, *kernel; /* kernel NULL: eager                                               */
    char module[96];         /* "model.layers.*.mlp"; empty unless modules are told apart          */
    int64_t calls;
    double seconds, bytes, operations;
    double least, least_memory; /* seconds: of all calls, and of those that memory limits          */
    const char *by;             /* the arithmetic of the others                                   */
} profile_row;

/* Rows, the longest time first. Owned: free(). NULL: no memory. */
profile_row *profile_rows(const profile_run *run, const tn_machine *m, bool modules, size_t *count);

/* What lies between the calls, but for messages between ranks. */
double profile_between(const profile_run *run);

/* "mem" or the arithmetic, whichever limits more of the row's time. */
const char *profile_row_by(const profile_row *row);

/* "prompt of 128 tokens" in buffer, which is returned. */
const char *profile_case_name(const bench_case *c, char buffer[96]);

/* ---- showing ---------------------------------------------------------------------------------- */

tn_status profile_print(const bench *b, const tn_machine *m, tn_error *err);         /* profile_print.c */
json_t *profile_json(const bench *b, const tn_machine *m);                           /* profile_print.c */
tn_status trace_write(FILE *to, const bench *b, const tn_machine *m, tn_error *err); /* trace.c     */

tn_status roofline_draw(FILE *to, const bench *b, const tn_machine *m, tn_error *err); /* roofline.c */

#endif
