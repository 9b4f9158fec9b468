/* Steps: AdamW by hand, in f32 and in 16 bits, what is saved, states that a training goes on from, schedules, and what
 * is refused. */
#include "open/model.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"
#include "train_texts.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tenon/half.h>
#include <unistd.h>

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
    static const how runs[] = {{"qwen3_moe", "f32", TN_PRECISION_AUTO, 1},   {"gpt2", "f32", TN_PRECISION_AUTO, 2},
                               {"qwen3_moe", "mixed", TN_PRECISION_AUTO, 2}, {"gpt2", "mixed", TN_PRECISION_MIXED, 1},
                               {"qwen3_moe", "bf16", TN_PRECISION_PURE, 1},  {"gpt2", "bf16", TN_PRECISION_PURE, 2}};
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

static double rounded(double x)
{
    return (double)tn_bf16_to_f32(tn_f32_to_bf16((float)x));
}

/* What products read of a weight in mixed precision. */
static const uint16_t *narrow_of(const tn_model *m, const char *name)
{
    const graph *g = m->target.graph;
    const char *wide = shards_used(m->weights, name, TN_F32);
    for (size_t i = 0; i < g->twin_count; i++)
        if (g->twins[i].wide == wide)
            return (const uint16_t *)(const void *)g->twins[i].narrow;
    return NULL;
}

/* An element by hand, over three steps: what is stored in bf16 is rounded once, and what steps are computed with is
 * what is stored; the norm is one in bf16. In mixed precision products read what is in f32, rounded. */
START_TEST(a_step_in_16_bits)
{
    const char *name = "model.layers.0.self_attn.k_proj.weight";
    for (int pure = 0; pure < 2; pure++) {
        tn_error err = TN_ERROR_INIT;
        tn_model *m;
        tn_trainer *t = open_as(
            pure ? &(how){"llama", "bf16", TN_PRECISION_PURE, 1} : &(how){"llama", "mixed", TN_PRECISION_MIXED, 1}, &m);
        const tn_train_texts all = texts_of(ids, both, 2);
        const tn_train_step step = {.size = sizeof step, .rate = 0.003, .beta1 = 0.75, .beta2 = 0.875, .eps = 1e-6};
        const uint16_t *w = pure ? shards_used(m->weights, name, TN_BF16) : narrow_of(m, name);
        double p = pure ? (double)tn_bf16_to_f32(w[3]) : (double)weights_of(m, name)[3], first = 0, second = 0, norm;
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

/* Products are in bf16, all between them in f32; a weight that the embedding and the head share is trained once, by
 * what both make of it; and what is written has the types that the checkpoint's files have. */
START_TEST(mixed_precision)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m;
    tn_trainer *t = open_as(&(how){"gemma2", "mixed", TN_PRECISION_AUTO, 2}, &m);
    const graph *g = m->target.graph;
    const char *name = "model.embed_tokens.weight";
    int products = 0, norms = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        const tn_site *s = &g->sites[i]->site;
        bool product = s->op == TN_OP_LINEAR || s->op == TN_OP_MLP || s->op == TN_OP_ATTENTION;
        ck_assert_int_eq(s->meaning[TN_AXIS_DTYPE], product ? TN_BF16 : TN_F32);
        products += product;
        norms += s->op == TN_OP_RMS_NORM;
    }
    ck_assert_int_gt(products, 0);
    ck_assert_int_gt(norms, 0);
    const tn_train_texts all = texts_of(ids, both, 2);
    const tn_train_step step = {.size = sizeof step, .rate = 1e-4};
    learn(t, &all);
    const tn_tensor shared = gradient_of(t, name);
    const float *rows = shared.data, *weight = weights_of(m, name);
    int64_t width = shared.shape[1], all_elements = tn_tensor_count(&shared);
    bool of_head = false;
    for (int64_t i = all_elements - width; i < all_elements; i++) /* an id that no text has                */
        of_head |= rows[i] != 0;
    ck_assert(of_head);
    const uint16_t *narrow = narrow_of(m, name);
    ck_assert_ptr_nonnull(narrow);
    ck_assert_int_eq(tn_trainer_step(t, &step, NULL, &err), TN_OK);
    char *folder = tempdir_new(), *out = tempdir_path(folder, "trained");
    ck_assert_msg(tn_trainer_save(t, out, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_model *again = test_model(out, .dtype = "bf16");
    const uint16_t *saved = shards_used(again->weights, name, TN_BF16);
    ck_assert_ptr_nonnull(saved);
    for (int64_t i = 0; i < all_elements; i++) {
        ck_assert_uint_eq(narrow[i], tn_f32_to_bf16(weight[i]));
        ck_assert_uint_eq(saved[i], narrow[i]);
    }
    tn_trainer_close(t);
    free(out);
    tempdir_remove(folder);
}
END_TEST

START_TEST(precisions_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    tn_train_options options = {.size = sizeof options, .precision = TN_PRECISION_MIXED};
    ck_assert_ptr_null(tn_trainer_open(test_model("llama", .dtype = "f32", .training = true), &options, &err));
    suite_expect_in(err.message, "is not how tests/data/models/llama was opened");
    err = (tn_error)TN_ERROR_INIT;
    options.precision = TN_PRECISION_PURE;
    ck_assert_ptr_null(tn_trainer_open(test_model("llama", .dtype = "mixed", .training = true), &options, &err));
    suite_expect_in(err.message, "in bf16 for pure");
    err = (tn_error)TN_ERROR_INIT;
    const tn_model_options untrained = {.size = sizeof untrained, .dtype = "mixed"};
    ck_assert_ptr_null(tn_model_open("tests/data/models/llama", &untrained, &err));
    suite_expect_in(err.message, "mixed is for training all weights");
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
    ck_assert_str_eq(err.message, "parameters are f16; open the model in mixed, or in bf16");
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

int main(void)
{
    TCase *tc = suite_open("steps of training", 60);
    suite_add(tc, steps_go_down, what_is_saved_comes_back, a_step_is_adamw, a_state_goes_on, states_that_do_not_fit,
              a_step_in_16_bits, mixed_precision, precisions_are_refused, rates_follow_a_schedule, steps_are_refused);
    return suite_run();
}
