/* The loss of texts and its gradients: what is refused, what adds up, and what does not depend on how texts come. That
 * gradients are right is check_training's to show, for every model. */
#include "base/memory.h"
#include "op/op.h"
#include "open/model.h"
#include "suite.h"
#include "tempdir.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tenon/half.h>
#include <tenon/tenon.h>
#include <unistd.h>

static const int64_t ids[] = {9, 4, 7, 30, 12, 5, 21, 8, 40, 3};
static const int64_t both[] = {6, 4};

static tn_trainer *open_trainer(const char *model, const char *dtype)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model(model, .dtype = dtype, .training = true);
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    return t;
}

static tn_train_loss learn(tn_trainer *t, const tn_train_texts *texts)
{
    tn_error err = TN_ERROR_INIT;
    tn_train_loss loss = {.size = sizeof loss};
    ck_assert_msg(tn_trainer_backward(t, texts, &loss, &err) == TN_OK, "%s: %s", err.where, err.message);
    return loss;
}

static tn_train_texts texts_of(const int64_t *first, const int64_t *lengths, int64_t count)
{
    return (tn_train_texts){.size = sizeof(tn_train_texts),
                            .ids = first,
                            .labels = first,
                            .lengths = lengths,
                            .count = count,
                            .divisor = 8};
}

static tn_tensor gradient_of(const tn_trainer *t, const char *name)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor g;
    ck_assert_msg(tn_trainer_gradient(t, name, &g, &err) == TN_OK, "%s: %s", err.where, err.message);
    return g;
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

static void expect_same_file(const char *a, const char *b)
{
    size_t size_a, size_b;
    char *x = tempdir_read(a, &size_a), *y = tempdir_read(b, &size_b);
    ck_assert_uint_eq(size_a, size_b);
    ck_assert_msg(memcmp(x, y, size_a) == 0, "%s and %s differ", a, b);
    free(x);
    free(y);
}

static void expect_state_refused(tn_trainer *t, const char *file, tn_status status, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_trainer_load_state(t, file, &err), status);
    suite_expect_in(err.message, words);
}

typedef struct how {
    const char *name, *dtype;
    tn_precision precision;
    int32_t threads;
} how;

static tn_trainer *open_as(const how *h, tn_model **model)
{
    tn_error err = TN_ERROR_INIT;
    const tn_train_options options = {.size = sizeof options, .precision = h->precision};
    *model = test_model(h->name, .dtype = h->dtype, .training = true, .threads = h->threads);
    tn_trainer *t = tn_trainer_open(*model, &options, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    return t;
}

static const float *weights_of(const tn_model *m, const char *name)
{
    return shards_used(m->weights, name, TN_F32);
}

/* Steps lower the loss; what is not read stays as it is, to the bit, and nobody can write to weights between steps. */
START_TEST(steps_go_down)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = "f32", .training = true);
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    const tn_train_texts all = texts_of(ids, both, 2);
    const tn_train_step step = {.size = sizeof step, .rate = 1e-3, .decay = 0.01, .max_norm = 1};
    const float *norm_weight = weights_of(m, "model.norm.weight"), before = norm_weight[0];
    double first = learn(t, &all).loss, norm = 0;
    for (int i = 0; i < 10; i++) {
        ck_assert_msg(tn_trainer_step(t, &step, &norm, &err) == TN_OK, "%s", err.message);
        ck_assert_double_gt(norm, 0);
        ck_assert_double_lt(learn(t, &all).loss, first);
    }
    ck_assert_float_ne(norm_weight[0], before);
    /* Without gradients nothing is read, and nothing moves. */
    float now = norm_weight[0];
    tn_trainer_clear(t);
    ck_assert_int_eq(tn_trainer_step(t, &step, &norm, &err), TN_OK);
    ck_assert_double_eq(norm, 0);
    ck_assert_float_eq(norm_weight[0], now);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        ((float *)(uintptr_t)norm_weight)[0] = 1;
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0));
    tn_trainer_close(t);
}
END_TEST

/* What was trained, written and opened again, has the same weights to the bit; of a type whose matrices are turned when
 * they are read, too. */
START_TEST(what_is_saved_comes_back)
{
    static const char *const names[] = {"llama", "gpt2"};
    for (int n = 0; n < 2; n++) {
        tn_error err = TN_ERROR_INIT;
        tn_model *m = test_model(names[n], .dtype = "f32", .training = true);
        tn_trainer *t = tn_trainer_open(m, NULL, &err);
        const tn_train_texts all = texts_of(ids, both, 2);
        const tn_train_step step = {.size = sizeof step, .rate = 1e-2};
        char *folder = tempdir_new(), *out = tempdir_path(folder, "trained");
        double first = learn(t, &all).loss;
        ck_assert_int_eq(tn_trainer_step(t, &step, NULL, &err), TN_OK);
        double second = learn(t, &all).loss;
        ck_assert_double_ne(first, second);
        ck_assert_msg(tn_trainer_save(t, out, &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_int_eq(tn_trainer_save(t, out, &err), TN_E_INPUT);
        suite_expect_in(err.message, "is there already");
        tn_trainer_close(t);
        tn_model *again = test_model(out, .dtype = "f32", .training = true);
        t = tn_trainer_open(again, NULL, &err);
        ck_assert_double_eq(learn(t, &all).loss, second);
        tn_trainer_close(t);
        free(out);
        tempdir_remove(folder);
    }
}
END_TEST

/* One element by hand, over two steps: the formulas of train.h. */
START_TEST(a_step_is_adamw)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = "f32", .training = true);
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    const tn_train_texts all = texts_of(ids, both, 2);
    const char *const names[] = {"model.layers.0.self_attn.k_proj.weight", "model.norm.weight"};
    for (int n = 0; n < 2; n++) {
        const float *w = weights_of(m, names[n]);
        double p = w[3], first = 0, second = 0, norm;
        const tn_train_step step = {
            .size = sizeof step, .rate = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .decay = 0.1};
        tn_trainer *own = tn_trainer_open(m, NULL, &err);
        for (int i = 1; i <= 2; i++) {
            learn(own, &all);
            tn_tensor grad = gradient_of(own, names[n]);
            double g = ((const float *)grad.data)[3];
            first += 0.2 * (g - first);
            second = 0.9 * second + 0.1 * g * g;
            p -= n == 0 ? 0.01 * 0.1 * p : 0; /* norms do not decay                                             */
            p -= 0.01 / (1 - pow(0.8, i)) * first / (sqrt(second) / sqrt(1 - pow(0.9, i)) + 1e-6);
            ck_assert_int_eq(tn_trainer_step(own, &step, &norm, &err), TN_OK);
            ck_assert_double_eq_tol(w[3], p, 1e-6);
        }
        tn_trainer_close(own);
    }
    tn_trainer_close(t);
}
END_TEST

/* Text i of a training: others at every step. */
static void take_step(tn_trainer *t, int64_t i)
{
    tn_error err = TN_ERROR_INIT;
    const tn_train_texts texts = texts_of(ids + i % 4, both + 1, 1);
    const tn_train_step step = {.size = sizeof step, .rate = 1e-2 / (double)(i + 1), .decay = 0.01, .max_norm = 1};
    learn(t, &texts);
    ck_assert_msg(tn_trainer_step(t, &step, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
}

/* Steps, a state, and steps of another model's trainer that begins there: the bits of one that never stopped; on one
 * thread and on two, of experts and of a type whose matrices are turned, in all precisions. */
START_TEST(a_state_goes_on)
{
    static const how runs[] = {{"qwen3_moe", "f32", TN_PRECISION_AUTO, 1},  {"gpt2", "f32", TN_PRECISION_AUTO, 2},
                               {"qwen3_moe", "bf16", TN_PRECISION_AUTO, 2}, {"gpt2", "bf16", TN_PRECISION_MIXED, 1},
                               {"qwen3_moe", "bf16", TN_PRECISION_PURE, 1}, {"gpt2", "bf16", TN_PRECISION_PURE, 2}};
    enum { BEFORE = 3, ALL = 6 };
    for (size_t n = 0; n < sizeof runs / sizeof *runs; n++) {
        tn_error err = TN_ERROR_INIT;
        how other_threads = runs[n];
        other_threads.threads = 3 - runs[n].threads;
        char *folder = tempdir_new(), *file = tempdir_at(folder, "state"), *one = tempdir_at(folder, "one"),
             *two = tempdir_at(folder, "two");
        tn_model *m, *again;
        tn_trainer *t = open_as(&runs[n], &m), *u = open_as(&other_threads, &again);
        for (int i = 0; i < BEFORE; i++)
            take_step(t, i);
        ck_assert_msg(tn_trainer_save_state(t, file, &err) == TN_OK, "%s: %s", err.where, err.message);
        const tn_train_texts other = texts_of(ids, both, 1);
        learn(u, &other); /* gradients that are gone when a state comes */
        ck_assert_msg(tn_trainer_load_state(u, file, &err) == TN_OK, "%s: %s", err.where, err.message);
        for (int i = BEFORE; i < ALL; i++) {
            take_step(t, i);
            take_step(u, i);
        }
        ck_assert_int_eq(tn_trainer_save_state(t, one, &err), TN_OK);
        ck_assert_int_eq(tn_trainer_save_state(u, two, &err), TN_OK);
        expect_same_file(one, two);
        tn_trainer_close(t);
        tn_trainer_close(u);
        tempdir_remove(folder);
    }
}
END_TEST

/* A state of another model, of none, or of one step with a tensor too many: named, and nothing has changed. */
START_TEST(states_that_do_not_fit)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = tempdir_new(), *file = tempdir_at(folder, "state");
    tn_model *m, *other;
    tn_trainer *t = open_as(&(how){"llama", "f32", TN_PRECISION_AUTO, 1}, &m),
               *u = open_as(&(how){"qwen3", "f32", TN_PRECISION_AUTO, 1}, &other);
    const float *weight = weights_of(other, "model.norm.weight"), before = weight[0];
    expect_state_refused(u, "tests/data/models/llama/model.safetensors", TN_E_INPUT, "it has no 'steps'");
    expect_state_refused(u, file, TN_E_INPUT, "No such file");
    ck_assert_int_eq(tn_trainer_save_state(t, file, &err), TN_OK);
    expect_state_refused(u, file, TN_E_INPUT, "has no 'value.");
    ck_assert_int_eq(tn_trainer_load_state(t, file, &err), TN_OK); /* of no step                              */
    take_step(t, 0);
    expect_state_refused(t, file, TN_E_INPUT, "has 0 elements");
    ck_assert_int_eq(tn_trainer_save_state(t, file, &err), TN_OK);
    expect_state_refused(u, file, TN_E_INPUT, "value.");
    ck_assert_float_eq(weight[0], before);
    tn_trainer_close(t);
    tn_trainer_close(u);
    tempdir_remove(folder);
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

static double rounded(double x)
{
    return (double)tn_bf16_to_f32(tn_f32_to_bf16((float)x));
}

/* An element by hand, over three steps: what is stored in bf16 is rounded once, and what steps are computed with is
 * what is stored; the norm is one in bf16. With masters the weight is theirs, rounded. */
START_TEST(a_step_in_16_bits)
{
    const char *name = "model.layers.0.self_attn.k_proj.weight";
    for (int pure = 0; pure < 2; pure++) {
        tn_error err = TN_ERROR_INIT;
        tn_model *m;
        tn_trainer *t = open_as(&(how){"llama", "bf16", pure ? TN_PRECISION_PURE : TN_PRECISION_MIXED, 1}, &m);
        const tn_train_texts all = texts_of(ids, both, 2);
        const tn_train_step step = {.size = sizeof step, .rate = 0.003, .beta1 = 0.75, .beta2 = 0.875, .eps = 1e-6};
        const uint16_t *w = shards_used(m->weights, name, TN_BF16);
        double p = (double)tn_bf16_to_f32(w[3]), first = 0, second = 0, norm;
        for (int i = 1; i <= 3; i++) {
            learn(t, &all);
            tn_tensor grad = gradient_of(t, name);
            double g = (double)((const float *)grad.data)[3];
            g = pure ? rounded(g) : g;
            first += 0.25 * (g - first);
            second = 0.875 * second + 0.125 * g * g;
            p -= 0.003 / (1 - pow(0.75, i)) * first / (sqrt(second) / sqrt(1 - pow(0.875, i)) + 1e-6);
            ck_assert_msg(tn_trainer_step(t, &step, &norm, &err) == TN_OK, "%s", err.message);
            ck_assert_double_eq((double)tn_bf16_to_f32(w[3]), rounded(p));
            ck_assert_int_eq(norm == rounded(norm), pure);
            p = pure ? rounded(p) : p;
            first = pure ? rounded(first) : first;
            second = pure ? rounded(second) : second;
        }
        tn_trainer_close(t);
    }
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

/* Layers again, or some of them: the same bits, whatever crosses from layer to layer: sums that trail, streams, inputs
 * of every layer, keys of other layers, chosen keys, states. The second call finds memory that was used. */
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
        tn_trainer *all = open_keeping(m, TN_KEEP_ALL, models[i].router_loss),
                   *again = open_keeping(m, TN_KEEP_LAYERS, models[i].router_loss);
        const tn_train_texts texts = texts_of(ids, both, 2);
        for (int k = 0; k < 2; k++) {
            tn_train_loss a = learn(all, &texts), b = learn(again, &texts);
            ck_assert_double_eq(a.loss, b.loss);
            expect_all_same(m, all, again, models[i].name);
        }
        tn_trainer_close(all);
        tn_trainer_close(again);
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

START_TEST(precisions_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    tn_train_options options = {.size = sizeof options, .precision = TN_PRECISION_MIXED};
    ck_assert_ptr_null(tn_trainer_open(test_model("llama", .dtype = "f32", .training = true), &options, &err));
    ck_assert_str_eq(err.message, "is opened in f32; open it in bf16 for a precision of 16 bits");
    err = (tn_error)TN_ERROR_INIT;
    options.precision = (tn_precision)7;
    ck_assert_ptr_null(tn_trainer_open(test_model("llama", .dtype = "bf16", .training = true), &options, &err));
    ck_assert_str_eq(err.where, "precision");
}
END_TEST

START_TEST(rates_follow_a_schedule)
{
    ck_assert_double_eq(tn_schedule_at(TN_SCHEDULE_CONSTANT, 0, 0, 10), 1);
    ck_assert_double_eq(tn_schedule_at(TN_SCHEDULE_CONSTANT, 1, 4, 10), 0.25);
    ck_assert_double_eq(tn_schedule_at(TN_SCHEDULE_LINEAR, 4, 4, 10), 1);
    ck_assert_double_eq(tn_schedule_at(TN_SCHEDULE_LINEAR, 9, 4, 10), 1.0 / 6);
    ck_assert_double_eq(tn_schedule_at(TN_SCHEDULE_LINEAR, 12, 4, 10), 0);
    ck_assert_double_eq_tol(tn_schedule_at(TN_SCHEDULE_COSINE, 7, 4, 10), 0.5, 1e-15);
    ck_assert_double_eq(tn_schedule_at(TN_SCHEDULE_COSINE, -1, 4, 10), 0);
    ck_assert_double_eq(tn_schedule_at((tn_schedule)7, 1, 4, 10), 0);
}
END_TEST

START_TEST(steps_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    const tn_train_texts all = texts_of(ids, both, 2);
    const tn_train_step step = {.size = sizeof step, .rate = 1e-3}, back = {.size = sizeof back, .rate = -1};
    tn_model *half;
    tn_trainer *t = open_as(&(how){"llama", "f16", TN_PRECISION_PURE, 1}, &half);
    learn(t, &all);
    ck_assert_int_eq(tn_trainer_step(t, &step, NULL, &err), TN_E_USAGE);
    ck_assert_str_eq(err.message, "parameters are f16; use mixed precision, or bf16");
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tn_trainer_step(t, &back, NULL, &err), TN_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "rate -1"));
    tn_trainer_close(t);
    /* A divisor that is next to nothing: gradients without a number. */
    tn_model *m = test_model("llama", .dtype = "f32", .training = true);
    t = tn_trainer_open(m, NULL, NULL);
    tn_train_texts tiny = texts_of(ids, both, 2);
    tiny.divisor = 1e-320;
    const float before = weights_of(m, "model.norm.weight")[0];
    tn_trainer_backward(t, &tiny, NULL, NULL);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tn_trainer_step(t, &step, NULL, &err), TN_E_VERIFY);
    ck_assert_float_eq(weights_of(m, "model.norm.weight")[0], before);
    tn_trainer_close(t);
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
              padding_learns_nothing, threads_change_nothing, steps_go_down, what_is_saved_comes_back, a_step_is_adamw,
              a_state_goes_on, states_that_do_not_fit, evaluating_is_the_loss_alone, a_step_in_16_bits,
              routers_have_a_loss, layers_again_have_the_same_bits, layers_are_kept_while_they_fit,
              precisions_are_refused, rates_follow_a_schedule, steps_are_refused, large_calls_are_checked,
              parts_have_their_kernels, what_is_refused);
    return suite_run();
}
