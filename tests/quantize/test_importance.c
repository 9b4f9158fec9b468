/* How much columns count: what is collected is the mean square of what really goes into a matrix, it makes the errors
 * of those columns smaller, and a model that was rounded so computes more nearly the same. */
#include "base/blocks.h"
#include "base/convert.h"
#include "base/tensor.h"
#include "generate/session.h"
#include "quantize/encode.h"
#include "quantize/importance.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- encoding --------------------------------------------------------------------------------------------- */

enum { COLUMNS = 256, ROWS = 64 };

static uint64_t state = 7;

/* About normal. */
static float drawn(void)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(state >> 40) * 0x1p-24;
    }
    return (float)(sum - 6);
}

/* Weighed squares of what a row is off by. */
static double off_by(tn_dtype dtype, const float *x, const float *given, const float *importance)
{
    uint8_t out[4 * COLUMNS];
    float back[COLUMNS];
    double sum = 0;
    encode_row(dtype, x, given, COLUMNS, out);
    blocks_to_f32(dtype, out, 0, COLUMNS, back);
    for (int i = 0; i < COLUMNS; i++)
        sum += (double)importance[i] * pow((double)back[i] - (double)x[i], 2);
    return sum;
}

static const tn_dtype weighed[] = {TN_Q4_0, TN_Q5_0, TN_Q5_1, TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_IQ4_NL, TN_MXFP4};

/* Some columns count a hundred times as much as others. */
START_TEST(columns_that_count_are_nearer)
{
    float x[COLUMNS], importance[COLUMNS];
    double with = 0, without = 0;
    ck_assert(encode_weighs(weighed[_i]));
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < COLUMNS; i++) {
            x[i] = drawn();
            importance[i] = expf(1.5f * drawn());
        }
        with += off_by(weighed[_i], x, importance, importance);
        without += off_by(weighed[_i], x, NULL, importance);
    }
    ck_assert_msg(with < 0.95 * without, "%s: %g with, %g without", tn_dtype_name(weighed[_i]), with, without);
}
END_TEST

/* Zeros, numbers below the normal ones, one value all over, one value alone: numbers come back whatever counts how
 * much, and where all columns count alike they are near. */
START_TEST(odd_rows)
{
    static const float values[] = {0, 1e-40f, 1, -1, 48, -0.375f};
    float alike[COLUMNS], apart[COLUMNS], back[COLUMNS];
    uint8_t out[4 * COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        alike[i] = 1;
        apart[i] = i % 3 ? 1e-4f : 100;
    }
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (int step = 1; step < COLUMNS; step *= 3) {
            float row[COLUMNS] = {0};
            for (int i = step / 2; i < COLUMNS; i += step)
                row[i] = values[v];
            encode_row(weighed[_i], row, apart, COLUMNS, out);
            blocks_to_f32(weighed[_i], out, 0, COLUMNS, back);
            for (int i = 0; i < COLUMNS; i++)
                ck_assert(fabsf(back[i]) <= 2 * fabsf(values[v]) + 1e-38f);
            encode_row(weighed[_i], row, alike, COLUMNS, out);
            blocks_to_f32(weighed[_i], out, 0, COLUMNS, back);
            for (int i = 0; i < COLUMNS; i++)
                ck_assert_msg(fabsf(back[i] - row[i]) <= 0.01f * fabsf(values[v]) + 1e-38f, "%s: %g for %g",
                              tn_dtype_name(weighed[_i]), (double)back[i], (double)row[i]);
        }
}
END_TEST

/* ---- collecting ------------------------------------------------------------------------------------------- */

enum { TOKENS = 160, MOST_EXPERTS = 64 };

static const int64_t *some_ids(int64_t vocab)
{
    static int64_t ids[TOKENS];
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = (i * i * 37 + i * 11 + 5) % vocab;
    return ids;
}

static quantize_tensor wanted;
static quantize_plan plan;

/* Importance of the matrices of form, as of a plan that has nothing else. */
static importance *collected_of(tn_model *m, const char *form, int64_t matrices)
{
    tn_error err = TN_ERROR_INIT;
    char name[QUANTIZE_NAME];
    tn_tensor matrix;
    importance *c;
    wanted = (quantize_tensor){.matrices = matrices, .ndim = matrices > 1 ? 3 : 2, .made = -1, .to = TN_Q4_0};
    strcpy(wanted.form, form);
    quantize_matrix_name(&wanted, 0, name);
    ck_assert(shards_get(m->weights, name, &matrix));
    wanted.columns = matrix.shape[1];
    plan = (quantize_plan){.model = m, .shape = m->flow->shape(m->arch_state), .tensors = &wanted, .count = 1};
    const tn_quantize_options o = {.size = sizeof o, .ids = some_ids(plan.shape->vocab), .id_count = TOKENS};
    ck_assert_msg(importance_collect(&plan, &o, &c, &err) == TN_OK, "%s", err.message);
    return c;
}

/* Is it what squares say, whose mean is made 1? */
static void expect_importance(const importance *c, int64_t number, const double *squares, int64_t columns)
{
    char name[QUANTIZE_NAME];
    const float *got = importance_of(c, &wanted, number);
    quantize_matrix_name(&wanted, number, name);
    double mean = 0;
    for (int64_t i = 0; i < columns; i++)
        mean += squares[i] / (double)columns;
    ck_assert_msg((got != NULL) == (mean > 0), "%s", name);
    for (int64_t i = 0; i < columns && got; i++) {
        double want = fmax(squares[i] / mean, 1e-4);
        ck_assert_msg(fabs((double)got[i] - want) <= 1e-3 * want, "%s column %lld: %g for %g", name, (long long)i,
                      (double)got[i], want);
    }
}

/* The first layer's queries see what the first norm makes of embeddings: computed here by itself. */
START_TEST(what_goes_into_a_matrix)
{
    static const char form[] = "model.layers.0.self_attn.q_proj.weight";
    tn_model *m = test_model("qwen3", .dtype = "f32");
    int64_t hidden = m->info.hidden, layers = m->info.layers;
    tn_tensor norm, embed;
    double *squares = calloc((size_t)hidden, sizeof *squares);
    const int64_t *ids = some_ids(test_model_vocab(m));
    ck_assert(layers > 0 && shards_get(m->weights, "model.layers.0.input_layernorm.weight", &norm) &&
              shards_get(m->weights, "model.embed_tokens.weight", &embed));
    float x[1024], w[1024];
    ck_assert_int_le(hidden, 1024);
    convert_to_f32(norm.data, norm.dtype, w, hidden);
    for (int t = 0; t < TOKENS; t++) {
        double mean = 0;
        convert_to_f32(tensor_row(&embed, ids[t]), embed.dtype, x, hidden);
        for (int64_t i = 0; i < hidden; i++)
            mean += (double)x[i] * (double)x[i] / (double)hidden;
        for (int64_t i = 0; i < hidden; i++)
            squares[i] += pow((double)x[i] * (double)w[i], 2) / (mean + 1e-6);
    }
    importance *c = collected_of(m, form, 1);
    expect_importance(c, 0, squares, hidden);
    importance_free(c);
    free(squares);
}
END_TEST

typedef struct seen {
    const char *path;
    double *gate, *down; /* [experts, hidden], [experts, inter]                                         */
    int64_t calls;
} seen;

/* One expert on one token, as its formula says. */
static void add_expert(const tn_site *site, int64_t expert, const float *x, double *down)
{
    const tn_tensor *gate = &site->param[TN_ROLE_GATE].tensors[expert], *up = &site->param[TN_ROLE_UP].tensors[expert];
    for (int64_t o = 0; o < gate->shape[0]; o++) {
        const float *g = (const float *)(const void *)tensor_row(gate, o);
        const float *u = (const float *)(const void *)tensor_row(up, o);
        double a = 0, b = 0;
        for (int64_t i = 0; i < gate->shape[1]; i++) {
            a += (double)g[i] * (double)x[i];
            b += (double)u[i] * (double)x[i];
        }
        down[o] += pow(a / (1 + exp(-a)) * b, 2);
    }
}

static tn_status see(void *ctx, const tn_call *call, tn_error *err)
{
    seen *s = ctx;
    (void)err;
    if (call->op != TN_OP_MOE_EXPERTS || strcmp(call->site->path, s->path) != 0)
        return TN_OK;
    s->calls++;
    int64_t hidden = call->in[0].shape[1], top_k = call->in[2].shape[1];
    int64_t inter = call->site->param[TN_ROLE_GATE].tensors[0].shape[0];
    for (int64_t t = 0; t < call->in[0].shape[0]; t++)
        for (int64_t k = 0; k < top_k; k++) {
            const float *x = (const float *)(const void *)tensor_row(&call->in[0], t);
            int64_t e = ((const int32_t *)(const void *)tensor_row(&call->in[2], t))[k];
            for (int64_t i = 0; i < hidden; i++)
                s->gate[e * hidden + i] += (double)x[i] * (double)x[i];
            add_expert(call->site, e, x, s->down + e * inter);
        }
    return TN_OK;
}

/* Only what tokens chose an expert counts for its matrices, and for the last of them what the first two make of it. */
START_TEST(what_goes_into_experts)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char form[QUANTIZE_NAME];
    tn_model *m = test_model("qwen3_moe", .dtype = "f32");
    const graph_site *site = test_model_site(m, "model.layers.0.mlp.experts", TN_OP_MOE_EXPERTS);
    int64_t experts = site->site.param[TN_ROLE_GATE].count, hidden = m->info.hidden;
    int64_t inter = site->site.param[TN_ROLE_GATE].tensors[0].shape[0];
    seen s = {.path = site->site.path,
              .gate = calloc((size_t)(experts * hidden), sizeof(double)),
              .down = calloc((size_t)(experts * inter), sizeof(double))};
    tn_session *session = test_session(m, .context = TOKENS);
    session_look(session, see, &s);
    test_model_run(session, TOKENS, some_ids(test_model_vocab(m)), .logits = NULL);
    ck_assert_int_gt(s.calls, 0);
    for (int i = 0; i < 3; i++) {
        snprintf(form, sizeof form, "model.layers.0.mlp.experts.#.%s.weight", parts[i]);
        importance *c = collected_of(m, form, experts);
        for (int64_t e = 0; e < experts; e++) {
            expect_importance(c, e, i < 2 ? s.gate + e * hidden : s.down + e * inter, i < 2 ? hidden : inter);
        }
        importance_free(c);
    }
    free(s.gate);
    free(s.down);
}
END_TEST

/* ---- a file ------------------------------------------------------------------------------------------------- */

typedef struct told {
    int64_t matrices, without, stacks, unreached;
} told;

static void tell(void *ctx, const tn_quantized *t)
{
    told *of = ctx;
    bool multiplied = encode_weighs(t->to) && strcmp(t->name, "token_embd.weight") != 0;
    of->matrices += multiplied;
    of->without += multiplied && t->error > 0 && !(t->weighed > 0);
    of->stacks += multiplied && strstr(t->name, "_exps.") != NULL;
    of->unreached += t->unreached;
    ck_assert(encode_weighs(t->to) || t->weighed <= 0);
}

/* The same token over and over goes to the same experts: all others are told. */
START_TEST(experts_that_no_token_reached)
{
    static int64_t ids[TOKENS];
    tn_error err = TN_ERROR_INIT;
    told of = {0};
    tn_model *m = test_model("qwen3_moe", .dtype = "f32");
    const graph_site *site = test_model_site(m, "model.layers.0.mlp", TN_OP_MOE_BLOCK);
    int64_t left = site->site.dim[TN_DIM_EXPERTS] - site->site.dim[TN_DIM_TOP_K];
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
    const tn_quantize_options o = {.size = sizeof o, .tensor = tell, .ctx = &of, .ids = ids, .id_count = TOKENS};
    ck_assert_msg(tn_quantize("tests/data/models/qwen3_moe", out, "Q4_0", &o, &err) == TN_OK, "%s", err.message);
    ck_assert_int_gt(left, 0);
    ck_assert_int_gt(of.stacks, 0);
    ck_assert_int_eq(of.unreached, of.stacks * left);
    ck_assert_int_eq(of.without, 0);
}
END_TEST

/* gpt-oss with the limit that its .gguf files have. */
static char *gpt_oss_model(void)
{
    static const char limit[] = "\"swiglu_limit\": ";
    char *folder = tempdir_new(), *path = tempdir_at(folder, "config.json");
    size_t size;
    tempdir_copy("tests/data/models/gpt_oss", folder);
    char *text = tempdir_read(path, &size), *at = strstr(text, limit);
    ck_assert_ptr_nonnull(at);
    at[strlen(limit)] = '7';
    tempdir_write(path, text, size);
    free(text);
    return folder;
}

static const char *const forms[] = {"deepseek_v2", "deepseek_v3", "gpt_oss_mxfp4", "gguf_mixtral/model.gguf",
                                    "qwen2_moe",   "qwen3_moe",   "phi3_longrope", "gptq_act_order",
                                    NULL};

/* Whatever form a model has, something goes into each matrix, and it is seen. NULL: gpt-oss in stacks. */
START_TEST(every_matrix_is_seen)
{
    tn_error err = TN_ERROR_INIT;
    char model[256];
    told of = {0};
    snprintf(model, sizeof model, "tests/data/models/%s", forms[_i] ? forms[_i] : "");
    const char *from = forms[_i] ? model : gpt_oss_model(), *out = tempdir_at(tempdir_new(), "q.gguf");
    const tn_quantize_options o = {.size = sizeof o,
                                   .tensor = tell,
                                   .ctx = &of,
                                   .ids = some_ids(test_model_vocab(test_model(from, .dtype = "f32"))),
                                   .id_count = TOKENS};
    ck_assert_msg(tn_quantize(from, out, "Q4_0", &o, &err) == TN_OK, "%s", err.message);
    ck_assert_int_gt(of.matrices, 0);
    ck_assert_int_eq(of.without, 0);
}
END_TEST

static float *logits_of(const char *model, const int64_t *ids, int64_t count, int64_t vocab)
{
    tn_model *m = test_model(model, .dtype = "f32");
    float *logits = calloc((size_t)(count * vocab), sizeof *logits);
    test_model_run(test_session(m, .context = count), count, ids, .logits = logits);
    return logits;
}

static void read_heldout(int64_t **ids, size_t *count)
{
    tn_error err = TN_ERROR_INIT;
    size_t length;
    char *text = tempdir_read("models/demo/heldout.txt", &length);
    tn_tokenizer *t = tn_tokenizer_open("models/demo", &err);
    ck_assert_int_eq(tn_tokenizer_encode(t, text, length, false, ids, count, &err), TN_OK);
    tn_tokenizer_free(t);
    free(text);
}

enum { VOCAB = 2048 };

static double log_sum(const float *logits)
{
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    return log(sum);
}

/* Kullback-Leibler divergence of the plain model's next token, summed over tokens. */
static double divergence(const float *plain, const float *logits, int64_t tokens)
{
    double sum = 0;
    for (int64_t t = 0; t < tokens; t++, plain += VOCAB, logits += VOCAB) {
        double a = log_sum(plain), b = log_sum(logits);
        for (int i = 0; i < VOCAB; i++)
            sum += exp((double)plain[i] - a) * ((double)plain[i] - a - (double)logits[i] + b);
    }
    return sum;
}

/* How far a file of that type is from the plain model; count: tokens behind these that it is made with, or 0. */
static double distance(const char *type, const int64_t *ids, int64_t count, const float *plain, int64_t tokens)
{
    tn_error err = TN_ERROR_INIT;
    told of = {0};
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
    tn_quantize_options o = {.size = sizeof o, .ids = count ? ids + tokens : NULL, .id_count = count};
    if (count) {
        o.tensor = tell;
        o.ctx = &of;
    }
    ck_assert_msg(tn_quantize("models/demo", out, type, &o, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(!count || (of.matrices > 0 && of.without == 0), "%lld of %lld", (long long)of.without,
                  (long long)of.matrices);
    float *logits = logits_of(out, ids, tokens, VOCAB);
    double far = divergence(plain, logits, tokens);
    free(logits);
    return far;
}

static const char *const types[] = {"Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_NL", "MXFP4"};

/* On another part of the text than the one that was read. */
START_TEST(the_demo_computes_more_nearly_the_same)
{
    enum { PART = 512 };
    int64_t *ids;
    size_t count;
    read_heldout(&ids, &count);
    float *plain = logits_of("models/demo", ids, PART, VOCAB);
    double without = distance(types[_i], ids, 0, plain, PART);
    double with = distance(types[_i], ids, (int64_t)count - PART, plain, PART);
    ck_assert_msg(with < 0.97 * without, "%s: %g with, %g without", types[_i], with, without);
    free(plain);
    free(ids);
}
END_TEST

/* ---- what cannot be ------------------------------------------------------------------------------------------ */

static int stop(void *ctx, const char *what, int64_t done, int64_t total)
{
    ck_assert_str_eq(what, "reading the text");
    ck_assert(done > 0 && done <= total && total == TOKENS);
    return ++*(int *)ctx == 1;
}

START_TEST(what_is_refused)
{
    tn_error err = TN_ERROR_INIT;
    int64_t ids[TOKENS] = {0};
    int calls = 0;
    size_t size;
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
    tn_quantize_options o = {.size = sizeof o, .ids = ids, .id_count = 127, .progress = stop, .ctx = &calls};
    tempdir_write(out, "before", 6);
    ck_assert_int_eq(tn_quantize("models/demo", out, "Q4_0", &o, &err), TN_E_INPUT);
    suite_expect_in(err.message, "has 127 tokens, which say too little of what counts; give at least 128");
    tn_error_clear(&err);
    o.id_count = TOKENS;
    ids[TOKENS - 1] = 2048;
    ck_assert_int_eq(tn_quantize("models/demo", out, "Q4_0", &o, &err), TN_E_INPUT);
    suite_expect_in(err.message, "token id 2048 is outside the vocabulary of 2048");
    tn_error_clear(&err);
    ck_assert_int_eq(tn_quantize("models/demo", out, "q8_0", &o, &err), TN_E_USAGE);
    suite_expect_in(err.message, "a text changes nothing of Q8_0; leave it out, or choose another type");
    tn_error_clear(&err);
    ids[TOKENS - 1] = 0;
    ck_assert_int_eq(tn_quantize("models/demo", out, "Q4_0", &o, &err), TN_E_CANCELLED);
    ck_assert_int_eq(calls, 1);
    char *left = tempdir_read(out, &size);
    ck_assert_str_eq(left, "before");
    free(left);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("importance", 120);
    tcase_add_loop_test(tcase, columns_that_count_are_nearer, 0, sizeof weighed / sizeof *weighed);
    tcase_add_loop_test(tcase, odd_rows, 0, sizeof weighed / sizeof *weighed);
    suite_add(tcase, what_goes_into_a_matrix, what_goes_into_experts, experts_that_no_token_reached, what_is_refused);
    tcase_add_loop_test(tcase, every_matrix_is_seen, 0, sizeof forms / sizeof *forms);
    tcase_add_loop_test(tcase, the_demo_computes_more_nearly_the_same, 0, sizeof types / sizeof *types);
    return suite_run();
}
