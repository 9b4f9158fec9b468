/* The sum before a norm: a site around the norm's own, which a kernel may take, and that changes nothing otherwise. */
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dtypes[] = {"f32", "bf16", "f16"};

static const graph_site *site_at(const tn_model *m, const char *path, tn_op op)
{
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        if (!strcmp(m->target.graph->sites[i]->site.path, path) && m->target.graph->sites[i]->site.op == op)
            return m->target.graph->sites[i];
    return NULL;
}

/* Every norm of a sum has both sites with one meaning; the others only their own. */
START_TEST(sums_have_sites)
{
    static const char *const with[] = {"model.layers.0.post_attention_layernorm", "model.layers.1.input_layernorm",
                                       "model.layers.1.post_attention_layernorm", "model.norm"};
    static const char *const without[] = {"model.layers.0.input_layernorm", "model.layers.0.self_attn.q_norm",
                                          "model.layers.1.self_attn.k_norm"};
    tn_model *m = test_model("qwen3", .dtype = "f32");
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        const graph_site *sum = site_at(m, with[i], TN_OP_ADD_RMS_NORM), *own = site_at(m, with[i], TN_OP_RMS_NORM);
        ck_assert_ptr_nonnull(sum);
        ck_assert_ptr_eq(own->outer, sum);
        ck_assert_ptr_eq(sum->part[GRAPH_PART_NORM], own);
        ck_assert_uint_lt(sum->index, own->index);
        ck_assert_mem_eq(sum->site.meaning, own->site.meaning, sizeof own->site.meaning);
        ck_assert_mem_eq(sum->site.dim, own->site.dim, sizeof own->site.dim);
        ck_assert_mem_eq(sum->site.num, own->site.num, sizeof own->site.num);
        ck_assert_ptr_eq(sum->site.param[TN_ROLE_WEIGHT].tensors->data, own->site.param[TN_ROLE_WEIGHT].tensors->data);
    }
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        ck_assert_ptr_null(site_at(m, without[i], TN_OP_ADD_RMS_NORM));
        ck_assert_ptr_null(site_at(m, without[i], TN_OP_RMS_NORM)->outer);
    }
}
END_TEST

/* A kernel for the pair has the norm with it; reverting gives both back. */
START_TEST(pairs_are_taken_whole)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    tn_report *report = NULL;
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .priority = 5});
    test_kernel_add(&(test_kernel){.id = "pair", .op = TN_OP_ADD_RMS_NORM});
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "auto", &report, NULL), TN_OK);
    ck_assert_ptr_nonnull(strstr(report->summary, "norm 5/5 RMS_NORM, pair 4/4 ADD_RMS_NORM; eager: "));
    const graph_site *sum = site_at(m, "model.norm", TN_OP_ADD_RMS_NORM),
                     *own = site_at(m, "model.norm", TN_OP_RMS_NORM);
    ck_assert_str_eq(report->sites[sum->index]->kernel, "pair");
    ck_assert_ptr_null(report->sites[own->index]->kernel);
    ck_assert_str_eq(report->sites[own->index]->covered_by, "model.norm");
    ck_assert_str_eq(report->sites[own->index]->verdicts[0]->reason,
                     "covered: pair has the ADD_RMS_NORM around this site");
    tn_report_free(report);
    tn_verify_row **rows = NULL;
    size_t count = 0;
    ck_assert_int_eq(tn_verify(m, &rows, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 2);
    free(rows);
    ck_assert_int_eq(tn_revert_kernel(m, "pair", NULL), TN_OK);
    ck_assert_ptr_null(sum->bound.impl);
    ck_assert_ptr_null(own->bound.impl);
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "norm", NULL, NULL), TN_OK);
    ck_assert_ptr_nonnull(own->bound.impl);
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "pair", "model.norm", NULL), TN_OK);
    ck_assert_ptr_nonnull(sum->bound.impl);
    ck_assert_ptr_null(own->bound.impl);
    ck_assert_ptr_nonnull(site_at(m, "model.layers.1.input_layernorm", TN_OP_RMS_NORM)->bound.impl);
}
END_TEST

/* ---- running ------------------------------------------------------------------------------------------------- */

enum { ROWS = 2, TOKENS = 7 };

/* Logits and every hidden state of a padded batch, one after another. Owned. */
static float *outputs_of(tn_model *m, size_t *count)
{
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(m, &info);
    size_t hidden = (size_t)(ROWS * TOKENS * info.hidden), logits = (size_t)(ROWS * TOKENS * info.vocab);
    size_t states = (size_t)info.layers + 1;
    *count = logits + states * hidden;
    float *all = calloc(*count, sizeof *all), **state = calloc(states, sizeof *state);
    for (size_t i = 0; i < states; i++)
        state[i] = all + logits + i * hidden;
    int64_t ids[ROWS * TOKENS], mask[ROWS * TOKENS];
    for (int64_t i = 0; i < ROWS * TOKENS; i++) {
        ids[i] = (11 * i + 3) % info.vocab;
        mask[i] = i / TOKENS == 0 || i % TOKENS >= 2;
    }
    tn_error err = TN_ERROR_INIT;
    tn_session *s = test_model_session(m, .rows = ROWS, .context = TOKENS, .chunk = 4);
    tn_batch batch = {.size = sizeof batch, .rows = ROWS, .tokens = TOKENS, .ids = ids, .mask = mask};
    tn_outputs out = {.size = sizeof out, .logits = all, .hidden = state};
    ck_assert_msg(tn_session_run(s, &batch, &out, &err) == TN_OK, "%s", err.message);
    tn_session_free(s);
    free(state);
    return all;
}

static bool is_zero(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != 0)
            return false;
    return true;
}

/* Kernels that compute as eager does change no bit, wherever the sum is done: with the norm, apart from a kernel's
 * norm, at some places or all. */
START_TEST(sums_are_the_same)
{
    tn_model *m = test_model("qwen3", .dtype = dtypes[_i]);
    size_t n;
    float *eager = outputs_of(m, &n);
    ck_assert(!is_zero(eager, n));
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "pair", .op = TN_OP_ADD_RMS_NORM});
    static const char *const specs[] = {"norm", "pair", "norm,pair"};
    for (size_t i = 0; i < 4; i++) {
        if (i < 3)
            test_model_apply(m, NULL, specs[i]);
        else
            ck_assert_int_eq(tn_apply_kernel(m, NULL, "pair", "model.layers.1.*", NULL), TN_OK);
        float *with = outputs_of(m, &n);
        ck_assert_msg(!memcmp(eager, with, n * sizeof *eager), "%s", i < 3 ? specs[i] : "layer 1");
        free(with);
        test_model_apply(m, NULL, "none");
    }
    free(eager);
}
END_TEST

/* Adds r twice: every later hidden state must show it. */
static tn_status adds_twice(const tn_call *call, tn_error *err)
{
    tn_call again = *call;
    tn_status status = test_kernel_forward(call, err);
    again.in[0] = call->out[0];
    return status == TN_OK ? test_kernel_forward(&again, err) : status;
}

/* The kernel's sum is what the layers behind it and the hidden states see. */
START_TEST(the_kernels_sum_is_used)
{
    tn_model *m = test_model("qwen3", .dtype = "f32");
    size_t n, hidden = ROWS * TOKENS * (size_t)m->info.hidden, logits = ROWS * TOKENS * (size_t)m->info.vocab;
    float *eager = outputs_of(m, &n);
    test_kernel_add(&(test_kernel){.id = "twice", .op = TN_OP_ADD_RMS_NORM, .forward = adds_twice});
    tn_config *config = test_config("{\"verify\": \"never\"}"); /* no tolerance lets that pass */
    ck_assert_int_eq(tn_apply_kernel(m, config, "twice", "model.layers.1.input_layernorm", NULL), TN_OK);
    float *with = outputs_of(m, &n);
    const float *a = eager + logits, *b = with + logits;
    ck_assert(!memcmp(a, b, hidden * sizeof *a));                          /* before layer 0 */
    ck_assert(memcmp(a + hidden, b + hidden, hidden * sizeof *a));         /* before layer 1 */
    ck_assert(memcmp(a + 2 * hidden, b + 2 * hidden, hidden * sizeof *a)); /* final norm     */
    free(eager);
    free(with);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("sums before norms", 60);
    suite_add(c, sums_have_sites, pairs_are_taken_whole);
    tcase_add_loop_test(c, sums_are_the_same, 0, 3);
    suite_add(c, the_kernels_sum_is_used);
    return suite_run();
}
