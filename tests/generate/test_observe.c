/* Watching a session: every operation is told once, with its kernel, in the order of the clock. */
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FOLDER "tests/data/models/qwen3"
enum { TOKENS = 7, LAYERS = 2, HIDDEN = 64, INTER = 104, SEEN = 512 };

typedef struct seen {
    tn_event event[SEEN];
    size_t count;
} seen;

static void see(void *ctx, const tn_event *event)
{
    seen *s = ctx;
    ck_assert_uint_eq(event->size, sizeof *event);
    ck_assert_uint_lt(s->count, SEEN);
    s->event[s->count++] = *event;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static tn_model *open_model(const char *spec)
{
    tn_model *m = test_model(FOLDER, .dtype = NULL);
    test_model_apply(m, NULL, spec);
    return m;
}

/* A prompt; its last logits, which the caller frees. */
static float *run(tn_model *m, tn_session *s)
{
    static const int64_t ids[TOKENS] = {3, 14, 15, 92, 65, 35, 8};
    float *logits = calloc((size_t)test_model_vocab(m), sizeof *logits);
    test_model_run(s, TOKENS, ids, .last_logits = logits);
    return logits;
}

static int count_of(const seen *s, tn_op op)
{
    int count = 0;
    for (size_t i = 0; i < s->count; i++)
        count += s->event[i].op == op;
    return count;
}

static const tn_event *find(const seen *s, const char *path)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->event[i].path && strcmp(s->event[i].path, path) == 0)
            return &s->event[i];
    ck_abort_msg("nothing of %s was seen", path);
}

/* What is composed is seen as its parts, and the parts in the order in which they were made. */
START_TEST(eager_operations_are_seen_once)
{
    tn_model *m = open_model("none");
    tn_session *s = test_session(m, .rows = 0);
    seen seen = {0};
    ck_assert_int_eq(tn_session_observe(s, see, &seen, NULL), TN_OK);
    double begin = now();
    float *logits = run(m, s);
    double end = now(), inside = 0;
    ck_assert_int_eq(count_of(&seen, TN_OP_EMBEDDING), 1);
    ck_assert_int_eq(count_of(&seen, TN_OP_LINEAR), 7 * LAYERS + 1);
    ck_assert_int_eq(count_of(&seen, TN_OP_GLU), LAYERS);
    ck_assert_int_eq(count_of(&seen, TN_OP_ATTENTION), LAYERS);
    ck_assert_int_eq(count_of(&seen, TN_OP_RMS_NORM), 4 * LAYERS + 1);
    ck_assert_int_eq(count_of(&seen, TN_OP_ADD), 2 * LAYERS);
    ck_assert_int_eq(count_of(&seen, TN_OP_MLP) + count_of(&seen, TN_OP_ADD_RMS_NORM), 0);
    for (size_t i = 0; i < seen.count; i++) {
        const tn_event *e = &seen.event[i];
        ck_assert_ptr_null(e->kernel);
        ck_assert_int_eq(e->dtype, TN_BF16);
        ck_assert(e->begin >= begin && e->end >= e->begin && e->end <= end && e->bytes > 0);
        begin = e->end;
        inside += e->end - e->begin;
    }
    ck_assert(inside <= end - seen.event[0].begin);
    const tn_event *gate = find(&seen, "model.layers.0.mlp.gate_proj");
    ck_assert_int_eq(gate->tokens, TOKENS);
    ck_assert_double_eq(gate->operations, 2.0 * TOKENS * HIDDEN * INTER);
    ck_assert_double_eq(gate->bytes, 2.0 * (HIDDEN * INTER + TOKENS * (HIDDEN + INTER)));
    /* Scores and values of 4 heads of 32, for the keys up to each query. */
    ck_assert_double_eq_tol(find(&seen, "model.layers.0.self_attn")->operations,
                            4.0 * 4 * 32 * TOKENS * (TOKENS + 1) / 2, 1e-6);
    ck_assert_int_eq(find(&seen, "model.embed_tokens")->tokens, TOKENS);
    ck_assert_int_eq(find(&seen, "lm_head")->tokens, 1);
    free(logits);
}
END_TEST

START_TEST(kernels_are_named)
{
    test_kernel_add(&(test_kernel){.id = "mine", .op = TN_OP_MLP});
    tn_model *m = open_model("mine");
    tn_session *s = test_session(m, .rows = 0);
    seen seen = {0};
    ck_assert_int_eq(tn_session_observe(s, see, &seen, NULL), TN_OK);
    free(run(m, s));
    ck_assert_int_eq(count_of(&seen, TN_OP_MLP), LAYERS);
    ck_assert_int_eq(count_of(&seen, TN_OP_GLU), 0);
    ck_assert_int_eq(count_of(&seen, TN_OP_LINEAR), 4 * LAYERS + 1);
    const tn_event *mlp = find(&seen, "model.layers.0.mlp");
    ck_assert_str_eq(mlp->kernel, "mine");
    ck_assert_double_eq(mlp->operations, 6.0 * TOKENS * HIDDEN * INTER);
    for (size_t i = 0; i < seen.count; i++)
        ck_assert_int_eq(seen.event[i].kernel != NULL, seen.event[i].op == TN_OP_MLP);
}
END_TEST

START_TEST(watching_changes_no_bit_and_ends)
{
    tn_model *m = open_model("none");
    tn_session *s = test_session(m, .rows = 0);
    int64_t vocab = test_model_vocab(m);
    seen seen = {0};
    float *without = run(m, s);
    tn_session_reset(s);
    ck_assert_int_eq(tn_session_observe(s, see, &seen, NULL), TN_OK);
    float *with = run(m, s);
    ck_assert_mem_eq(with, without, (size_t)vocab * sizeof *with);
    size_t count = seen.count;
    ck_assert_uint_gt(count, 0);
    ck_assert_int_eq(tn_session_observe(s, NULL, NULL, NULL), TN_OK);
    tn_session_reset(s);
    free(run(m, s));
    ck_assert_uint_eq(seen.count, count);
    free(with);
    free(without);
}
END_TEST

START_TEST(a_session_is_needed)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_session_observe(NULL, see, NULL, &err), TN_E_USAGE);
    ck_assert_msg(strstr(err.message, "NULL") || strstr(err.where, "session"), "%s: %s", err.where, err.message);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("watching sessions", 600);
    suite_add(all, eager_operations_are_seen_once, kernels_are_named, watching_changes_no_bit_and_ends,
              a_session_is_needed);
    return suite_run();
}
