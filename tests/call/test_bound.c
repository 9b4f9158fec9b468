/* Sites that are bound: the numbers of tn_site_forward, wherever their parameters are, from any thread and process. */
#include "check/inputs.h"
#include "lent_model.h"
#include "open/model.h"
#include "optest.h"
#include "pool.h"
#include "sanitizer.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static tn_error err = TN_ERROR_INIT;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        tn_status status_of_call = (call);                                                                             \
        ck_assert_msg(status_of_call == TN_OK, "%d: %s: %s", (int)status_of_call, err.where, err.message);             \
    } while (0)

static void close_bound(void *bound)
{
    tn_bound_close(bound);
}

static tn_bound *bind(tn_model *m, const char *path, tn_op op, int64_t tokens)
{
    tn_bound *b = tn_site_bind(m, path, op, tokens, &err);
    ck_assert_msg(b != NULL, "%s: %s", err.where, err.message);
    suite_keep(b, close_bound);
    return b;
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

/* x [T,W] and y of a norm or an MLP. */
typedef struct rows {
    tn_tensor x, y, want;
} rows;

static rows rows_of(int64_t tokens, int64_t width, uint64_t seed)
{
    int64_t shape[2] = {tokens, width};
    return (rows){optest_random(TN_F32, 2, shape, seed), optest_zeros(TN_F32, 2, shape),
                  optest_zeros(TN_F32, 2, shape)};
}

static bool same(const rows *r)
{
    return memcmp(r->y.data, r->want.data, (size_t)tn_tensor_count(&r->y) * 4) == 0;
}

static int64_t width_of(const tn_model *m)
{
    return m->info.hidden;
}

static int calls;

static tn_status counted(const tn_call *call, tn_error *e)
{
    calls++;
    return test_kernel_forward(call, e);
}

static tn_status plan_scratch(const tn_site *site, tn_plan *plan, tn_error *e)
{
    (void)site;
    (void)e;
    plan->scratch_bytes = (size_t)plan->max_tokens * 64;
    plan->backward_scratch_bytes = (size_t)plan->max_tokens * 128;
    return TN_OK;
}

/* All of its scratch is its own. */
static tn_status fills_scratch(const tn_call *call, tn_error *e)
{
    if (call->in[0].shape[0] > 0)
        memset(call->scratch, 0xff, (size_t)call->in[0].shape[0] * 64);
    return counted(call, e);
}

static void add_norm(void)
{
    test_kernel_add(&(test_kernel){.id = "norm",
                                   .op = TN_OP_RMS_NORM,
                                   .plan = plan_scratch,
                                   .forward = fills_scratch,
                                   .backward = test_kernel_backward});
}

/* Eagerly, with a kernel, and eagerly again: the bound looks at what is applied. More tokens than it was bound for. */
START_TEST(applied_and_reverted)
{
    static const int64_t tokens[] = {1, 3, 64, 5000, 2, 0};
    add_norm();
    tn_model *m = test_model("qwen3", .dtype = "f32", .training = true);
    tn_bound *b = bind(m, "model.norm", TN_OP_RMS_NORM, 4), *mlp = bind(m, "model.layers.0.mlp", TN_OP_MLP, 0);
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 1)
            test_model_apply(m, NULL, "norm");
        if (turn == 2)
            OK(tn_revert_kernel(m, NULL, &err));
        const char *id = tn_bound_kernel(b, 1);
        ck_assert(turn == 1 ? id && !strcmp(id, "norm") : !id);
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            rows r = rows_of(tokens[i], width_of(m), i);
            OK(tn_site_forward(m, "model.norm", TN_OP_RMS_NORM, &r.x, 1, &r.want, 1, &err));
            int before = calls;
            OK(tn_bound_forward(b, &r.x, 1, &r.y, 1, &err));
            ck_assert_int_eq(calls > before, turn == 1);
            ck_assert(same(&r));
            OK(tn_site_forward(m, "model.layers.0.mlp", TN_OP_MLP, &r.x, 1, &r.want, 1, &err));
            OK(tn_bound_forward(mlp, &r.x, 1, &r.y, 1, &err));
            ck_assert(same(&r));
        }
    }
}
END_TEST

START_TEST(gradients)
{
    add_norm();
    tn_model *m = test_model("qwen3", .dtype = "f32", .training = true);
    tn_bound *b = bind(m, "model.norm", TN_OP_RMS_NORM, 0);
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1)
            test_model_apply(m, NULL, "norm");
        for (int64_t tokens = 1; tokens < 40; tokens += 13) {
            rows r = rows_of(tokens, width_of(m), 1), dx = rows_of(tokens, width_of(m), 2);
            int64_t width = width_of(m);
            tn_tensor dw[2] = {optest_zeros(TN_F32, 1, &width), optest_zeros(TN_F32, 1, &width)};
            tn_grads grads = {.size = sizeof grads, .out = {dx.x}, .in = {dx.want}}, own = grads;
            grads.param[TN_ROLE_WEIGHT] = (tn_param){&dw[0], 1};
            own.param[TN_ROLE_WEIGHT] = (tn_param){&dw[1], 1};
            own.in[0] = dx.y;
            OK(tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &r.x, 1, &grads, &err));
            OK(tn_bound_backward(b, &r.x, 1, &own, &err));
            ck_assert(same(&dx));
            ck_assert_mem_eq(dw[0].data, dw[1].data, (size_t)width * 4);
            double units = -1;
            if (turn == 1) {
                OK(tn_bound_compare_grads(b, &r.x, 1, &own, &grads, &units, &err));
                ck_assert(units == 0);
                ((float *)dw[1].data)[0] += 1;
                OK(tn_bound_compare_grads(b, &r.x, 1, &own, &grads, &units, &err));
                ck_assert(units > 1);
            }
        }
    }
    tn_model *fixed = test_model("qwen3", .dtype = "f32");
    rows r = rows_of(1, width_of(fixed), 1);
    tn_grads none = {.size = sizeof none};
    ck_assert_int_eq(tn_bound_backward(bind(fixed, "model.norm", TN_OP_RMS_NORM, 0), &r.x, 1, &none, &err), TN_E_USAGE);
    suite_expect_in(err.message, "training");
}
END_TEST

/* How far results are from others, in units of the tolerance. */
START_TEST(compared)
{
    add_norm();
    tn_model *m = test_model("qwen3", .dtype = "f32");
    tn_bound *b = bind(m, "model.norm", TN_OP_RMS_NORM, 0);
    rows r = rows_of(3, width_of(m), 1);
    double units = -1;
    OK(tn_bound_forward(b, &r.x, 1, &r.want, 1, &err));
    ck_assert_int_eq(tn_bound_compare(b, &r.x, 1, &r.want, &r.want, 1, &units, &err), TN_E_USAGE);
    suite_expect_in(err.message, "no kernel has it");
    tn_error_clear(&err);
    test_model_apply(m, NULL, "norm");
    OK(tn_bound_forward(b, &r.x, 1, &r.y, 1, &err));
    OK(tn_bound_compare(b, &r.x, 1, &r.y, &r.want, 1, &units, &err));
    ck_assert(units >= 0 && units <= 1);
    /* 64 ulps of the largest of the row are one unit. */
    float *y = r.y.data, *want = r.want.data, largest = 0;
    for (int64_t i = 0; i < width_of(m); i++)
        largest = want[i] > largest ? want[i] : -want[i] > largest ? -want[i] : largest;
    y[0] = want[0] + 2 * 64 * 0x1p-24f * largest;
    OK(tn_bound_compare(b, &r.x, 1, &r.y, &r.want, 1, &units, &err));
    ck_assert_double_eq_tol(units, 2, 0.1);
    ck_assert_int_eq(tn_bound_compare(b, &r.x, 1, &r.y, &r.want, 1, NULL, &err), TN_E_USAGE);
}
END_TEST

static int descending(const void *a, const void *b)
{
    return (*(const double *)a < *(const double *)b) - (*(const double *)a > *(const double *)b);
}

/* Tokens whose last chosen and first rejected expert score within two per cent, and no others; nowhere else any. */
START_TEST(which_rounding_decides)
{
    enum { TOKENS = 300, MOST = 64 };
    tn_model *m = test_model("qwen3_moe", .dtype = "f32");
    tn_bound *b = bind(m, "model.layers.0.mlp", TN_OP_MOE_BLOCK, 0), *norm = bind(m, "model.norm", TN_OP_RMS_NORM, 0);
    const tn_site *site = tn_bound_site(b);
    int64_t width = site->dim[TN_DIM_HIDDEN], experts = site->dim[TN_DIM_EXPERTS], k = site->dim[TN_DIM_TOP_K];
    const float *w = site->param[TN_ROLE_ROUTER].tensors->data;
    rows r = rows_of(TOKENS, width, 3);
    bool unclear[TOKENS];
    OK(tn_bound_unclear(b, &r.x, 1, unclear, TOKENS, &err));
    int counts[2] = {0};
    for (int64_t t = 0; t < TOKENS; t++) {
        double logit[MOST] = {0};
        for (int64_t i = 0; i < experts * width; i++)
            logit[i / width] += (double)w[i] * (double)((float *)r.x.data)[t * width + i % width];
        qsort(logit, (size_t)experts, sizeof *logit, descending);
        double apart = 1 - exp(logit[k] - logit[k - 1]);
        ck_assert(fabs(apart - 0.02) < 1e-5 || unclear[t] == (apart < 0.02));
        counts[unclear[t]]++;
    }
    ck_assert(counts[0] > 0 && counts[1] > 0);
    OK(tn_bound_unclear(norm, &r.x, 1, unclear, TOKENS, &err));
    ck_assert(!memchr(unclear, true, sizeof unclear));
    ck_assert_int_eq(tn_bound_unclear(b, &r.x, 1, unclear, TOKENS - 1, &err), TN_E_USAGE);
    suite_expect_in(err.message, "300 rows, and unclear 299");
}
END_TEST

/* ---- parameters ------------------------------------------------------------------------------------------- */

START_TEST(pointed_anew)
{
    add_norm();
    lent_model *l = lent_of("llama");
    tn_model *m = lent_open(l, .dtype = "f32", .weights_change = l->tensors[0].dtype == TN_F32, .partial = true);
    tn_bound *b = bind(m, "model.norm", TN_OP_RMS_NORM, 0), *other = bind(m, "model.norm", TN_OP_RMS_NORM, 0);
    const tn_tensor *was = tn_bound_site(b)->param[TN_ROLE_WEIGHT].tensors;
    const void *lent = was->data;
    int64_t width = width_of(m);
    tn_tensor w = optest_random(TN_F32, 1, &width, 9);
    for (int turn = 0; turn < 2; turn++) {
        rows r = rows_of(3, width, 1);
        if (turn == 1)
            test_model_apply(m, NULL, "norm");
        OK(tn_bound_point(b, TN_ROLE_WEIGHT, &w, 1, &err));
        OK(tn_bound_forward(b, &r.x, 1, &r.y, 1, &err));
        /* y of ones times the weight. */
        tn_tensor ones = optest_zeros(TN_F32, 1, &width);
        for (int64_t i = 0; i < width; i++)
            ((float *)ones.data)[i] = 1;
        OK(tn_bound_point(b, TN_ROLE_WEIGHT, &ones, 1, &err));
        OK(tn_bound_forward(b, &r.x, 1, &r.want, 1, &err));
        for (int64_t i = 0; i < 3 * width; i++)
            ck_assert_double_eq_tol(((float *)r.y.data)[i],
                                    (double)((float *)r.want.data)[i] * ((float *)w.data)[i % width], 1e-5);
        ck_assert(!same(&r));
        ck_assert_ptr_eq(tn_bound_site(b)->param[TN_ROLE_WEIGHT].tensors->data, ones.data);
        ck_assert_ptr_eq(tn_bound_site(other)->param[TN_ROLE_WEIGHT].tensors->data, lent);
    }
    /* What does not fit leaves it where it was. */
    const void *now = tn_bound_site(b)->param[TN_ROLE_WEIGHT].tensors->data;
    tn_tensor wrong[5] = {w, w, w, w, w};
    wrong[0].dtype = TN_BF16;
    wrong[1].shape[0]--;
    wrong[2].stride[0] = 2;
    wrong[3].data = (char *)w.data + 1;
    wrong[4].data = NULL;
    for (int i = 0; i < 5; i++) {
        tn_error_clear(&err);
        ck_assert_int_eq(tn_bound_point(b, TN_ROLE_WEIGHT, &wrong[i], 1, &err), TN_E_USAGE);
        suite_expect_in(err.message, "weight 0");
    }
    ck_assert_int_eq(tn_bound_point(b, TN_ROLE_BIAS, &w, 1, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_bound_point(b, (tn_role)-1, &w, 1, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_bound_point(b, TN_ROLE_MAX, &w, 1, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_bound_point(b, TN_ROLE_WEIGHT, &w, 2, NULL), TN_E_USAGE);
    ck_assert_ptr_eq(tn_bound_site(b)->param[TN_ROLE_WEIGHT].tensors->data, now);
}
END_TEST

/* Written in place: weights are read as they lie. */
START_TEST(never_stale)
{
    lent_model *l = lent_of("llama");
    tn_model *m = lent_open(l, .weights_change = true, .per_module = true);
    tn_dtype dtype = m->dtype;
    const char *const names[] = {"model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"};
    int64_t shape[2] = {3, width_of(m)};
    tn_tensor x = optest_random(dtype, 2, shape, 1), y = optest_zeros(dtype, 2, shape);
    tn_bound *b = bind(m, "model.layers.0.mlp", TN_OP_MLP, 0);
    for (int i = 0; i < 2; i++) {
        tn_tensor *w = lent_at(l, names[i]);
        OK(tn_bound_forward(b, &x, 1, &y, 1, &err));
        ck_assert(optest_at(&y, 1) != 0);
        size_t bytes = (size_t)tn_tensor_count(w) * tn_dtype_size(w->dtype);
        void *kept = memcpy(lent_keep(l, bytes), w->data, bytes);
        memset(w->data, 0, bytes);
        OK(tn_bound_forward(b, &x, 1, &y, 1, &err));
        for (int64_t j = 0; j < tn_tensor_count(&y); j++)
            ck_assert(optest_at(&y, j) == 0);
        memcpy(w->data, kept, bytes);
    }
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------------------- */

enum { THREADS = 4, TURNS = 200 };

typedef struct thread_job {
    tn_bound *b;
    rows r;
    tn_tensor *weights;
    tn_status status;
} thread_job;

static void *call_often(void *argument)
{
    thread_job *j = argument;
    for (int i = 0; i < TURNS && j->status == TN_OK; i++) {
        j->status = tn_bound_forward(j->b, &j->r.x, 1, &j->r.y, 1, NULL);
        if (j->status == TN_OK && !same(&j->r))
            j->status = TN_E_VERIFY;
    }
    return NULL;
}

static void *point_often(void *argument)
{
    thread_job *j = argument;
    for (int i = 0; i < TURNS && j->status == TN_OK; i++)
        j->status = tn_bound_point(j->b, TN_ROLE_WEIGHT, &j->weights[i % 2], 1, NULL);
    return NULL;
}

/* Threads that call one bound, while another points it to equal weights elsewhere and one takes kernels off and applies
 * them. A child that is forked while a thread is in a sanitizer's allocator waits for its locks for ever: there, they
 * are taken off alone. */
START_TEST(from_any_thread)
{
    add_norm();
    tn_model *m = test_model("qwen3", .dtype = "f32");
    tn_bound *b = bind(m, "model.norm", TN_OP_RMS_NORM, 0);
    int64_t width = width_of(m);
    const tn_tensor *w = tn_bound_site(b)->param[TN_ROLE_WEIGHT].tensors;
    tn_tensor copy = optest_zeros(TN_F32, 1, &width), weights[2] = {*w, copy};
    memcpy(copy.data, w->data, (size_t)width * 4);
    test_model_apply(m, NULL, "norm");
    pthread_t threads[THREADS + 1];
    thread_job jobs[THREADS + 1];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (thread_job){.b = b, .r = rows_of(1 + 7 * i, width, (uint64_t)i)};
        OK(tn_bound_forward(b, &jobs[i].r.x, 1, &jobs[i].r.want, 1, &err));
    }
    jobs[THREADS] = (thread_job){.b = b, .weights = weights};
    for (int i = 0; i <= THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, i < THREADS ? call_often : point_often, &jobs[i]), 0);
    for (int i = 0; i < 3; i++) { /* this kernel's results are eager's                               */
        OK(tn_revert_kernel(m, NULL, &err));
        if (!SANITIZER)
            test_model_apply(m, NULL, "norm");
    }
    for (int i = 0; i <= THREADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(jobs[i].status, TN_OK);
    }
}
END_TEST

/* ---- forks ------------------------------------------------------------------------------------------------- */

static atomic_bool stops;

static void *call_on(void *argument)
{
    thread_job *j = argument;
    while (!atomic_load(&stops))
        tn_bound_forward(j->b, &j->r.x, 1, &j->r.y, 1, NULL);
    return NULL;
}

static tn_status in_child(tn_bound *b, const rows *r, tn_tensor *weight)
{
    pid_t pid = fork();
    if (pid == 0) {
        rows own = *r;
        suite_limit_child();
        bool right = tn_bound_point(b, TN_ROLE_WEIGHT, weight, 1, NULL) == TN_OK &&
                     tn_bound_forward(b, &own.x, 1, &own.y, 1, NULL) == TN_OK && same(&own);
        _exit(right ? 0 : 1);
    }
    int status = -1;
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? TN_OK : TN_E_VERIFY;
}

/* While another thread is in a call, whose lock and scratch nobody gives back in the child. */
START_TEST(after_a_fork)
{
    add_norm();
    tn_model *m = test_model("qwen3", .dtype = "f32", .threads = 2);
    tn_bound *b = bind(m, "model.norm", TN_OP_RMS_NORM, 0);
    thread_job job = {.b = b, .r = rows_of(700, width_of(m), 1)};
    rows r = rows_of(700, width_of(m), 2);
    tn_tensor weight = *tn_bound_site(b)->param[TN_ROLE_WEIGHT].tensors;
    OK(tn_bound_forward(b, &r.x, 1, &r.want, 1, &err));
    if (_i)
        test_model_apply(m, NULL, "norm");
    if (SANITIZER) /* whose own locks a fork may leave taken                                 */
        ck_assert_int_eq(in_child(b, &r, &weight), TN_OK);
    else {
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, call_on, &job), 0);
        for (int i = 0; i < 20; i++)
            ck_assert_int_eq(in_child(b, &r, &weight), TN_OK);
        atomic_store(&stops, true);
        pthread_join(thread, NULL);
    }
    OK(tn_bound_forward(b, &r.x, 1, &r.y, 1, &err));
    ck_assert(same(&r));
}
END_TEST

/* ---- threads of the program --------------------------------------------------------------------------------- */

/* Kernels on a pool; a child works alone. */
START_TEST(kernels_on_a_pool)
{
    pool p = {.width = 3};
    const tn_team team = {.size = sizeof team, .width = 3, .context = &p, .run = pool_run};
    add_norm();
    tn_model *m = test_model("qwen3", .dtype = "f32", .threads = 2);
    tn_bound *b = bind(m, "model.layers.0.mlp", TN_OP_MLP, 0);
    rows r = rows_of(300, width_of(m), 1);
    OK(tn_bound_forward(b, &r.x, 1, &r.want, 1, &err));
    OK(tn_threads_use(&team, &err));
    test_model_apply(m, NULL, "norm"); /* its checks are in children                                  */
    OK(tn_bound_forward(b, &r.x, 1, &r.y, 1, &err));
    ck_assert(same(&r));
    ck_assert_int_gt(p.runs, 0);
    p.runs = 0;
    pid_t pid = fork();
    if (pid == 0) {
        suite_limit_child();
        bool right = tn_thread_count() == 1 && tn_bound_forward(b, &r.x, 1, &r.y, 1, NULL) == TN_OK && same(&r) &&
                     p.runs == 0 && tn_threads_use(NULL, NULL) == TN_OK && tn_thread_count() > 1;
        _exit(right ? 0 : 1);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(tn_threads_use(NULL, &err));
}
END_TEST

START_TEST(wrong_calls)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    rows r = rows_of(2, width_of(m), 1);
    tn_bound *b = bind(m, "model.norm", TN_OP_RMS_NORM, 0);
    ck_assert_ptr_null(tn_site_bind(NULL, "model.norm", TN_OP_RMS_NORM, 0, NULL));
    ck_assert_ptr_null(tn_site_bind(m, NULL, TN_OP_RMS_NORM, 0, NULL));
    ck_assert_ptr_null(tn_site_bind(m, "model.norm", TN_OP_MLP, 0, NULL));
    ck_assert_ptr_null(tn_site_bind(m, "model.norm", TN_OP_RMS_NORM, -1, NULL));
    ck_assert_int_eq(tn_bound_forward(NULL, &r.x, 1, &r.y, 1, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_bound_forward(b, NULL, 1, &r.y, 1, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_bound_forward(b, &r.x, 0, &r.y, 1, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_bound_forward(b, &r.x, 9, &r.y, 1, NULL), TN_E_USAGE);
    tn_tensor narrow = r.x;
    narrow.shape[1]--;
    ck_assert_int_eq(tn_bound_forward(b, &narrow, 1, &r.y, 1, &err), TN_E_USAGE);
    suite_expect_in(err.message, "input 0");
    tn_error_clear(&err);
    narrow = r.y;
    narrow.ndim = 7;
    ck_assert_int_eq(tn_bound_forward(b, &r.x, 1, &narrow, 1, &err), TN_E_USAGE);
    suite_expect_in(err.where, "out[0]");
    tn_bound_close(NULL);
    ck_assert_ptr_null(tn_bound_site(NULL));
    ck_assert_ptr_null(tn_bound_kernel(NULL, 1));
}
END_TEST

int main(void)
{
    TCase *t = suite_open("bound", 120);
    suite_add(t, applied_and_reverted, gradients, compared, which_rounding_decides, pointed_anew, never_stale,
              from_any_thread, kernels_on_a_pool, wrong_calls);
    tcase_add_loop_test(t, after_a_fork, 0, 2);
    return suite_run();
}
