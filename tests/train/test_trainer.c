/* The loss of texts and its gradients: what is refused, what adds up, and what does not depend on how texts come. That
 * gradients are right is check_training's to show, for every model. */
#include "base/memory.h"
#include "op/op.h"
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"
#include "train_texts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tn_trainer *open_trainer(const char *model, const char *dtype)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model(model, .dtype = dtype, .training = true);
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    return t;
}

/* The largest difference between times x and y, in units of the largest element. */
static double apart(const tn_tensor *x, double times, const tn_tensor *y)
{
    const float *a = x->data, *b = y->data;
    double most = 0, largest = 0;
    for (int64_t i = 0; i < tn_tensor_count(x); i++) {
        double d = fabs(times * (double)a[i] - (double)b[i]), size = fabs((double)b[i]);
        most = d > most ? d : most;
        largest = size > largest ? size : largest;
    }
    return most / largest;
}

static void expect_same_bits(const tn_trainer *a, const tn_trainer *b, const char *name)
{
    tn_tensor x = gradient_of(a, name), y = gradient_of(b, name);
    ck_assert_msg(memcmp(x.data, y.data, (size_t)tn_tensor_count(&x) * sizeof(float)) == 0, "%s: other bits", name);
}

static const char *const some[] = {"model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight",
                                   "model.layers.1.mlp.down_proj.weight", "model.norm.weight"};

START_TEST(texts_together_are_texts_apart)
{
    tn_trainer *t = open_trainer("llama", "f32"), *u = open_trainer("llama", "f32");
    const tn_train_texts all = texts_of(ids, both, 2), first = texts_of(ids, both, 1),
                         second = texts_of(ids + 6, both + 1, 1);
    tn_train_loss whole = learn(t, &all), a = learn(u, &first), b = learn(u, &second);
    ck_assert_int_eq(whole.counted, 8);
    ck_assert_int_eq(a.counted + b.counted, 8);
    ck_assert_double_eq_tol(whole.loss, a.loss + b.loss, 1e-6 * whole.loss);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        tn_tensor x = gradient_of(t, some[i]), y = gradient_of(u, some[i]);
        ck_assert_msg(apart(&x, 1, &y) < 1e-5, "%s: %g", some[i], apart(&x, 1, &y));
    }
    tn_trainer_close(t);
    tn_trainer_close(u);
}
END_TEST

START_TEST(calls_add_up_until_they_are_cleared)
{
    tn_trainer *t = open_trainer("qwen3_moe", "f32"), *u = open_trainer("qwen3_moe", "f32");
    const tn_train_texts all = texts_of(ids, both, 2);
    learn(t, &all);
    learn(u, &all);
    learn(u, &all);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        if (strstr(some[i], "mlp"))
            continue;
        tn_tensor x = gradient_of(t, some[i]), y = gradient_of(u, some[i]);
        ck_assert_msg(apart(&x, 2, &y) < 1e-6, "%s", some[i]);
    }
    tn_trainer_clear(u);
    ck_assert_int_eq(tn_trainer_gradient(u, some[0], &(tn_tensor){0}, NULL), TN_E_USAGE);
    learn(u, &all);
    for (size_t i = 0; i < 2; i++) {
        expect_same_bits(t, u, some[i]);
    }
    tn_trainer_close(t);
    tn_trainer_close(u);
}
END_TEST

/* Labels that do not count, and the first of a text, whatever it is, change nothing. */
START_TEST(what_does_not_count)
{
    tn_trainer *t = open_trainer("llama", "f32");
    int64_t labels[10];
    memcpy(labels, ids, sizeof labels);
    tn_train_texts texts = texts_of(ids, both, 2);
    texts.labels = labels;
    texts.divisor = 0;
    tn_train_loss all = learn(t, &texts);
    labels[0] = labels[6] = 17;
    tn_train_loss same = learn(t, &texts);
    ck_assert_double_eq(all.loss, same.loss);
    labels[3] = -100;
    ck_assert_int_eq(learn(t, &texts).counted, 7);
    for (int i = 0; i < 10; i++)
        labels[i] = -100;
    tn_trainer_clear(t);
    tn_train_loss none = learn(t, &texts);
    ck_assert_int_eq(none.counted, 0);
    ck_assert_double_eq(none.loss, 0);
    ck_assert_int_eq(tn_trainer_gradient(t, some[0], &(tn_tensor){0}, NULL), TN_E_USAGE);
    tn_trainer_close(t);
}
END_TEST

/* The row of the padding token learns nothing from where it stands in a text: torch's embedding is told of it. */
START_TEST(padding_learns_nothing)
{
    tn_trainer *t = open_trainer("gemma3n_text", "f32"); /* pad_token_id 0                                   */
    const int64_t text[] = {9, 0, 7, 0, 12, 5}, length = 6;
    const tn_train_texts texts = texts_of(text, &length, 1);
    learn(t, &texts);
    tn_tensor g = gradient_of(t, "model.embed_tokens_per_layer.weight");
    const float *row = g.data;
    double padding = 0, other = 0;
    for (int64_t i = 0; i < g.shape[1]; i++) {
        padding += fabs((double)row[i]);
        other += fabs((double)row[9 * g.shape[1] + i]);
    }
    ck_assert_double_eq(padding, 0);
    ck_assert_double_gt(other, 0);
    tn_trainer_close(t);
}
END_TEST

/* The same bits on one thread and on more. */
START_TEST(threads_change_nothing)
{
    tn_train_texts all = texts_of(ids, both, 2);
    tn_trainer *one = NULL, *more = NULL;
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("qwen3", .dtype = "f32", .training = true, .threads = 1);
    one = tn_trainer_open(m, NULL, &err);
    ck_assert_ptr_nonnull(one);
    learn(one, &all);
    tn_model *n = test_model("qwen3", .dtype = "f32", .training = true, .threads = 3);
    more = tn_trainer_open(n, NULL, &err);
    ck_assert_ptr_nonnull(more);
    learn(more, &all);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        expect_same_bits(one, more, some[i]);
    }
    tn_trainer_close(one);
    tn_trainer_close(more);
}
END_TEST

/* The loss of backward to the bit, and nothing is added to gradients. */
START_TEST(evaluating_is_the_loss_alone)
{
    tn_error err = TN_ERROR_INIT;
    tn_train_loss loss = {.size = sizeof loss};
    tn_trainer *t = open_trainer("qwen3_moe", "f32"), *u = open_trainer("qwen3_moe", "f32");
    const tn_train_texts all = texts_of(ids, both, 2), first = texts_of(ids, both, 1);
    ck_assert_int_eq(tn_trainer_evaluate(t, &all, &loss, &err), TN_OK);
    ck_assert_int_eq(tn_trainer_gradient(t, some[0], &(tn_tensor){0}, NULL), TN_E_USAGE);
    tn_train_loss same = learn(t, &all);
    ck_assert_double_eq(loss.loss, same.loss);
    ck_assert_int_eq(loss.counted, 8);
    learn(u, &all);
    ck_assert_int_eq(tn_trainer_evaluate(u, &first, NULL, &err), TN_OK);
    expect_same_bits(t, u, some[0]);
    tn_trainer_close(t);
    tn_trainer_close(u);
}
END_TEST

/* A loss that is added times its factor, whatever the divisor, in evaluating, too; of routers in f32 and with biases in
 * a model of 16 bits as well. */
START_TEST(routers_have_a_loss)
{
    static const struct {
        const char *name, *dtype;
    } models[] = {{"qwen3_moe", "f32"}, {"ernie4_5_moe", "bf16"}, {"gpt_oss", "bf16"}, {"mixtral", "f16"}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_model *m = test_model(models[i].name, .dtype = models[i].dtype, .training = true);
        const tn_train_options options = {.size = sizeof options, .router_loss = 0.25};
        tn_trainer *plain = tn_trainer_open(m, NULL, &err), *t = tn_trainer_open(m, &options, &err);
        ck_assert_msg(plain && t, "%s", err.message);
        const tn_train_texts all = texts_of(ids, both, 2);
        tn_train_loss alone = learn(plain, &all), with = learn(t, &all), again = {.size = sizeof again};
        ck_assert_double_eq(alone.router, 0);
        ck_assert_double_gt(with.router, 0.9);
        ck_assert_double_eq_tol(with.loss, alone.loss + 0.25 * with.router, 1e-6);
        ck_assert_int_eq(tn_trainer_evaluate(t, &all, &again, &err), TN_OK);
        ck_assert_double_eq(again.loss, with.loss);
        tn_trainer_close(t);
        tn_trainer_close(plain);
    }
    tn_error err = TN_ERROR_INIT;
    tn_train_options options = {.size = sizeof options, .router_loss = 0.25};
    ck_assert_ptr_null(tn_trainer_open(test_model("deepseek_v3", .dtype = "f32", .training = true), &options, &err));
    ck_assert_str_eq(err.message, "is a deepseek_v3, whose routers have no loss");
    options.router_loss = -1;
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_ptr_null(tn_trainer_open(test_model("qwen3_moe", .dtype = "f32", .training = true), &options, &err));
    ck_assert_str_eq(err.where, "router_loss");
}
END_TEST

/* All gradients of a model's texts, from those with another choice of what is kept. */
static void expect_all_same(tn_model *m, tn_trainer *a, tn_trainer *b, const char *name)
{
    size_t wrong = 0, count = 0;
    for (size_t i = 0; i < shards_count(m->weights); i++) {
        tn_tensor x, y;
        const char *tensor = shards_name(m->weights, i);
        bool there = tn_trainer_gradient(a, tensor, &x, NULL) == TN_OK;
        ck_assert_int_eq(tn_trainer_gradient(b, tensor, &y, NULL) == TN_OK, there);
        count += there;
        wrong += there && memcmp(x.data, y.data, (size_t)tn_tensor_count(&x) * sizeof(float)) != 0;
    }
    ck_assert_msg(wrong == 0 && count > 0, "%s: %zu of %zu gradients have other bits", name, wrong, count);
}

static tn_trainer *open_keeping(tn_model *m, tn_keep keep, double router_loss)
{
    tn_error err = TN_ERROR_INIT;
    const tn_train_options options = {.size = sizeof options, .keep = keep, .router_loss = router_loss};
    tn_trainer *t = tn_trainer_open(m, &options, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    return t;
}

/* Everything kept, and layers computed again: the same bits, in a second call, too, which finds memory that was used.
 */
static void expect_kept_alike(tn_model *m, const char *name, const tn_train_texts *texts, double router_loss)
{
    tn_trainer *all = open_keeping(m, TN_KEEP_ALL, router_loss), *again = open_keeping(m, TN_KEEP_LAYERS, router_loss);
    for (int k = 0; k < 2; k++) {
        tn_train_loss a = learn(all, texts), b = learn(again, texts);
        ck_assert_double_eq(a.loss, b.loss);
        expect_all_same(m, all, again, name);
    }
    tn_trainer_close(all);
    tn_trainer_close(again);
}

/* Layers again, or some of them: the same bits, whatever crosses from layer to layer: sums that trail, streams, inputs
 * of every layer, keys of other layers, chosen keys, states. */
START_TEST(layers_again_have_the_same_bits)
{
    static const struct {
        const char *name, *dtype;
        double router_loss;
    } models[] = {{"llama", "f32", 0},
                  {"llama", "bf16", 0},
                  {"qwen3_moe", "f32", 0.5},
                  {"gpt_oss", "bf16", 0.5},
                  {"gemma2", "bf16", 0},
                  {"gemma3n_text", "f32", 0},
                  {"gemma4_text", "f32", 0},
                  {"glm_moe_dsa", "f32", 0},
                  {"deepseek_v32", "f32", 0},
                  {"zamba2", "f32", 0},
                  {"qwen3_next", "f32", 0},
                  {"kimi_linear", "f32", 0},
                  {"mamba2", "f32", 0},
                  {"nemotron_h", "f32", 0},
                  {"falcon_h1", "bf16", 0},
                  {"minimax", "f32", 0},
                  {"lfm2", "f32", 0},
                  {"gpt2", "f32", 0},
                  {"phi", "f32", 0},
                  {"olmo2", "f32", 0},
                  {"bamba", "f32", 0},
                  {"qwen2_vl", "f32", 0},
                  {"granitemoehybrid_pad", "f32", 0},
                  {"mimo_v2_flash", "f32", 0}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        tn_model *m = test_model(models[i].name, .dtype = models[i].dtype, .training = true);
        const tn_train_texts texts = texts_of(ids, both, 2);
        expect_kept_alike(m, models[i].name, &texts, models[i].router_loss);
    }
}
END_TEST

/* So many tokens that memory of gradients is given back on the way: the same bits as layer by layer, where little is;
 * and again in what was given back. */
START_TEST(gradients_are_given_back_on_the_way)
{
    enum { LONG = 128, TEXTS = 32 };
    static const struct {
        const char *name, *dtype;
    } models[] = {{"llama", "f32"}, {"llama", "mixed"}, {"gemma3n_text", "f32"}, {"qwen3_next", "f32"}};
    static int64_t many[LONG * TEXTS], lengths[TEXTS];
    for (int64_t i = 0; i < LONG * TEXTS; i++) {
        many[i] = 3 + i * 7 % 37;
        lengths[i / LONG] = LONG;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        tn_model *m = test_model(models[i].name, .dtype = models[i].dtype, .training = true);
        const tn_train_texts texts = texts_of(many, lengths, TEXTS);
        expect_kept_alike(m, models[i].name, &texts, 0);
    }
}
END_TEST

START_TEST(layers_are_kept_while_they_fit)
{
    tn_model *m = test_model("gemma3n_text", .dtype = "f32", .training = true);
    tn_trainer *all = open_keeping(m, TN_KEEP_ALL, 0);
    const tn_train_texts texts = texts_of(ids, both, 2);
    learn(all, &texts);
    for (size_t bytes = 1 << 16; bytes < (size_t)1 << 26; bytes += bytes / 8) {
        memory_pretend(bytes);
        tn_trainer *some_layers = open_keeping(m, TN_KEEP_AUTO, 0);
        learn(some_layers, &texts);
        expect_all_same(m, all, some_layers, "gemma3n_text");
        tn_trainer_close(some_layers);
    }
    memory_pretend(0);
    tn_trainer_close(all);
}
END_TEST

static int backwards;

static tn_status backward_counted(const tn_call *call, tn_error *err)
{
    backwards++;
    return test_kernel_backward(call, err);
}

/* Kernels of the products that an MLP is composed of make its gradients, too. */
START_TEST(parts_have_their_kernels)
{
    tn_error err = TN_ERROR_INIT;
    const tn_train_texts all = texts_of(ids, both, 2);
    tn_trainer *plain = open_trainer("llama", "f32");
    learn(plain, &all);
    tn_model *m = test_model("llama", .dtype = "f32", .training = true);
    test_kernel_add(&(test_kernel){.id = "linear", .op = TN_OP_LINEAR, .backward = backward_counted});
    test_model_apply(m, NULL, "linear");
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    backwards = 0;
    learn(t, &all);
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(m, &info);
    /* Of each layer 4 products of attention and 3 of its MLP; the head of each text. */
    ck_assert_int_eq(backwards, 7 * info.layers + 2);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        tn_tensor x = gradient_of(plain, some[i]), y = gradient_of(t, some[i]);
        ck_assert_msg(apart(&x, 1, &y) < 1e-5, "%s", some[i]);
    }
    tn_trainer_close(t);
    tn_trainer_close(plain);
}
END_TEST

static void expect_refused(tn_trainer *t, const tn_train_texts *texts, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_trainer_backward(t, texts, NULL, &err), TN_E_USAGE);
    ck_assert_msg(strstr(err.message, words) != NULL, "%s", err.message);
}

/* A kernel whose gradients are wrong from so many tokens on. */
enum { WRONG_FROM = 600 };

static tn_status backward_wrong_above(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    if (op_tokens(call) >= WRONG_FROM && call->grads->in[0].data)
        ((float *)call->grads->in[0].data)[0] += 1;
    return status;
}

/* Kernels are checked with calls that are larger than those of their first use before they are used for them. */
START_TEST(large_calls_are_checked)
{
    static int64_t text[WRONG_FROM];
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = "f32", .training = true);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .backward = backward_wrong_above});
    test_model_apply(m, NULL, "norm");
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    for (int i = 0; i < WRONG_FROM; i++)
        text[i] = 3 + i % 50;
    int64_t fewer = WRONG_FROM - 1, all = WRONG_FROM;
    tn_train_texts texts = texts_of(text, &fewer, 1);
    learn(t, &texts);
    texts.lengths = &all;
    ck_assert_int_eq(tn_trainer_backward(t, &texts, NULL, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, "norm");
    suite_expect_in(err.message, "fewer tokens");
    tn_trainer_close(t);
}
END_TEST

START_TEST(what_is_refused)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor g;
    tn_trainer *t = open_trainer("llama", "f32");
    int64_t bad[10], long_one = 5000, none = 0;
    memcpy(bad, ids, sizeof bad);
    tn_train_texts texts = texts_of(bad, both, 2);
    bad[2] = 1 << 20;
    expect_refused(t, &texts, "token 2 has id 1048576");
    texts = texts_of(ids, &long_one, 1);
    expect_refused(t, &texts, "text 0 has 5000 tokens, and all together may have 1 to 4096");
    texts = texts_of(ids, &none, 1);
    expect_refused(t, &texts, "text 0 has 0 tokens");
    texts = texts_of(ids, both, 0);
    expect_refused(t, &texts, "no texts");
    ck_assert_int_eq(tn_trainer_gradient(t, "model.norm", &g, &err), TN_E_USAGE);
    ck_assert_str_eq(err.message, "the checkpoint has no such tensor");
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tn_trainer_gradient(t, "model.norm.weight", &g, &err), TN_E_USAGE);
    ck_assert_str_eq(err.message, "has no gradient: nothing that was computed read it");
    tn_trainer_close(t);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_ptr_null(tn_trainer_open(test_model("llama", .dtype = "f32"), NULL, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "opened for training"));
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_ptr_null(tn_trainer_open(test_model("qwen3_embedding", .dtype = "f32", .training = true), NULL, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "has no head"));
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("gradients of whole models", 60);
    suite_add(tc, texts_together_are_texts_apart, calls_add_up_until_they_are_cleared, what_does_not_count,
              padding_learns_nothing, threads_change_nothing, evaluating_is_the_loss_alone, routers_have_a_loss,
              layers_again_have_the_same_bits, gradients_are_given_back_on_the_way, layers_are_kept_while_they_fit,
              large_calls_are_checked, parts_have_their_kernels, what_is_refused);
    return suite_run();
}
