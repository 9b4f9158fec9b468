/* tenon bench: what its files share. bench.c measures, case by case (bench_case.c), bench_print.c prints, profile.c
 * looks at what one run is made of. */
#ifndef TENON_CLI_BENCH_H
#define TENON_CLI_BENCH_H

#include "cli.h"

#define MAX_CASES 17
/* A case that takes less is measured several times in each turn. */
#define TURN_SECONDS 0.05
#define TURN_SAMPLES 16

/* What is measured: a prompt of this many tokens, or so many steps of one token behind a context. */
typedef struct bench_case {
    bool decode;
    int64_t tokens, context, samples; /* samples: measurements of one turn                      */
} bench_case;

typedef struct bench_side {
    const char *spec;
    double *seconds; /* [cases, repeat * TURN_SAMPLES], the first repeat * samples of each      */
    int64_t packed_bytes;
    char summary[512];
} bench_side;

typedef struct bench {
    workspace w;
    bench_case cases[MAX_CASES];
    size_t case_count;
    int64_t repeat, positions; /* positions that the longest case needs                         */
    int64_t *ids;              /* [positions]                                                   */
    float *logits;             /* [vocab]                                                       */
    bench_side side[2];
    size_t cache_bytes, arena_bytes;
    int64_t done, total;     /* for the progress bar                                                */
    struct profile *profile; /* NULL: not wanted                                                */
} bench;

/* A case in two parts: from an empty session to where its time begins, and what is timed. */
tn_status bench_begin_case(const bench *b, tn_session *session, const bench_case *c, tn_error *err);
tn_status bench_run_case(const bench *b, tn_session *session, const bench_case *c, tn_error *err);

/* What the measurements of a case took on one side, and how many there are. */
double *bench_times(const bench *b, const bench_side *side, size_t c);
int64_t bench_samples(const bench *b, size_t c);

/* Sorts the measurements and prints them, as tables or as one object. bench_print.c */
tn_status bench_print(bench *b, const tn_machine *m, double peak, tn_error *err);

#endif
