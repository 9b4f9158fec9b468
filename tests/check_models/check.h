/* What check_models shares: the rules that a case is held to, and the lines that say how it went. */
#ifndef CHECK_MODELS_CHECK_H
#define CHECK_MODELS_CHECK_H

#include "golden.h"

typedef struct tally {
    int passed, failed, skipped;
} tally;
extern tally check_tally;

/* One line; ok counts. */
void check_report(const golden *g, const char *what, const char *spec, bool ok, const char *detail);
void check_fail(const golden *g, const char *what, const char *spec, const tn_error *err);

/* Results of a model over the whole case: logits [B,T,V], and the hidden states. */
typedef struct run_results {
    float *logits, **hidden;
    int64_t layers, width, vocab;
} run_results;

/* run.c: memory for the results, with hidden states or without; the case in one call, or in calls of chunk tokens
 * (0: all); computed: the model finds out positions by itself where it can. */
bool run_allocate(const golden *g, const tn_model *model, bool hidden, run_results *r);
void run_free(run_results *r);
bool run_case(const golden *g, tn_model *model, int64_t chunk, bool computed, run_results *r, tn_error *err);

/* compare.c: logits [B,T,V] from a position on, with what to say about them */
bool compare_logits(const golden *g, const float *got, const float *expected, int64_t from, char text[static 128]);
void check_f32(const golden *g, const run_results *r, const char *what, const char *spec);
void check_hidden(const golden *g, const run_results *r, const char *spec);
void check_bf16(const golden *g, const run_results *r, const char *spec);

/* decode.c: steps against the one pass that gave r; 16 tokens. */
void check_steps(const golden *g, tn_model *model, const run_results *r, const char *spec);
void check_greedy(const golden *g, tn_model *model, const char *spec);

/* names.c: every tensor of the checkpoint is a parameter of the model, but those that transformers ignores too. */
void check_names(const golden *g, const tn_model *model);

#endif
