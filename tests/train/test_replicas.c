/* Ranks that take turns at the batches of a step: the bytes of one process that computes them all. */
#include "local_group.h"
#include "open/model.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"
#include "train_texts.h"

#include <tenon/parallel.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what a call adds ------------------------------------------------------------------------------ */

static void expect_sum(const tn_trainer *both_calls, const tn_trainer *second, const char *name, const float *first)
{
    tn_tensor all, own;
    bool any = tn_trainer_gradient(both_calls, name, &all, NULL) == TN_OK;
    bool read = tn_trainer_gradient(second, name, &own, NULL) == TN_OK;
    ck_assert_msg(any == (read || first), "%s", name);
    for (int64_t i = 0; any && i < tn_tensor_count(&all); i++) {
        float sum = (first ? first[i] : 0) + (read ? ((const float *)own.data)[i] : 0);
        ck_assert_msg(((const float *)all.data)[i] == sum, "%s: %lld", name, (long long)i);
    }
}

/* What two calls leave is what the one and the other make, added up: of every parameter, also of those that a call
 * gives several gradients. */
static void look_at_model(const char *name)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model(name, .dtype = "f32", .training = true), *n;
    n = test_model(name, .dtype = "f32", .training = true);
    tn_trainer *t = tn_trainer_open(m, NULL, &err), *u = tn_trainer_open(n, NULL, &err);
    static const int64_t few[] = {9, 4, 7, 30, 12, 5, 21, 9, 4, 3};
    const tn_train_texts one = texts_of(few, both, 2), two = texts_of(few + 1, both, 1);
    size_t count = shards_count(m->weights);
    float **first = calloc(count + 1, sizeof *first);
    ck_assert_msg(t && u && first, "%s: %s", name, err.message);
    learn(t, &one);
    learn(t, &two);
    learn(u, &one);
    for (size_t i = 0; i < count; i++) {
        tn_tensor g;
        size_t bytes;
        if (tn_trainer_gradient(u, shards_name(m->weights, i), &g, NULL) != TN_OK)
            continue;
        bytes = (size_t)tn_tensor_count(&g) * sizeof(float);
        first[i] = malloc(bytes);
        ck_assert_ptr_nonnull(first[i]);
        memcpy(first[i], g.data, bytes);
    }
    tn_trainer_clear(u);
    learn(u, &two);
    for (size_t i = 0; i < count; i++) {
        expect_sum(t, u, shards_name(m->weights, i), first[i]);
        free(first[i]);
    }
    free(first);
    tn_trainer_close(t);
    tn_trainer_close(u);
}

START_TEST(a_call_is_added_as_a_whole)
{
    int looked = 0;
    DIR *folder = opendir("tests/data/models");
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        const tn_model_options options = {.size = sizeof options, .dtype = "f32", .training = true, .threads = 1};
        char path[512];
        snprintf(path, sizeof path, "tests/data/models/%s/config.json", entry->d_name);
        if (access(path, R_OK) != 0)
            continue;
        *strrchr(path, '/') = '\0';
        tn_model *m = tn_model_open(path, &options, NULL);
        tn_trainer *t = m ? tn_trainer_open(m, NULL, NULL) : NULL; /* some have no head                        */
        bool learns = t;
        tn_trainer_close(t);
        tn_model_close(m);
        if (learns)
            look_at_model(entry->d_name);
        looked += learns;
    }
    closedir(folder);
    ck_assert_int_gt(looked, 60);
}
END_TEST

/* ---- ranks ----------------------------------------------------------------------------------------- */

typedef struct how {
    const char *model, *dtype;
    tn_precision precision;
    bool adapter;
    double router_loss;
} how;

/* A training of some steps, each of BATCHES batches but for one of fewer; by so many ranks, from a state or from the
 * beginning, to a state and files. */
enum { BATCHES = 4, MIDDLE = 2, STEPS = 4 };
typedef struct work {
    const how *h;
    int32_t ranks;
    int begin, end;
    const char *from, *state, *out;
    int bad_rank; /* whose texts are wrong at once; -1: none                                              */
    local_group *group;
} work;

static tn_status take_batches(tn_trainer *t, const work *w, int32_t rank, int step, tn_error *err)
{
    int batches = step == 1 ? BATCHES - 1 : BATCHES;
    const tn_train_step how = {.size = sizeof how, .rate = 1e-2, .decay = 0.01, .max_norm = 1};
    tn_status status = TN_OK;
    double norm;
    for (int at = 0; at < batches && status == TN_OK; at += w->ranks) {
        int own = at + rank;
        const tn_train_texts texts = texts_of(ids + (own + step) % 4, both, own < batches ? 1 : 0);
        const int64_t wrong = -5, one = 1;
        const tn_train_texts bad = texts_of(&wrong, &one, 1);
        tn_train_loss loss = {.size = sizeof loss};
        status = tn_trainer_backward(t, w->bad_rank == rank ? &bad : &texts, &loss, err);
    }
    return status == TN_OK ? tn_trainer_step(t, &how, &norm, err) : status;
}

static tn_status train(const work *w, int32_t rank, tn_error *err)
{
    const tn_lora lora = {.size = sizeof lora, .rank = 3, .dropout = 0.3, .targets = "all", .seed = 5};
    tn_group end = {0};
    char path[256];
    if (w->group)
        end = local_group_end(w->group, rank);
    snprintf(path, sizeof path, "tests/data/models/%s", w->h->model);
    const tn_model_options options = {.size = sizeof options,
                                      .dtype = w->h->dtype,
                                      .training = true,
                                      .threads = 1 + rank,
                                      .lora = w->h->adapter ? &lora : NULL,
                                      .parallel = w->group ? "replicas" : NULL,
                                      .group = w->group ? &end : NULL};
    const tn_train_options given = {
        .size = sizeof given, .precision = w->h->precision, .router_loss = w->h->router_loss};
    tn_model *m = tn_model_open(path, &options, err);
    tn_trainer *t = m ? tn_trainer_open(m, &given, err) : NULL;
    tn_status status = t ? TN_OK : err->code;
    if (status == TN_OK && w->from)
        status = tn_trainer_load_state(t, w->from, err);
    for (int step = w->begin; step < w->end && status == TN_OK; step++)
        status = take_batches(t, w, rank, step, err);
    if (status == TN_OK)
        status = tn_trainer_save_state(t, w->state, err);
    if (status == TN_OK)
        status = w->h->adapter ? tn_trainer_save_adapter(t, w->out, err) : tn_trainer_save(t, w->out, err);
    tn_trainer_close(t);
    tn_model_close(m);
    return status;
}

/* In processes of their own, of which each fails with the words, or (NULL) none does. */
static void expect_training(const work *given, const char *words)
{
    work w = *given;
    pid_t child[8];
    w.group = w.ranks > 0 ? local_group_new(w.ranks) : NULL;
    w.ranks = w.ranks > 0 ? w.ranks : 1;
    for (int32_t r = 0; r < w.ranks; r++)
        if ((child[r] = fork()) == 0) {
            tn_error err = TN_ERROR_INIT;
            bool good = (train(&w, r, &err) == TN_OK) == !words && (!words || strstr(err.message, words));
            if (!good)
                fprintf(stderr, "rank %d: %s: %s\n", (int)r, err.where, err.message);
            _exit(!good);
        }
    for (int32_t r = 0; r < w.ranks; r++) {
        int status = 0;
        ck_assert_int_eq(waitpid(child[r], &status, 0), child[r]);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s %s: rank %d of %d", w.h->model, w.h->dtype,
                      (int)r, (int)w.ranks);
    }
}

static void expect_same_file(const char *one, const char *other)
{
    size_t a, b;
    char *x = tempdir_read(one, &a), *y = tempdir_read(other, &b);
    ck_assert_msg(x && y && a == b && memcmp(x, y, a) == 0, "%s and %s", one, other);
    free(x);
    free(y);
}

static const how runs[] = {
    {"qwen3_moe", "f32", TN_PRECISION_AUTO, false, 0.01}, {"gpt2", "f32", TN_PRECISION_AUTO, false, 0},
    {"qwen3_moe", "mixed", TN_PRECISION_AUTO, false, 0},  {"llama", "bf16", TN_PRECISION_PURE, false, 0},
    {"llama", "f32", TN_PRECISION_AUTO, true, 0},         {"qwen3_moe", "bf16", TN_PRECISION_AUTO, true, 0}};
enum { RUNS = sizeof runs / sizeof *runs };

/* States and files of one process, of two, three and five ranks, and of others that go on from where they were. */
START_TEST(ranks_are_one_process)
{
    static const int32_t many[] = {2, 3, 5};
    const how *h = &runs[_i];
    char *folder = tempdir_new(), *alone = tempdir_at(folder, "alone"), *state = tempdir_at(folder, "alone.state");
    const char *file = h->adapter ? "adapter_model.safetensors" : "model.safetensors";
    expect_training(&(work){h, 0, 0, STEPS, NULL, state, alone, -1, NULL}, NULL);
    for (int n = 0; n < 3; n++) {
        char middle[32], last[32], half[48], all[48];
        snprintf(middle, sizeof middle, "middle%d", n);
        snprintf(last, sizeof last, "last%d", n);
        snprintf(half, sizeof half, "%s.state", middle);
        snprintf(all, sizeof all, "%s.state", last);
        const char *begun = tempdir_at(folder, half), *end = tempdir_at(folder, all), *out = tempdir_at(folder, last);
        expect_training(&(work){h, many[n], 0, MIDDLE, NULL, begun, tempdir_at(folder, middle), -1, NULL}, NULL);
        expect_training(&(work){h, many[(n + 1) % 3], MIDDLE, STEPS, begun, end, out, -1, NULL}, NULL);
        expect_same_file(state, end);
        expect_same_file(tempdir_at(alone, file), tempdir_at(out, file));
    }
    tempdir_remove(folder);
}
END_TEST

/* One rank's failure is every rank's, with its name. */
START_TEST(all_fail_together)
{
    char *folder = tempdir_new(), state[512], out[512];
    snprintf(state, sizeof state, "%s/state", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    expect_training(&(work){&runs[4], 2, 0, 1, NULL, state, out, 1, NULL}, "id -5");
    expect_training(&(work){&runs[4], 2, 0, 1, state, state, out, -1, NULL}, "cannot open");
    tempdir_remove(folder);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("replicas", 120);
    tcase_add_test(tc, a_call_is_added_as_a_whole);
    tcase_add_loop_test(tc, ranks_are_one_process, 0, RUNS);
    tcase_add_test(tc, all_fail_together);
    return suite_run();
}
