/* tenon run --json --logprobs: of what the model computed, whatever tokens are drawn by. */
#include "printed.h"
#include "suite.h"
#include "test_models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

#define MODEL "models/demo"
#define PROMPT "And it came to pass"
#define RUN(...) logprobs_of(TENON(NULL, "run", "--json", "--dtype=f32", "--kernels=none", __VA_ARGS__))

/* The list, one of each token. */
static json_t *logprobs_of(process_result r)
{
    json_t *run = printed_json(&r, 0), *list = json_incref(json_object_get(run, "logprobs"));
    const json_t *tokens = json_object_get(run, "tokens");
    ck_assert_uint_eq(json_array_size(list), json_array_size(tokens));
    ck_assert(printed_number(run, "generated_tokens") == (double)json_array_size(tokens));
    for (size_t i = 0; i < json_array_size(list); i++)
        ck_assert(json_equal(json_object_get(json_array_get(list, i), "id"), json_array_get(tokens, i)));
    return list;
}

/* Those of the model for what follows the prompt, from its logits. */
static double *expected(int64_t *vocab)
{
    tn_model *m = test_model_open(MODEL, "f32");
    *vocab = test_model_vocab(m);
    const int64_t ids[] = {296, 354, 473, 290, 619};
    tn_session *s = test_model_session(m, .context = 8);
    float *logits = malloc((size_t)*vocab * sizeof *logits);
    double *all = malloc((size_t)*vocab * sizeof *all), sum = 0;
    ck_assert(logits && all);
    test_model_run(s, 5, ids, .last_logits = logits);
    for (int64_t i = 0; i < *vocab; i++)
        sum += exp(logits[i]);
    for (int64_t i = 0; i < *vocab; i++)
        all[i] = logits[i] - log(sum);
    free(logits);
    tn_session_free(s);
    tn_model_close(m);
    return all;
}

/* Ten digits are printed. */
static void expect_near(double a, double b)
{
    ck_assert_msg(fabs(a - b) <= 1e-8 * (1 + fabs(b)), "%.12g is not %.12g", a, b);
}

/* The best first; how many are better than the last is how many stand before it. */
static void expect_best(const json_t *top, const double *all, int64_t vocab)
{
    size_t count = json_array_size(top), better = 0;
    ck_assert_uint_gt(count, 0);
    double last = printed_number(json_array_get(top, count - 1), "logprob");
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(top, i);
        expect_near(printed_number(one, "logprob"), all[(int64_t)printed_number(one, "id")]);
        ck_assert(i == 0 || printed_number(one, "logprob") <= printed_number(json_array_get(top, i - 1), "logprob"));
    }
    for (int64_t i = 0; i < vocab; i++)
        better += all[i] > last + 1e-7;
    ck_assert_uint_le(better, count - 1);
}

START_TEST(they_are_those_of_the_logits)
{
    int64_t vocab;
    double *all = expected(&vocab);
    json_t *greedy = RUN(MODEL, PROMPT, "-n4", "--temperature=0", "--logprobs=20");
    const json_t *first = json_array_get(greedy, 0), *top = json_object_get(first, "top");
    ck_assert_uint_eq(json_array_size(top), 20);
    expect_best(top, all, vocab);
    expect_near(printed_number(first, "logprob"), printed_number(json_array_get(top, 0), "logprob"));
    ck_assert(json_equal(json_object_get(first, "id"), json_object_get(json_array_get(top, 0), "id")));
    ck_assert_str_eq(json_string_value(json_object_get(first, "text")), ",");
    /* However a token is drawn. */
    json_t *drawn =
        RUN(MODEL, PROMPT, "-n1", "--temperature=3", "--top-k=1", "--repetition-penalty=1.5", "--logprobs=20");
    ck_assert(json_equal(json_object_get(json_array_get(drawn, 0), "top"), top));
    json_decref(drawn);
    drawn = RUN(MODEL, PROMPT, "-n1", "--temperature=100", "--top-k=0", "--seed=3", "--logprobs=0");
    first = json_array_get(drawn, 0);
    ck_assert_uint_eq(json_array_size(json_object_get(first, "top")), 0);
    ck_assert(json_is_array(json_object_get(first, "top")));
    expect_near(printed_number(first, "logprob"), all[(int64_t)printed_number(first, "id")]);
    json_decref(drawn);
    json_decref(greedy);
    free(all);
}
END_TEST

static bool has_replacement(const json_t *one)
{
    const char *text = json_string_value(json_object_get(one, "text"));
    ck_assert_ptr_nonnull(text);
    return strstr(text, "\xef\xbf\xbd") != NULL;
}

/* Hot enough for tokens that are a part of a character. Without a tokenizer there is no text. */
START_TEST(texts_are_whole)
{
    json_t *list = RUN(MODEL, PROMPT, "-n99", "--temperature=100", "--top-k=0", "--top-p=1", "--seed=1", "--logprobs=1",
                       "--ignore-eos");
    size_t replaced = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        replaced += has_replacement(json_array_get(list, i));
    ck_assert_uint_gt(replaced, 0);
    json_decref(list);
    list = RUN("tests/data/models/llama", "--tokens=5,6", "-n2", "--temperature=0", "--logprobs=1");
    ck_assert(json_is_null(json_object_get(json_array_get(list, 1), "text")));
    json_decref(list);
}
END_TEST

START_TEST(they_are_asked_for)
{
    process_result r = TENON(NULL, "run", MODEL, PROMPT, "-n1", "--json", "--kernels=none");
    json_t *run = printed_json(&r, 0);
    ck_assert_ptr_null(json_object_get(run, "logprobs"));
    process_expect_error(TENON(NULL, "run", MODEL, PROMPT, "--logprobs=1"), 2, "--logprobs goes with --json; add it",
                         NULL);
    process_expect_error(TENON(NULL, "run", MODEL, PROMPT, "--json", "--logprobs=21"), 2, "--logprobs", "20", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, PROMPT, "--json", "--logprobs=-1"), 2, "--logprobs", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("tenon run --logprobs", 120);
    suite_add(tc, they_are_those_of_the_logits, texts_are_whole, they_are_asked_for);
    return process_main();
}
