/* The same bits whatever the call: tn_compare_calls finds none other with the kernels, in every kind of model whose
 * states do not depend on the call, and names the layer where a kernel's numbers depend on the call; and drafts leave a
 * text, and every logit of it, as it was. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {"llama",        "qwen3",     "gemma2",    "gemma3_text", "gemma3n_text",
                                     "gemma4_text",  "cohere2",   "gpt_oss",   "glm4",        "llama4_text",
                                     "mixtral",      "qwen3_moe", "qwen2_moe", "glm4_moe",    "granitemoe",
                                     "ernie4_5_moe", "qwen3_win", "granite",   "starcoder2",  "ministral3",
                                     "lfm2",         "mamba2",    "falcon_h1", "bamba",       "granitemoehybrid_pad",
                                     "zamba2"};
/* From here on there are states, which do not go back. */
enum { STATES_FROM = 20 };
static const char *const dtypes[] = {"f32", "bf16", "f16"};
enum { MODELS = sizeof models / sizeof *models, DTYPES = sizeof dtypes / sizeof *dtypes };
enum { TOKENS = 300, FEW = 70 };

static int64_t ids[TOKENS];

/* Tokens for it; repeat: as many, over and over. */
static tn_model *open_model(const char *name, const char *dtype, size_t repeat)
{
    tn_model *m = test_model(name, .dtype = dtype);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < TOKENS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = i < repeat ? (int64_t)((state >> 33) % (uint64_t)test_model_vocab(m)) : ids[i - repeat];
    }
    return m;
}

/* As "verify": "never" has it: nothing is refused beforehand. */
static void apply(tn_model *m)
{
    test_model_apply(m, test_config("{\"verify\": \"never\", \"same_bits\": true}"), "auto");
}

static void scan(void)
{
    tn_error err = TN_ERROR_INIT;
    char folder[4200];
    snprintf(folder, sizeof folder, "%s/plugins", process_build());
    char *full = realpath(folder, NULL);
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_plugins(config, full, &err), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_config_free(config);
    free(full);
}

/* The first way of computing count tokens that gives other bits, as a line; "" where there is none. */
static void compare(tn_model *m, int64_t count, size_t least_rows, char *line, size_t size)
{
    tn_calls_row **rows = NULL;
    size_t row_count = 0;
    tn_error err = TN_ERROR_INIT;
    tn_status status = tn_compare_calls(m, ids, count, &rows, &row_count, &err);
    *line = '\0';
    for (size_t i = 0; i < row_count; i++)
        if (rows[i]->different > 0 && !*line)
            snprintf(line, size, "%s: %lld of %lld tokens, result %lld, token %lld", rows[i]->calls,
                     (long long)rows[i]->different, (long long)rows[i]->tokens, (long long)rows[i]->layer,
                     (long long)rows[i]->token);
    ck_assert_msg(status == (*line ? TN_E_VERIFY : TN_OK), "%s: %s", err.where, err.message);
    ck_assert_uint_ge(row_count, least_rows);
    free(rows);
}

START_TEST(kernels_keep_their_promise)
{
    char line[200];
    scan();
    for (size_t i = 0; i < DTYPES; i++) {
        tn_model *m = open_model(models[_i], dtypes[i], TOKENS);
        apply(m);
        compare(m, i == 0 ? TOKENS : FEW, _i < STATES_FROM ? 6 : 5, line, sizeof line);
        ck_assert_msg(!*line, "%s %s: %s", models[_i], dtypes[i], line);
    }
}
END_TEST

/* Linear layers whose activations are rounded to int8. */
START_TEST(quantised_weights_keep_it)
{
    static const char *const types[] = {"Q4_K_M", "Q8_0", "IQ4_NL"};
    char line[200];
    tn_error err = TN_ERROR_INIT;
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
    scan();
    ck_assert_msg(tn_quantize("tests/data/models/qwen3", out, types[_i], NULL, &err) == TN_OK, "%s", err.message);
    for (size_t i = 0; i < DTYPES; i++) {
        tn_model *m = open_model(out, dtypes[i], TOKENS);
        apply(m);
        compare(m, i == 0 ? TOKENS : FEW, 6, line, sizeof line);
        ck_assert_msg(!*line, "%s %s: %s", types[_i], dtypes[i], line);
    }
}
END_TEST

/* ---- what depends on the call -------------------------------------------------------------------------------- */

static tn_status other_for_one_token(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    float *y = call->out[0].data;
    if (call->in[0].shape[0] == 1 && strstr(call->site->path, "layers.1."))
        y[0] = nextafterf(y[0], 2);
    return status;
}

START_TEST(a_layer_is_named)
{
    char line[200];
    scan();
    tn_model *m = open_model("llama", "f32", TOKENS);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = other_for_one_token});
    test_model_apply(m, test_config("{\"verify\": \"never\", \"measure\": false}"), "norm,auto");
    compare(m, FEW, 7, line, sizeof line);
    ck_assert_str_eq(line, "token by token: 70 of 70 tokens, result 2, token 0");
}
END_TEST

/* What would leave sums to the plain implementation is an error that says where. */
START_TEST(what_cannot_be_promised_is_an_error)
{
    static const struct {
        const char *model, *spec, *where, *says;
    } cases[] = {
        {"llama", "none", "model.layers.0.self_attn",
         "takes ATTENTION here (cpu_attention: kernels: none are asked for) and at 16 more sites"},
        {"llama", "auto,-cpu_linear", "model.layers.0.self_attn.q_proj",
         "takes LINEAR here (cpu_linear: left out by -cpu_linear) and at "},
        {"qwen3_next", "auto", "model.layers.0.linear_attn", "takes GATED_DELTA_RULE here"},
        {"deepseek_v3", "auto", "model.layers.0.self_attn.kv_b_proj", "takes GROUPED_MATMUL here"},
        {"llama", "plain", "plain", "it does not promise the same bits in any call (TN_SAME_BITS)"},
    };
    scan();
    test_kernel_add(&(test_kernel){.id = "plain", .op = TN_OP_RMS_NORM});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_model *m = open_model(cases[i].model, "f32", TOKENS);
        tn_error err = TN_ERROR_INIT;
        tn_config *config = test_config("{\"verify\": \"never\", \"same_bits\": true}");
        ck_assert_int_eq(tn_apply_kernels(m, config, cases[i].spec, NULL, &err), TN_E_KERNEL);
        ck_assert_str_eq(err.where, cases[i].where);
        suite_expect_in(err.message, cases[i].says);
        ck_assert_uint_eq(test_model_bound(m), 0);
    }
}
END_TEST

/* Kernels that say that they round activations are declined where exact products are asked for. */
START_TEST(exact_does_without_what_rounds)
{
    test_kernel_add(&(test_kernel){.id = "rounds", .op = TN_OP_RMS_NORM, .traits = TN_ROUNDS_INPUTS});
    for (int exact = 0; exact < 2; exact++) {
        tn_model *m = open_model("llama", "f32", TOKENS);
        tn_error err = TN_ERROR_INIT;
        tn_config *config = test_config(exact ? "{\"verify\": \"never\", \"exact\": true}" : "{\"verify\": \"never\"}");
        tn_status status = tn_apply_kernels(m, config, "rounds", NULL, &err);
        ck_assert_int_eq(status, exact ? TN_E_KERNEL : TN_OK);
        if (exact)
            suite_expect_in(err.message, "it rounds activations for its products (TN_ROUNDS_INPUTS)");
    }
}
END_TEST

START_TEST(wrong_use_is_told)
{
    tn_model *m = open_model("llama", "f32", TOKENS);
    tn_calls_row **rows;
    size_t count;
    ck_assert_int_eq(tn_compare_calls(NULL, ids, 5, &rows, &count, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_calls(m, NULL, 5, &rows, &count, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_calls(m, ids, 1, &rows, &count, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_calls(m, ids, 5, NULL, &count, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_calls(m, ids, 5, &rows, NULL, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_compare_calls(m, (const int64_t[]){1, 1 << 30}, 2, &rows, &count, NULL), TN_E_INPUT);
    ck_assert(!rows && count == 0);
}
END_TEST

/* ---- drafts --------------------------------------------------------------------------------------------------- */

enum { PROMPT = 40, ANSWER = 60 };

typedef struct answer {
    int64_t out[ANSWER];
    uint64_t logits[ANSWER]; /* a number made of the bits of each token's                             */
    tn_generate_result result;
} answer;

static int on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    answer *a = ctx;
    (void)row;
    for (int64_t i = 0; i < vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        a->logits[step] = (a->logits[step] ^ bits) * UINT64_C(0x100000001b3);
    }
    return TN_NEXT_TOKEN;
}

static answer *generate(tn_model *m, int32_t speculate, double temperature, double penalty)
{
    answer *a = calloc(1, sizeof *a);
    tn_error err = TN_ERROR_INIT;
    tn_session *s = test_session(m, .context = PROMPT + ANSWER + 20);
    tn_generate_options o = {.size = sizeof o,
                             .max_tokens = ANSWER,
                             .temperature = temperature,
                             .repetition_penalty = penalty,
                             .seed = 7,
                             .ignore_eos = true,
                             .on_logits = on_logits,
                             .ctx = a,
                             .speculate = speculate};
    a->result.size = sizeof a->result;
    tn_status status = tn_generate(s, ids, PROMPT, &o, a->out, &a->result, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_int_eq(a->result.count, ANSWER);
    ck_assert_int_eq(tn_session_length(s), PROMPT + ANSWER - 1);
    return a;
}

/* Greedy, drawn, and with a penalty for what came before, which is what drafts are made of. */
START_TEST(drafts_change_nothing)
{
    static const double drawing[][2] = {{0, 1}, {0.7, 1}, {0, 1.2}};
    scan();
    for (size_t i = 0; i < 2; i++) {
        tn_model *m = open_model(models[_i], dtypes[i], 8);
        apply(m);
        for (size_t j = 0; j < sizeof drawing / sizeof *drawing; j++) {
            answer *with = generate(m, 1 + (int32_t)(j * 7), drawing[j][0], drawing[j][1]);
            answer *without = generate(m, 0, drawing[j][0], drawing[j][1]);
            ck_assert_mem_eq(with->out, without->out, sizeof with->out);
            ck_assert_mem_eq(with->logits, without->logits, sizeof with->logits);
            ck_assert(without->result.drafted == 0 && without->result.accepted == 0);
            ck_assert_int_ge(with->result.drafted, with->result.accepted);
            free(with);
            free(without);
        }
    }
}
END_TEST

START_TEST(what_was_said_is_drafted)
{
    scan();
    tn_model *m = test_model("models/demo", .dtype = NULL);
    apply(m);
    for (size_t i = 0; i < PROMPT; i++)
        ids[i] = 300 + (int64_t)(i % 5);
    answer *with = generate(m, 8, 0, 1);
    ck_assert_int_gt(with->result.accepted, ANSWER / 4);
    free(with);
}
END_TEST

START_TEST(states_go_token_by_token)
{
    tn_model *m = open_model("qwen3_next", "f32", 8);
    answer *with = generate(m, 8, 0, 1);
    ck_assert_int_eq(with->result.drafted, 0);
    free(with);
}
END_TEST

START_TEST(drafts_end_where_the_text_does)
{
    tn_model *m = open_model("llama", "f32", 8);
    tn_error err = TN_ERROR_INIT;
    int64_t out[ANSWER];
    tn_session *s = test_session(m, .context = PROMPT + 9);
    tn_generate_result r = {.size = sizeof r};
    tn_generate_options o = {.size = sizeof o, .max_tokens = ANSWER, .ignore_eos = true, .speculate = 64};
    ck_assert_int_eq(tn_generate(s, ids, PROMPT, &o, out, &r, &err), TN_OK);
    ck_assert(r.count == 10 && r.stop == TN_STOP_CONTEXT);
    o.speculate = 65;
    ck_assert_int_eq(tn_generate(s, ids, 1, &o, out, &r, &err), TN_E_USAGE);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("same bits", 300);
    tcase_add_loop_test(all, kernels_keep_their_promise, 0, MODELS);
    tcase_add_loop_test(all, quantised_weights_keep_it, 0, 3);
    tcase_add_loop_test(all, drafts_change_nothing, 0, MODELS);
    suite_add(all, a_layer_is_named, what_cannot_be_promised_is_an_error, exact_does_without_what_rounds,
              wrong_use_is_told, what_was_said_is_drafted, states_go_token_by_token, drafts_end_where_the_text_does);
    return suite_run();
}
