/* Models on a device that is not the CPU: memory that the host cannot touch, and work that waits in a queue. */
#include "far_device.h"
#include "open/model.h"
#include "optest.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const models[] = {"llama",   "qwen3_moe",   "qwen2_sliding", "deepseek_v3",
                                     "lfm2",    "qwen3_next",  "gemma3n_text",  "gemma4_text_moe",
                                     "gpt_oss", "llama4_text", "cohere2",       "starcoder2"};
enum { MODELS = sizeof models / sizeof *models, TOKENS = 7, CHUNK = 3 };
static const int64_t ids[TOKENS] = {1, 5, 9, 2, 11, 3, 7};

static tn_model *open_on(const char *name, const char *device, bool training, tn_error *err)
{
    char path[256];
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    tn_model_options o = {.size = sizeof o, .dtype = "f32", .device = device, .training = training};
    return tn_model_open(path, &o, err);
}

static tn_model *open_good(const char *name, const char *device)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_on(name, device, true, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    return m;
}

/* Logits and hidden states of a few tokens in chunks, one behind the other. Owned. */
static float *results_of(tn_model *m, size_t *count)
{
    const model_shape *shape = m->flow->shape(m->arch_state);
    size_t logits = (size_t)(TOKENS * shape->vocab), row = (size_t)(TOKENS * shape->hidden);
    *count = logits + (size_t)(shape->layers + 1) * row;
    float *all = calloc(*count, sizeof *all), *hidden[64];
    for (int64_t i = 0; i <= shape->layers; i++)
        hidden[i] = all + logits + (size_t)i * row;
    tn_session *s = test_model_session(m, .context = 32, .chunk = CHUNK);
    test_model_run(s, TOKENS, ids, .logits = all, .hidden = hidden);
    ck_assert_int_eq(far_seen.waiting, 0);
    tn_session_free(s);
    return all;
}

static void expect_nothing_left(void)
{
    ck_assert_int_eq(far_seen.held, 0);
    ck_assert_int_eq(far_seen.waiting, 0);
    ck_assert_int_eq(far_seen.opened, far_seen.closed);
}

/* The three kinds of devices: far away, with memory of the host, and without anything that may be left out. */
static const far_options kinds[] = {
    {.name = "far"}, {.name = "shared", .host_memory = true}, {.name = "plain", .plain = true}};
enum { KINDS = sizeof kinds / sizeof *kinds };

START_TEST(they_compute_the_same)
{
    const far_options *kind = &kinds[_i % KINDS];
    size_t count, again;
    far_device_add(kind);
    tn_model *m = open_good(models[_i / KINDS], "cpu");
    float *want = results_of(m, &count);
    tn_model_close(m);
    ck_assert_int_eq(far_seen.calls, 0);
    m = open_good(models[_i / KINDS], kind->name);
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    ck_assert_str_eq(info.device, kind->name);
    float *got = results_of(m, &again);
    ck_assert_uint_eq(count, again);
    ck_assert_mem_eq(want, got, count * sizeof *want);
    ck_assert_int_gt(far_seen.calls, 20);
    ck_assert(kind->plain || far_seen.most_waiting > 5); /* it did not wait after each call             */
    tn_model_close(m);
    expect_nothing_left();
    free(want);
    free(got);
}
END_TEST

START_TEST(it_generates)
{
    int64_t want[12], got[12];
    far_device_add(&kinds[0]);
    for (int i = 0; i < 2; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_model *m = open_good("qwen3", i ? "far" : NULL);
        tn_session_options so = {.size = sizeof so, .context = 32, .chunk = CHUNK};
        tn_session *s = tn_session_new(m, &so, NULL);
        tn_generate_options o = {.size = sizeof o, .max_tokens = 12, .ignore_eos = true};
        tn_generate_result r = {.size = sizeof r};
        ck_assert_msg(tn_generate(s, ids, TOKENS, &o, i ? got : want, &r, &err) == TN_OK, "%s", err.message);
        ck_assert_int_eq(r.count, 12);
        tn_session_free(s);
        tn_model_close(m);
    }
    ck_assert_mem_eq(want, got, sizeof want);
    expect_nothing_left();
}
END_TEST

/* ---- single sites ------------------------------------------------------------------------------------- */

static tn_tensor put(const tn_model *m, const tn_tensor *host)
{
    tn_tensor t = *host;
    size_t bytes = tn_dtype_bytes(t.dtype, tn_tensor_count(&t));
    ck_assert_int_eq(device_alloc(&m->device, bytes, &t.data, NULL), TN_OK);
    ck_assert_int_eq(device_upload(&m->device, t.data, host->data, bytes, NULL), TN_OK);
    return t;
}

/* Copies the tensor to the host's and frees it. */
static void fetch(const tn_model *m, const tn_tensor *t, const tn_tensor *host)
{
    size_t bytes = tn_dtype_bytes(t->dtype, tn_tensor_count(t));
    ck_assert_int_eq(device_download(&m->device, host->data, t->data, bytes, NULL), TN_OK);
    device_free(&m->device, t->data, bytes);
}

START_TEST(sites_and_their_gradients)
{
    static const char path[] = "model.layers.0.mlp";
    tn_tensor y[2], dx[2], router[2];
    far_device_add(&kinds[0]);
    for (int i = 0; i < 2; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_model *m = open_good("qwen3_moe", i ? "far:1" : "cpu:0");
        tn_model_info info = {.size = sizeof info};
        ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
        ck_assert_int_eq(info.device_ordinal, i);
        ck_assert_int_eq(far_seen.ordinal, i);
        const graph_site *site = graph_find_site(m->target.graph, path);
        int64_t shape[2] = {3, site->site.dim[TN_DIM_HIDDEN]};
        int64_t router_shape[2] = {site->site.dim[TN_DIM_EXPERTS], shape[1]};
        tn_tensor hx = optest_random(TN_F32, 2, shape, 1), hdy = optest_random(TN_F32, 2, shape, 2);
        y[i] = optest_zeros(TN_F32, 2, shape);
        dx[i] = optest_zeros(TN_F32, 2, shape);
        router[i] = optest_zeros(TN_F32, 2, router_shape);
        tn_tensor x = put(m, &hx), dy = put(m, &hdy), out = put(m, &y[i]), in = put(m, &dx[i]), w = put(m, &router[i]);
        tn_grads grads = {.size = sizeof grads, .out = {dy}, .in = {in}};
        grads.param[TN_ROLE_ROUTER] = (tn_param){&w, 1};
        ck_assert_msg(tn_site_forward(m, path, TN_OP_MOE_BLOCK, &x, 1, &out, 1, &err) == TN_OK, "%s", err.message);
        ck_assert_int_eq(far_seen.waiting, 0);
        ck_assert_msg(tn_site_backward(m, path, TN_OP_MOE_BLOCK, &x, 1, &grads, &err) == TN_OK, "%s", err.message);
        fetch(m, &out, &y[i]);
        fetch(m, &in, &dx[i]);
        fetch(m, &w, &router[i]);
        fetch(m, &x, &hx);
        fetch(m, &dy, &hdy);
        tn_model_close(m);
    }
    ck_assert_mem_eq(y[0].data, y[1].data, (size_t)tn_tensor_count(&y[0]) * 4);
    ck_assert_mem_eq(dx[0].data, dx[1].data, (size_t)tn_tensor_count(&dx[0]) * 4);
    ck_assert_mem_eq(router[0].data, router[1].data, (size_t)tn_tensor_count(&router[0]) * 4);
    ck_assert(optest_at(&y[0], 5) != 0 && optest_at(&dx[0], 5) != 0 && optest_at(&router[0], 5) != 0);
    expect_nothing_left();
}
END_TEST

/* ---- what cannot be ------------------------------------------------------------------------------------ */

static void expect_refused(const char *model, const char *device, const char *where, const char *message)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(open_on(model, device, false, &err));
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    ck_assert_str_eq(err.where, where);
    ck_assert_str_eq(err.message, message);
    expect_nothing_left();
}

START_TEST(units_and_names_that_are_not_there)
{
    far_device_add(&kinds[0]);
    expect_refused("llama", "far:2", "device", "'far:2' cannot be opened: there are 2 units, from 0 to 1");
    expect_refused("llama", "cpu:1", "device", "'cpu:1' cannot be opened: there is one unit, which has the ordinal 0");
    expect_refused("llama", "near", "device", "'near' is not here: no plugin brings this device; there are: cpu, far");
    expect_refused("llama", "far:", "device", "'far:' is not a device; give NAME or NAME:ORDINAL, such as cpu:0");
    ck_assert_int_eq(far_seen.opened, 0);
}
END_TEST

static const struct {
    tn_op op;
    const char *where, *message;
} declined[] = {
    {TN_OP_LINEAR, "model.layers.0.self_attn.q_proj",
     "device far does not perform LINEAR: its unit for this is broken"},
    {TN_OP_ADD, "model.layers.0.post_attention_layernorm",
     "device far does not perform ADD: its unit for this is broken"},
    {TN_OP_MOE_ROUTE, "model.layers.0.mlp.gate", "device far does not perform MOE_ROUTE: its unit for this is broken"},
};

START_TEST(what_a_device_declines_is_told_when_a_model_is_opened)
{
    far_device_add(&(far_options){.name = "far", .declines = declined[_i].op});
    expect_refused("qwen3_moe", "far", declined[_i].where, declined[_i].message);
}
END_TEST

START_TEST(parts_are_asked_about_instead_of_compositions)
{
    far_device_add(&kinds[0]);
    tn_model_close(open_good("llama", "far"));
    tn_model_close(open_good("qwen3_moe", "far"));
    const uint64_t some = 1u << TN_OP_RMS_NORM | 1u << TN_OP_ROPE | 1u << TN_OP_LINEAR | 1u << TN_OP_ATTENTION |
                          1u << TN_OP_MOE_ROUTE | 1u << TN_OP_MOE_EXPERTS;
    ck_assert_uint_eq(far_seen.asked[0], some);
    const uint64_t steps = 1u << (TN_OP_EMBEDDING - 64) | 1u << (TN_OP_ADD - 64) | 1u << (TN_OP_GLU - 64);
    ck_assert_uint_eq(far_seen.asked[1], steps);
}
END_TEST

START_TEST(what_fails_in_the_queue_fails_the_run)
{
    far_device_add(&kinds[0]);
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_good("llama", "far");
    tn_session_options o = {.size = sizeof o, .context = 32};
    tn_session *s = tn_session_new(m, &o, NULL);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = TOKENS, .ids = ids};
    far_seen.fail_at = 9;
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, "device far");
    suite_expect_in(err.message, "operation 0 is not a primitive one");
    tn_session_reset(s);
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, NULL), TN_OK);
    tn_session_free(s);
    tn_model_close(m);
    expect_nothing_left();
}
END_TEST

START_TEST(a_device_without_gradients_says_so)
{
    far_device_add(&kinds[2]);
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_good("llama", "plain");
    const graph_site *site = graph_find_site(m->target.graph, "model.norm");
    int64_t shape[2] = {2, site->part[0] ? site->part[0]->site.dim[TN_DIM_WIDTH] : site->site.dim[TN_DIM_WIDTH]};
    tn_tensor host = optest_zeros(TN_F32, 2, shape), x = put(m, &host), dx = put(m, &host);
    tn_grads grads = {.size = sizeof grads, .in = {dx}};
    ck_assert_int_eq(tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err), TN_DECLINED);
    ck_assert_str_eq(err.message, "device plain has no gradients");
    fetch(m, &x, &host);
    fetch(m, &dx, &host);
    tn_model_close(m);
    expect_nothing_left();
}
END_TEST

/* ---- kernels -------------------------------------------------------------------------------------------- */

static int64_t kernel_calls, packs;

static tn_status kernel_forward(const tn_call *call, tn_error *err)
{
    kernel_calls++;
    ck_assert(call->packed && call->plan);
    return far_device_line_up(call, err);
}

static tn_status kernel_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site, (void)err;
    plan->packed_bytes = 64;
    plan->backward_scratch_bytes = 1 << 20; /* more than the norm needs                           */
    return TN_OK;
}

static tn_status kernel_pack(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)site, (void)plan, (void)packed, (void)err;
    packs += queue != NULL;
    return TN_OK;
}

/* A kernel of the device works on its queue. It is checked first: in a child, or here where the host cannot see what it
 * works on. */
START_TEST(kernels_of_a_device_use_its_queue)
{
    const far_options *kind = &kinds[_i];
    size_t count;
    far_device_add(kind);
    test_kernel_add(&(test_kernel){.id = "far_norm",
                                   .op = TN_OP_RMS_NORM,
                                   .plan = kernel_plan,
                                   .pack = kernel_pack,
                                   .forward = kernel_forward,
                                   .backward = kernel_forward,
                                   .device = kind->name});
    tn_model *m = open_good("llama", "cpu");
    float *want = results_of(m, &count);
    tn_report *report = NULL;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "far_norm", &report, NULL), TN_OK); /* it is not the CPU's */
    ck_assert_uint_eq(report->note_count, 1);
    for (size_t i = 0; i < report->site_count; i++)
        ck_assert_ptr_null(report->sites[i]->kernel);
    tn_report_free(report);
    tn_model_close(m);
    m = open_good("llama", kind->name);
    tn_config *config = test_config("{\"verify\": \"all\"}");
    test_model_apply(m, config, "far_norm");
    float *got = results_of(m, &count);
    ck_assert_mem_eq(want, got, count * sizeof *want);
    ck_assert_int_gt(kernel_calls, 0);
    ck_assert_int_gt(packs, 0);
    tn_model_close(m);
    expect_nothing_left();
    free(want);
    free(got);
}
END_TEST

static tn_status wrong_forward(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    tn_call other = *call;
    site.num[TN_NUM_EPS] = 1;
    other.site = &site;
    return far_device_line_up(&other, err);
}

static tn_status failing_forward(const tn_call *call, tn_error *err)
{
    return tn_fail(err, TN_E_INTERNAL, call->site->path, "an operator failed with 561002");
}

/* Wrong numbers and failures, forward and backward, are found before a model uses the kernel. */
START_TEST(wrong_kernels_of_a_device_are_refused)
{
    static const struct {
        tn_status (*forward)(const tn_call *call, tn_error *err), (*backward)(const tn_call *call, tn_error *err);
        tn_status status;
        const char *says;
    } cases[] = {{wrong_forward, far_device_line_up, TN_E_VERIFY, "wrong numbers with 1 token: "},
                 {failing_forward, far_device_line_up, TN_E_KERNEL, "561002"},
                 {far_device_line_up, wrong_forward, TN_E_VERIFY, "wrong gradients with 66 tokens: "},
                 {far_device_line_up, failing_forward, TN_E_KERNEL, "561002"}};
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    far_device_add(&kinds[0]);
    test_kernel_add(&(test_kernel){.id = "far_norm",
                                   .op = TN_OP_RMS_NORM,
                                   .plan = kernel_plan,
                                   .pack = kernel_pack,
                                   .forward = cases[_i].forward,
                                   .backward = cases[_i].backward,
                                   .device = "far"});
    tn_model *m = open_good("llama", "far");
    tn_config *config = test_config("{\"verify\": \"all\"}");
    ck_assert_int_eq(tn_apply_kernels(m, config, "far_norm", NULL, &err), cases[_i].status);
    suite_expect_in(err.message, cases[_i].says);
    ck_assert_int_eq(tn_apply_kernels(m, config, "auto", &report, NULL), TN_OK);
    for (size_t i = 0; i < report->site_count; i++)
        ck_assert_ptr_null(report->sites[i]->kernel);
    tn_report_free(report);
    tn_model_close(m);
    expect_nothing_left();
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("a device that is far away", 120);
    tcase_add_loop_test(tc, they_compute_the_same, 0, MODELS * KINDS);
    suite_add(tc, it_generates, sites_and_their_gradients, units_and_names_that_are_not_there);
    tcase_add_loop_test(tc, what_a_device_declines_is_told_when_a_model_is_opened, 0, 3);
    suite_add(tc, parts_are_asked_about_instead_of_compositions, what_fails_in_the_queue_fails_the_run,
              a_device_without_gradients_says_so);
    tcase_add_loop_test(tc, kernels_of_a_device_use_its_queue, 0, 2);
    tcase_add_loop_test(tc, wrong_kernels_of_a_device_are_refused, 0, 4);
    return suite_run();
}
