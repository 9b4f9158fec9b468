/* Models of tests/data/models, their sessions and their kernels. What goes wrong fails the test, with the error's
 * words. */
#ifndef TEST_MODELS_H
#define TEST_MODELS_H

#include "graph/graph.h"

#include <stddef.h>
#include <tenon/tenon.h>

/* A folder of tests/data/models or, with a slash in it, any other; dtype as in tn_model_options. Owned: tn_model_close.
 */
tn_model *test_model_open(const char *name, const char *dtype);
tn_model *test_model_open_as(const char *name, const tn_model_options *options);

/* The same with members of tn_model_options: test_model_open_with("llama", .dtype = "f32", .threads = 2). */
#define test_model_open_with(name, ...)                                                                                \
    test_model_open_as(name, &(tn_model_options){.size = sizeof(tn_model_options), __VA_ARGS__})

/* The same until the test ends (suite.h). */
#define test_model(name, ...) test_model_kept(test_model_open_with(name, __VA_ARGS__))
tn_model *test_model_kept(tn_model *m);

/* A session with members of tn_session_options: test_model_session(m, .context = 16). Owned: tn_session_free. The
 * second form until the test ends. */
#define test_model_session(m, ...)                                                                                     \
    test_model_session_as(m, &(tn_session_options){.size = sizeof(tn_session_options), __VA_ARGS__})
tn_session *test_model_session_as(tn_model *m, const tn_session_options *options);
#define test_session(m, ...) test_session_kept(test_model_session(m, __VA_ARGS__))
tn_session *test_session_kept(tn_session *s);

/* Runs tokens of one row, with members of tn_outputs: test_model_run(s, 4, ids, .last_logits = logits). */
#define test_model_run(s, tokens, ids, ...)                                                                            \
    test_model_run_as(s, tokens, ids, &(tn_outputs){.size = sizeof(tn_outputs), __VA_ARGS__})
void test_model_run_as(tn_session *s, int64_t tokens, const int64_t *ids, const tn_outputs *outputs);

int64_t test_model_vocab(const tn_model *m);

/* Applies kernels; the second form gives the report. Owned: tn_report_free. The third until the test ends, as does what
 * a plan says. */
void test_model_apply(tn_model *m, const tn_config *config, const char *spec);
tn_report *test_model_report(tn_model *m, const tn_config *config, const char *spec);
tn_report *test_report(tn_model *m, const tn_config *config, const char *spec);
tn_report *test_plan(tn_model *m, const tn_config *config, const char *spec);

/* The site of that module and operation; how many have a kernel, and how many of a report have this one. */
const graph_site *test_model_site(const tn_model *m, const char *path, tn_op op);
size_t test_model_bound(const tn_model *m);
int64_t test_model_sites_of(const tn_report *report, const char *kernel);

#endif
