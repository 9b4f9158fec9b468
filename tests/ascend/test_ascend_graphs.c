/* Graphs of the device npu, on the simulator of the vendor's libraries: a token is one launch once it came twice, what
 * is computed are the same bits as without graphs, whatever happens in between, and failing calls are told. */
#include "npu_pair.h"
#include "suite.h"

#include <tenon/tenon.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- models and sessions --------------------------------------------------------------------------------------- */

static tn_model *open_model(const char *name, const char *dtype, const char *kernels)
{
    char path[256];
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    npu_pair_scan();
    tn_model_options o = {.size = sizeof o, .dtype = dtype, .device = "npu"};
    tn_model *m = tn_model_open(path, &o, &err);
    ck_assert_msg(m != NULL, "%s: %s", name, err.message);
    ck_assert_msg(tn_apply_kernels(m, NULL, kernels, NULL, &err) == TN_OK, "%s", err.message);
    return m;
}

static int64_t vocab_of(tn_model *m)
{
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    return info.vocab;
}

static tn_session *new_session(tn_model *m, int32_t rows)
{
    tn_error err = TN_ERROR_INIT;
    tn_session_options so = {.size = sizeof so, .context = 160, .chunk = 8, .rows = rows};
    tn_session *s = tn_session_new(m, &so, &err);
    ck_assert_msg(s != NULL, "%s", err.message);
    return s;
}

/* Tokens of each row, which differ; the last ones' logits. */
static tn_status feed(tn_session *s, int64_t rows, int64_t tokens, float *logits, tn_error *err)
{
    int64_t ids[32];
    for (int64_t i = 0; i < rows * tokens; i++)
        ids[i] = 1 + (tn_session_length(s) * 3 + i * 5) % 20;
    tn_batch batch = {.size = sizeof batch, .rows = rows, .tokens = tokens, .ids = ids};
    tn_outputs out = {.size = sizeof out, .last_logits = logits};
    return tn_session_run(s, &batch, &out, err);
}

/* ---- the same bits ---------------------------------------------------------------------------------------------- */

/* What is done: s: the session, 0 or 1, or 2, which has two rows. */
typedef enum what { FEED, REWIND, RESET } what;
static const struct {
    what what;
    int s;
    int64_t tokens, times;
} script[] = {
    {FEED, 0, 5, 1},   {FEED, 0, 1, 6},   {FEED, 1, 3, 1}, {FEED, 1, 1, 5}, {FEED, 0, 1, 2},  {FEED, 1, 1, 1},
    {REWIND, 0, 4, 1}, {FEED, 0, 1, 6},   {FEED, 2, 4, 1}, {FEED, 2, 1, 6}, {RESET, 1, 0, 1}, {FEED, 1, 3, 1},
    {FEED, 1, 1, 4},   {FEED, 0, 1, 122}, {FEED, 1, 7, 2}, {FEED, 2, 1, 3}, {FEED, 0, 1, 3},
};
enum { STEPS = sizeof script / sizeof *script, CALLS = 180 };

static const struct {
    const char *name, *dtype, *kernels;
    bool has_states; /* and does not go back                                                        */
} models[] = {
    {"qwen3", "bf16", "none", false},     {"qwen3", "bf16", "auto", false},       {"qwen3", "f32", "none", false},
    {"qwen3_moe", "bf16", "none", false}, {"deepseek_v3", "bf16", "none", false}, {"qwen3_next", "bf16", "none", true},
};
enum { MODELS = sizeof models / sizeof *models };

/* All logits of the script; how many graphs ran. */
static int64_t perform(int which, float *logits, int64_t vocab)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model(models[which].name, models[which].dtype, models[which].kernels);
    tn_session *s[] = {new_session(m, 1), new_session(m, 1), new_session(m, 2)};
    ck_assert_int_eq(vocab_of(m), vocab);
    int64_t before = npu_pair_figures().graphs, calls = 0;
    for (int i = 0; i < STEPS; i++)
        for (int64_t j = 0; j < script[i].times; j++) {
            tn_session *at = s[script[i].s];
            tn_status status = TN_OK;
            if (script[i].what == FEED) {
                ck_assert_int_lt(calls, CALLS);
                status = feed(at, script[i].s == 2 ? 2 : 1, script[i].tokens, logits + 2 * calls++ * vocab, &err);
            } else if (script[i].what == REWIND && !models[which].has_states) {
                status = tn_session_rewind(at, script[i].tokens, &err);
            } else {
                tn_session_reset(at);
            }
            ck_assert_msg(status == TN_OK, "%s, step %d: %s", models[which].name, i, err.message);
        }
    int64_t graphs = npu_pair_figures().graphs - before;
    for (int i = 0; i < 3; i++)
        tn_session_free(s[i]);
    tn_model_close(m);
    npu_pair_expect_clean();
    return graphs;
}

START_TEST(graphs_change_no_bit)
{
    tn_model *m = open_model(models[_i].name, models[_i].dtype, "none");
    int64_t vocab = vocab_of(m);
    tn_model_close(m);
    size_t bytes = (size_t)(2 * CALLS * vocab) * sizeof(float);
    float *with = calloc(1, bytes), *without = calloc(1, bytes);
    ck_assert_int_gt(perform(_i, with, vocab), 100);
    setenv("TENON_NPU_GRAPH", "no", 1);
    ck_assert_int_eq(perform(_i, without, vocab), 0);
    ck_assert_mem_eq(with, without, bytes);
    free(with);
    free(without);
}
END_TEST

/* What texts of an engine were told: logits, one token after the other. */
typedef struct heard {
    float logits[4000];
    int64_t count;
    int ends;
} heard;

static int on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    heard *h = ctx;
    (void)row;
    ck_assert_int_lt((step + 1) * vocab, 4000);
    memcpy(h->logits + step * vocab, logits, (size_t)vocab * sizeof *logits);
    h->count++;
    return TN_NEXT_TOKEN;
}

static void on_end(void *ctx, const tn_engine_result *result)
{
    heard *h = ctx;
    ck_assert_msg(result->status == TN_OK, "%s", result->error.message);
    h->ends++;
}

/* Three texts of an engine side by side; how many graphs ran. */
static int64_t generate(heard h[3])
{
    enum { EACH = 12 };
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model("qwen3", "bf16", "none");
    tn_engine *e = tn_engine_new(m, &(tn_engine_options){.size = sizeof(tn_engine_options), .context = 64}, &err);
    int64_t before = npu_pair_figures().graphs;
    bool more = true;
    for (int i = 0; i < 3; i++) {
        tn_generate_options o = {.size = sizeof o, .max_tokens = EACH, .ignore_eos = true, .on_logits = on_logits};
        o.ctx = &h[i];
        int64_t prompt[] = {1 + i, 7, 5 + 3 * i};
        tn_engine_request r = {.size = sizeof r, .prompt = prompt, .prompt_count = 3, .options = &o, .on_end = on_end};
        ck_assert_msg(tn_engine_add(e, &r, NULL, &err) == TN_OK, "%s", err.message);
    }
    while (more)
        ck_assert_msg(tn_engine_step(e, &more, &err) == TN_OK, "%s", err.message);
    int64_t graphs = npu_pair_figures().graphs - before;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(h[i].ends, 1);
        ck_assert_int_eq(h[i].count, EACH);
    }
    tn_engine_free(e);
    tn_model_close(m);
    npu_pair_expect_clean();
    return graphs;
}

/* A step of an engine comes again as long as the texts are the same. */
START_TEST(nor_do_those_of_an_engine)
{
    static heard with[3], without[3];
    ck_assert_int_gt(generate(with), 5);
    setenv("TENON_NPU_GRAPH", "no", 1);
    ck_assert_int_eq(generate(without), 0);
    ck_assert_mem_eq(with, without, sizeof with);
}
END_TEST

/* ---- launches --------------------------------------------------------------------------------------------------- */

/* Of three tokens the first makes executors, the second is remembered and the third captured; from then on it is one
 * launch and makes nothing. Calls that are too few, or come once, are launched. */
START_TEST(a_token_is_one_launch)
{
    enum { MORE = 5 };
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model("qwen3", "bf16", "none");
    float *logits = calloc((size_t)vocab_of(m), sizeof *logits);
    tn_session *s = new_session(m, 1);
    sim_figures before = npu_pair_figures(), after;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(feed(s, 1, 1, logits, &err), TN_OK);
    after = npu_pair_figures();
    ck_assert_int_eq(after.captured - before.captured, 0);
    int64_t each = (after.launches - before.launches) / 2;
    before = after;
    for (int i = 0; i < 1 + MORE; i++)
        ck_assert_int_eq(feed(s, 1, 1, logits, &err), TN_OK);
    after = npu_pair_figures();
    ck_assert_int_eq(after.captured - before.captured, each);
    ck_assert_int_eq(after.launches - before.launches, 1 + MORE);
    ck_assert_int_eq(after.graphs - before.graphs, 1 + MORE);
    ck_assert_int_eq(after.replayed - before.replayed, (1 + MORE) * each);
    ck_assert_int_eq(after.synchronisations - before.synchronisations, 1 + MORE);
    ck_assert_int_eq(after.uploads - before.uploads, 1 + MORE);
    ck_assert_int_eq(after.executors + after.descriptors, before.executors + before.descriptors);
    tn_session_free(s);
    tn_model_close(m);
    free(logits);
    npu_pair_expect_clean();
}
END_TEST

/* What is compared with the CPU when a model is opened comes from graphs, too. */
START_TEST(operations_are_tried_as_graphs)
{
    tn_model *m = open_model("qwen3_moe", "bf16", "none");
    ck_assert_int_gt(npu_pair_figures().captured, 100);
    ck_assert_int_gt(npu_pair_figures().replayed, 200);
    tn_model_close(m);
    npu_pair_expect_clean();
}
END_TEST

START_TEST(another_word_than_yes_and_no_is_refused)
{
    setenv("TENON_NPU_GRAPH", "perhaps", 1);
    tn_error err = TN_ERROR_INIT;
    npu_pair_scan();
    tn_model_options o = {.size = sizeof o, .device = "npu"};
    ck_assert_ptr_null(tn_model_open("tests/data/models/qwen3", &o, &err));
    ck_assert_msg(strstr(err.message, "TENON_NPU_GRAPH is 'perhaps', not yes or no") != NULL, "%s", err.message);
}
END_TEST

/* ---- failing calls ---------------------------------------------------------------------------------------------- */

/* One token to capture, two to replay. */
enum { TOKENS = 3, VOCAB = 512 };

/* What a child saw. */
typedef struct outcome {
    tn_error err;
    int64_t calls, graphs;
    int failed, again; /* the token that failed first, or -1; whether the session went on after a reset */
    float logits[TOKENS][VOCAB];
} outcome;

/* The two tokens in front of them, behind which the next is captured. */
static void begin(tn_session *s, float *logits)
{
    tn_error err = TN_ERROR_INIT;
    for (int i = 0; i < 2; i++)
        ck_assert_msg(feed(s, 1, 1, logits, &err) == TN_OK, "%s", err.message);
}

/* The number-th call of these tokens fails; what failed is done anew, from the beginning. */
static void run_with_fault(tn_session *s, int64_t number, outcome *o)
{
    tn_error err = TN_ERROR_INIT;
    float unused[VOCAB];
    int64_t calls = npu_pair_ask("sim_calls"), graphs = npu_pair_figures().graphs;
    o->failed = -1;
    npu_pair_let_fail(number);
    for (int i = 0; i < TOKENS && o->failed < 0; i++)
        if (feed(s, 1, 1, o->logits[i], &o->err) != TN_OK)
            o->failed = i;
    o->calls = npu_pair_ask("sim_calls") - calls;
    o->graphs = npu_pair_figures().graphs - graphs;
    npu_pair_let_fail(0);
    if (o->failed >= 0) {
        tn_session_reset(s);
        begin(s, unused);
        for (int i = 0; i < TOKENS; i++)
            o->again += feed(s, 1, 1, o->logits[i], &err) == TN_OK;
    }
}

typedef struct faulty {
    tn_session *s;
    int64_t number;
    outcome *o;
} faulty;

static void in_child(void *ctx)
{
    const faulty *f = ctx;
    run_with_fault(f->s, f->number, f->o);
}

static void run_in_child(tn_session *s, int64_t number, outcome *o)
{
    memset(o, 0, sizeof *o);
    npu_pair_in_child(in_child, &(faulty){s, number, o}, number);
}

/* It is told in one line, or nothing depended on it; in either case the numbers are right in the end. A capture that
 * fails is no error: what was to be captured is launched. */
START_TEST(every_failing_call_of_a_graph_is_told)
{
    outcome *o = mmap(NULL, sizeof *o, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), want;
    tn_model *m = open_model("qwen3", "bf16", "none");
    tn_session *s = new_session(m, 1);
    ck_assert_ptr_ne(o, MAP_FAILED);
    ck_assert_int_le(vocab_of(m), VOCAB);
    begin(s, o->logits[0]);
    run_in_child(s, 0, o);
    want = *o;
    ck_assert_int_eq(want.failed, -1);
    ck_assert_int_eq(want.graphs, TOKENS);
    int64_t told = 0, launched = 0;
    for (int64_t number = 1; number <= want.calls; number++) {
        run_in_child(s, number, o);
        ck_assert_msg(memcmp(o->logits, want.logits, sizeof o->logits) == 0, "call %lld fails: other numbers",
                      (long long)number);
        if (o->failed < 0) {
            launched += o->graphs == 0;
            continue;
        }
        told++;
        ck_assert_int_eq(o->again, TOKENS);
        ck_assert_msg(strstr(o->err.message, " failed with ") &&
                          strstr(o->err.message, "fails because ASCEND_SIM_FAIL says so") &&
                          !strchr(o->err.message, '\n'),
                      "call %lld fails: %s", (long long)number, o->err.message);
    }
    ck_assert_int_gt(told, 100);    /* the context is set for every call                                   */
    ck_assert_int_gt(launched, 40); /* the beginning of the capture, its calls and its end                 */
    munmap(o, sizeof *o);
    tn_session_free(s);
    tn_model_close(m);
    npu_pair_expect_clean();
}
END_TEST

static void add_tests(void)
{
    TCase *tc = suite_open("ascend_graphs", 600);
    tcase_add_loop_test(tc, graphs_change_no_bit, 0, MODELS);
    suite_add(tc, operations_are_tried_as_graphs, nor_do_those_of_an_engine, a_token_is_one_launch,
              another_word_than_yes_and_no_is_refused, every_failing_call_of_a_graph_is_told);
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
