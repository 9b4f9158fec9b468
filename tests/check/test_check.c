/* Checked apply: kernels that misbehave in one point each are refused, with a reason, and the model stays as it was. */
#include "check/check.h"
#include "model/model.h"
#include "check/fence.h"
#include "test_kernels.h"

#include <check.h>
#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static tn_model *open_model(const char *dtype)
{
    tn_error err = TN_ERROR_INIT;
    tn_model_options o = {.size = sizeof o, .dtype = dtype};
    tn_model *m = tn_model_open("tests/data/models/qwen3", &o, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    return m;
}

static size_t bound_count(const tn_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        n += m->target.graph->sites[i]->bound.impl != NULL;
    return n;
}

/* ---- misbehaviour ------------------------------------------------------------------------------------------- */

static float *first(const tn_call *call)
{
    return call->out[0].data;
}

static tn_status wrong(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (tn_tensor_count(&call->out[0]) > 0)
        first(call)[0] += 0.01f;
    return status;
}

/* Right for one token, as many a kernel for decoding; wrong for more. */
static tn_status wrong_for_many(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (call->in[0].shape[0] > 17)
        first(call)[call->out[0].stride[0] * 17] += 0.01f;
    return status;
}

/* Takes the rows to be dense. */
static tn_status ignores_strides(const tn_call *call, tn_error *err)
{
    tn_call dense = *call;
    const tn_tensor *x = &call->in[0];
    dense.in[0] = tn_tensor_dense(x->data, x->dtype, x->ndim, x->shape);
    dense.out[0] = tn_tensor_dense(call->out[0].data, x->dtype, x->ndim, x->shape);
    return test_kernel_forward(&dense, err);
}

static tn_status nan_forward(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (tn_tensor_count(&call->out[0]) > 0)
        first(call)[1] = nanf("");
    return status;
}

static tn_status unwritten(const tn_call *call, tn_error *err)
{
    tn_call most = *call;
    if (call->in[0].shape[0] == 1)
        return test_kernel_forward(call, err);
    most.in[0].shape[0] = most.out[0].shape[0] = call->in[0].shape[0] - 1;
    return test_kernel_forward(&most, err);
}

static tn_status writes_after(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    ((volatile float *)first(call))[call->out[0].shape[0] * call->out[0].stride[0]] = 1;
    return status;
}

static tn_status writes_before(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    ((volatile float *)first(call))[-1] = 1;
    return status;
}

static tn_status writes_input(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (call->in[0].data != call->out[0].data)
        *(volatile float *)call->in[0].data = 1;
    return status;
}

static tn_status reads_after_input(const tn_call *call, tn_error *err)
{
    volatile float sum = ((volatile float *)call->in[0].data)[call->in[0].shape[0] * call->in[0].stride[0]];
    (void)sum;
    return test_kernel_forward(call, err);
}

static tn_status plan_scratch(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = 256;
    return TN_OK;
}

static tn_status writes_scratch(const tn_call *call, tn_error *err)
{
    ((volatile char *)call->scratch)[256] = 1;
    return test_kernel_forward(call, err);
}

static tn_status plan_packed(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = 100;
    return TN_OK;
}

static tn_status pack_outside(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    (void)site;
    (void)plan;
    (void)err;
    memset(packed, 1, 101);
    return TN_OK;
}

static tn_status pack_crash(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    (void)site;
    (void)plan;
    (void)packed;
    (void)err;
    raise(SIGBUS);
    return TN_OK;
}

static tn_status writes_packed(const tn_call *call, tn_error *err)
{
    *(volatile char *)(uintptr_t)call->packed = 1;
    return test_kernel_forward(call, err);
}

static tn_status crash(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    raise(SIGSEGV); /* as a wild pointer does; sanitizers would stop the pointer itself first */
    return TN_OK;
}

static tn_status leaves(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    exit(7);
}

static tn_status hang(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    for (;;)
        pause();
    return TN_OK;
}

static tn_status fails(const tn_call *call, tn_error *err)
{
    return tn_fail(err, TN_E_INTERNAL, call->site->path, "the machine is on fire");
}

static tn_status changes_rounding(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    fesetround(FE_TOWARDZERO);
    return status;
}

static tn_status plan_crash(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    (void)err;
    raise(SIGSEGV); /* as a wild pointer does; sanitizers would stop the pointer itself first */
    return TN_OK;
}

static tn_status plan_hang(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    (void)err;
    for (;;)
        pause();
    return TN_OK;
}

static tn_status plan_absurd(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = (size_t)1 << 50;
    return TN_OK;
}

static tn_status plan_endless(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = SIZE_MAX;
    return TN_OK;
}

static tn_status plan_backward(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->backward_scratch_bytes = SIZE_MAX / 2;
    return TN_OK;
}

/* Only for few tokens, as a difference that goes below zero. */
static tn_status plan_few(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = (size_t)(plan->max_tokens - 64) * 64;
    return TN_OK;
}

static tn_status plan_threads(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->threads = -1;
    return TN_OK;
}

static tn_status plan_tokens(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->max_tokens = INT64_MAX;
    return TN_OK;
}

/* Texts without an end, and with what a terminal would obey. */
static tn_status plan_unended(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    memset(err->where, 'x', sizeof err->where);
    memset(err->message, 'y', sizeof err->message);
    return TN_E_KERNEL;
}

static tn_status unended(const tn_call *call, tn_error *err)
{
    (void)call;
    memset(err->where, 'x', sizeof err->where);
    memset(err->message, '\x1b', sizeof err->message);
    return TN_E_KERNEL;
}

static tn_status plan_fails(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)plan;
    return tn_fail(err, TN_E_INTERNAL, site->path, "no plan today");
}

static const struct {
    test_kernel kernel;
    const char *says;
    tn_status by_name;
} bad[] = {
    {{.id = "wrong", .forward = wrong}, "wrong numbers with 1 tokens", TN_E_VERIFY},
    {{.id = "wrong_for_many", .forward = wrong_for_many}, "wrong numbers with 19 tokens", TN_E_VERIFY},
    {{.id = "nan", .forward = nan_forward}, "wrong numbers", TN_E_VERIFY},
    {{.id = "unwritten", .forward = unwritten}, "row 18, element 0 was never written", TN_E_VERIFY},
    {{.id = "strides", .forward = ignores_strides}, "wrote outside its outputs (19 tokens)", TN_E_KERNEL},
    {{.id = "after", .forward = writes_after}, "forward: wrote outside its outputs (1 tokens)", TN_E_KERNEL},
    {{.id = "before", .forward = writes_before}, "forward: wrote outside its outputs", TN_E_KERNEL},
    {{.id = "input", .forward = writes_input}, "forward: wrote to its inputs", TN_E_KERNEL},
    {{.id = "reads", .forward = reads_after_input}, "outside its inputs", TN_E_KERNEL},
    {{.id = "scratch", .plan = plan_scratch, .forward = writes_scratch}, "wrote outside its scratch", TN_E_KERNEL},
    {{.id = "pack", .plan = plan_packed, .pack = pack_outside}, "pack: wrote outside its packed memory", TN_E_KERNEL},
    {{.id = "packed", .plan = plan_packed, .forward = writes_packed}, "wrote to its packed memory", TN_E_KERNEL},
    {{.id = "pack_crash", .plan = plan_packed, .pack = pack_crash}, "pack: crashed with SIGBUS", TN_E_KERNEL},
    {{.id = "crash", .forward = crash}, "forward: crashed with SIGSEGV (1 tokens)", TN_E_KERNEL},
    {{.id = "leaves", .forward = leaves}, "forward: called exit(7)", TN_E_KERNEL},
    {{.id = "hang", .forward = hang}, "forward: did not finish within", TN_E_KERNEL},
    {{.id = "fails", .forward = fails}, "forward: failed: the machine is on fire", TN_E_KERNEL},
    {{.id = "rounding", .forward = changes_rounding}, "floating-point control", TN_E_KERNEL},
    {{.id = "plan_crash", .plan = plan_crash}, "plan crashed with SIGSEGV", TN_E_KERNEL},
    {{.id = "plan_hang", .plan = plan_hang}, "plan did not finish within", TN_E_KERNEL},
    {{.id = "plan_absurd", .plan = plan_absurd},
     "plan failed: it asks for 1125899906842624 bytes of packed weights; at most ",
     TN_E_KERNEL},
    {{.id = "plan_endless", .plan = plan_endless},
     "plan failed: it asks for 18446744073709551615 bytes of scratch for 4096 tokens; at most ",
     TN_E_KERNEL},
    {{.id = "plan_backward", .plan = plan_backward}, "it asks for 9223372036854775807 bytes of scratch", TN_E_KERNEL},
    {{.id = "plan_few", .plan = plan_few}, "bytes of scratch for 1 tokens; at most ", TN_E_KERNEL},
    {{.id = "plan_threads", .plan = plan_threads}, "plan failed: it changes what it is given", TN_E_KERNEL},
    {{.id = "plan_tokens", .plan = plan_tokens}, "plan failed: it changes what it is given", TN_E_KERNEL},
    {{.id = "plan_unended", .plan = plan_unended}, "plan failed: yyyyyyyy", TN_E_KERNEL},
    {{.id = "unended", .forward = unended}, "forward: failed: \\x1b\\x1b", TN_E_KERNEL},
    {{.id = "plan_fails", .plan = plan_fails}, "plan failed: no plan today", TN_E_KERNEL},
};

/* Left out by auto, which says so; nothing of the model changes. */
START_TEST(auto_leaves_it_out)
{
    tn_model *m = open_model("f32");
    tn_report *report = NULL;
    tn_error err = TN_ERROR_INIT;
    test_kernel k = bad[_i].kernel;
    k.op = TN_OP_RMS_NORM;
    test_kernel_add(&k);
    ck_assert_msg(tn_apply_kernels(m, NULL, "auto", &report, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_msg(strstr(report->summary, bad[_i].says) && strstr(report->summary, k.id), "%s", report->summary);
    ck_assert_uint_eq(bound_count(m), 0);
    ck_assert_int_eq(m->target.packed_bytes, 0);
    tn_report_free(report);
    tn_model_close(m);
}
END_TEST

/* An error by name, with the kernel and the reason. */
START_TEST(by_name_is_an_error)
{
    tn_model *m = open_model("f32");
    tn_error err = TN_ERROR_INIT;
    test_kernel k = bad[_i].kernel;
    k.op = TN_OP_RMS_NORM;
    test_kernel_add(&k);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, k.id, NULL, &err), bad[_i].by_name);
    ck_assert_int_eq(err.code, bad[_i].by_name);
    ck_assert_msg(strstr(err.message, bad[_i].says), "%s", err.message);
    ck_assert_str_eq(err.where, k.id);
    ck_assert_uint_eq(bound_count(m), 0);
    tn_model_close(m);
}
END_TEST

/* What does the work instead: the next kernel, whatever its priority. */
START_TEST(another_kernel_takes_over)
{
    tn_model *m = open_model("f32");
    tn_report *report = NULL;
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(&(test_kernel){.id = "bad", .op = TN_OP_RMS_NORM, .priority = 9, .forward = wrong});
    test_kernel_add(&(test_kernel){.id = "good", .op = TN_OP_RMS_NORM, .priority = 1});
    ck_assert_msg(tn_apply_kernels(m, NULL, "auto", &report, &err) == TN_OK, "%s", err.message);
    for (size_t i = 0; i < report->site_count; i++)
        if (report->sites[i]->site->op == TN_OP_RMS_NORM) {
            ck_assert_str_eq(report->sites[i]->kernel, "good");
            ck_assert_str_eq(report->sites[i]->verdicts[0]->kernel, "bad");
            ck_assert(!report->sites[i]->verdicts[0]->taken);
            ck_assert_ptr_nonnull(strstr(report->sites[i]->verdicts[0]->reason, "wrong numbers"));
        }
    ck_assert_ptr_nonnull(strstr(report->summary, "good "));
    ck_assert_ptr_nonnull(strstr(report->summary, "refused: bad at RMS_NORM (wrong numbers"));
    tn_report_free(report);
    tn_model_close(m);
}
END_TEST

/* A tolerance is a bound, not a wish: just outside fails, just inside passes. */
static float shift;

static tn_status shifted(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    const tn_tensor *y = &call->out[0];
    for (int64_t t = 0; y->ndim == 2 && t < y->shape[0]; t++) {
        float *row = first(call) + t * y->stride[0], largest = 0;
        int64_t at = 0;
        for (int64_t i = 0; i < y->shape[1]; i++)
            if (fabsf(row[i]) > largest)
                largest = fabsf(row[at = i]);
        row[at == 0] += shift * 0x1p-24f * largest;
    }
    return status;
}

START_TEST(tolerance_is_a_bound)
{
    tn_model *m = open_model("f32");
    test_kernel_add(&(test_kernel){.id = "shifted", .op = TN_OP_RMS_NORM, .forward = shifted, .ulps = 1000});
    shift = 1010;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "shifted", NULL, NULL), TN_E_VERIFY);
    shift = 990;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "shifted", NULL, NULL), TN_OK);
    tn_model_close(m);
}
END_TEST

/* Tokens whose experts rounding may change are not compared, all others are. */
static tn_status ignores_renorm(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    tn_call other = *call;
    site.features &= ~TN_HAS_RENORM;
    other.site = &site;
    return test_kernel_forward(&other, err);
}

START_TEST(mixtures_are_checked)
{
    tn_error err = TN_ERROR_INIT;
    tn_model_options o = {.size = sizeof o, .dtype = _i ? "bf16" : "f32"};
    tn_model *m = tn_model_open("tests/data/models/qwen3_moe", &o, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    test_kernel_add(&(test_kernel){.id = "moe", .op = TN_OP_MOE_BLOCK});
    test_kernel_add(&(test_kernel){.id = "bad_moe", .op = TN_OP_MOE_BLOCK, .forward = ignores_renorm});
    ck_assert_msg(tn_apply_kernels(m, NULL, "moe", NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_uint_ge(bound_count(m), 1);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "bad_moe", NULL, &err), TN_E_VERIFY);
    tn_model_close(m);
}
END_TEST

/* ---- the parts -------------------------------------------------------------------------------------------------- */

START_TEST(fences_hold)
{
    for (int side = FENCE_END; side <= FENCE_START; side++)
        for (size_t bytes = 0; bytes < 9000; bytes += 1236) {
            fence f;
            ck_assert_int_eq(fence_open(&f, bytes, 4, 0, (fence_side)side, false, NULL), TN_OK);
            ck_assert_uint_eq((uintptr_t)f.data % 4, 0);
            ck_assert(fence_intact(&f));
            fence_fill(&f, FENCE_ONES);
            memset(f.data, 7, bytes);
            ck_assert(fence_intact(&f));
            ck_assert(fence_contains(&f, f.data - 1) && fence_contains(&f, f.data + bytes));
            ck_assert(!fence_contains(&f, f.map + f.map_bytes));
            fence_close(&f);
        }
    fence f;
    ck_assert_int_eq(fence_open(&f, 10, 4, 0, FENCE_END, false, NULL), TN_OK);
    f.data[10] = 0; /* two bytes are left of the last element */
    ck_assert(!fence_intact(&f));
    fence_close(&f);
    ck_assert_int_eq(fence_open(&f, SIZE_MAX / 2, 4, 0, FENCE_END, false, NULL), TN_E_MEMORY);
}
END_TEST

static bool can_be_read(const unsigned char *at)
{
    unsigned char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)at, 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

/* What was given back is out of reach until it is opened again, for as much or less, with a guard page right behind. */
START_TEST(a_fence_is_opened_in_what_was_given_back)
{
    fence_spares spares = {0};
    fence f;
    for (size_t bytes = 60000; bytes > 100; bytes /= 3) {
        ck_assert_int_eq(fence_open_spare(&spares, &f, bytes, 4, 0, FENCE_END, NULL), TN_OK);
        const unsigned char *data = f.data, *end = f.data + bytes;
        ck_assert(fence_intact(&f) && can_be_read(data) && can_be_read(end - 1));
        ck_assert(!can_be_read(end + (4 - bytes % 4) % 4) && fence_contains(&f, end + 3));
        memset(f.data, 7, bytes);
        ck_assert(bytes < 60000 || fence_read_only(&f, NULL) == TN_OK);
        ck_assert_uint_eq(spares.count, 0);
        fence_give_back(&spares, &f);
        ck_assert(spares.count == 1 && f.map == NULL && !can_be_read(data) && !can_be_read(end - 1));
    }
    const unsigned char *map = spares.kept[0].map;
    ck_assert_int_eq(fence_open_spare(&spares, &f, 60000, 4, 4, FENCE_START, NULL), TN_OK);
    ck_assert_ptr_eq(f.map, map);
    fence_close(&f);
    /* What fence_fill leaves out is never what an earlier call left there. */
    size_t large = (size_t)3 << 20;
    ck_assert_int_eq(fence_open_spare(&spares, &f, large, 4, 0, FENCE_END, NULL), TN_OK);
    memset(f.data, 7, large);
    fence_give_back(&spares, &f);
    ck_assert_uint_eq(spares.count, 0);
    ck_assert_int_eq(fence_open_spare(&spares, &f, large, 4, 0, FENCE_END, NULL), TN_OK);
    ck_assert_int_eq(f.data[large / 2], 0);
    fence_close(&f);
}
END_TEST

/* The same seed draws the same; rows differ; values look like a normal distribution. */
START_TEST(inputs_are_seeded)
{
    tn_model *m = open_model("bf16");
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        inputs a, b;
        tn_error err = TN_ERROR_INIT;
        const tn_site *site = &m->target.graph->sites[i]->site;
        ck_assert_msg(inputs_draw(&a, site, 2, 5, 42, &err) == TN_OK, "%s", err.message);
        ck_assert_int_eq(inputs_draw(&b, site, 2, 5, 42, &err), TN_OK);
        ck_assert_int_eq(a.tokens, 10);
        ck_assert_int_ge(a.call.in_count, 1);
        ck_assert_int_ge(a.call.out_count, 1);
        for (int j = 0; j < a.call.in_count; j++) {
            const tn_tensor *t = &a.call.in[j];
            size_t bytes = (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
            ck_assert_mem_eq(t->data, b.call.in[j].data, bytes);
        }
        inputs_close(&b);
        ck_assert_int_eq(inputs_draw(&b, site, 2, 5, 43, &err), TN_OK);
        ck_assert_mem_ne(a.call.in[0].data, b.call.in[0].data, 64);
        inputs_close(&a);
        inputs_close(&b);
    }
    tn_model_close(m);
}
END_TEST

/* Where routing is clear, the last chosen and the first rejected expert are apart; where it never is, that is said. */
START_TEST(routed_tokens_are_clear)
{
    enum { H = 16, E = 12, K = 3, T = 40 };
    float router[E * H];
    struct inputs_random r = {.state = 1};
    for (int i = 0; i < E * H; i++)
        router[i] = 0.3f * inputs_normal(&r);
    tn_tensor weight = tn_tensor_dense(router, TN_F32, 2, (int64_t[]){E, H});
    tn_site site = {.size = sizeof site, .op = TN_OP_MOE_ROUTE, .path = "gate"};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    site.dim[TN_DIM_HIDDEN] = H;
    site.dim[TN_DIM_EXPERTS] = E;
    site.dim[TN_DIM_TOP_K] = K;
    site.param[TN_ROLE_ROUTER] = (tn_param){&weight, 1};
    inputs in;
    ck_assert_int_eq(inputs_draw(&in, &site, 1, T, 7, NULL), TN_OK);
    const float *x = in.call.in[0].data;
    int clear = 0;
    for (int t = 0; t < T; t++) {
        double logit[E];
        int above = 0;
        for (int e = 0; e < E; e++) {
            logit[e] = 0;
            for (int i = 0; i < H; i++)
                logit[e] += (double)router[e * H + i] * x[t * H + i];
        }
        /* Chosen are K: no score may lie within 2 % below the K-th. */
        for (int e = 0; e < E; e++) {
            int better = 0, near = 0;
            for (int f = 0; f < E; f++) {
                better += logit[f] > logit[e];
                near += logit[f] < logit[e] && exp(logit[f] - logit[e]) > 0.9801;
            }
            if (better == K - 1 && near == 0)
                above++;
        }
        ck_assert(in.skip[t] || above == 1);
        clear += !in.skip[t];
    }
    ck_assert_int_ge(2 * clear, T);
    inputs_close(&in);
    memset(router, 0, sizeof router);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(inputs_draw(&in, &site, 1, T, 7, &err), TN_DECLINED);
    ck_assert_ptr_nonnull(strstr(err.message, "nearly the same"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("check");
    TCase *refusals = tcase_create("refusals");
    int count = (int)(sizeof bad / sizeof bad[0]);
    tcase_set_timeout(refusals, 120);
    tcase_add_loop_test(refusals, auto_leaves_it_out, 0, count);
    tcase_add_loop_test(refusals, by_name_is_an_error, 0, count);
    tcase_add_test(refusals, another_kernel_takes_over);
    tcase_add_test(refusals, tolerance_is_a_bound);
    tcase_add_loop_test(refusals, mixtures_are_checked, 0, 2);
    suite_add_tcase(suite, refusals);
    TCase *parts = tcase_create("parts");
    tcase_set_timeout(parts, 60);
    tcase_add_test(parts, fences_hold);
    tcase_add_test(parts, a_fence_is_opened_in_what_was_given_back);
    tcase_add_test(parts, inputs_are_seeded);
    tcase_add_test(parts, routed_tokens_are_clear);
    suite_add_tcase(suite, parts);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
