/* Packed weights: shared by sites with equal weights, counted, and bounded. */
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SITES = 9, MIB = 1 << 20 };

static int packs; /* in this process: checks pack in a child */

static tn_status plan_packed(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->packed_bytes = MIB;
    plan->user[0] = (uint64_t)site->dim[TN_DIM_WIDTH];
    return TN_OK;
}

static tn_status pack(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    (void)err;
    packs++;
    memcpy(packed, site->param[TN_ROLE_WEIGHT].tensors->data, (size_t)plan->user[0] * sizeof(float));
    return TN_OK;
}

/* Norms with the packed weight, not the site's. */
static tn_status forward(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    tn_tensor weight = site.param[TN_ROLE_WEIGHT].tensors[0];
    tn_call with = *call;
    weight.data = (void *)(uintptr_t)call->packed;
    site.param[TN_ROLE_WEIGHT].tensors = &weight;
    with.site = &site;
    return test_kernel_forward(&with, err);
}

static tn_model *open_model(void)
{
    tn_model *m = test_model_open("qwen3", "f32");
    test_kernel_add(
        &(test_kernel){.id = "packer", .op = TN_OP_RMS_NORM, .plan = plan_packed, .pack = pack, .forward = forward});
    return m;
}

static tn_tensor *weight_of(const tn_model *m, const char *path)
{
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        const tn_site *site = &m->target.graph->sites[i]->site;
        if (site->op == TN_OP_RMS_NORM && !strcmp(site->path, path))
            return (tn_tensor *)(uintptr_t)site->param[TN_ROLE_WEIGHT].tensors;
    }
    ck_abort_msg("no norm %s", path);
}

#define FIRST "model.layers.0.input_layernorm"
#define SAME "model.layers.0.post_attention_layernorm"
#define EQUAL "model.layers.1.input_layernorm"

/* All norms differ; then SAME gets the weight of FIRST, and EQUAL a copy of it. The copy is owned by the caller. */
static float *make_equal(tn_model *m)
{
    const char *const all[] = {FIRST, SAME, EQUAL, "model.layers.1.post_attention_layernorm", "model.norm"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        float *weight = weight_of(m, all[i])->data;
        for (size_t j = 0; j < i; j++)
            ck_assert_mem_ne(weight, weight_of(m, all[j])->data, 64 * sizeof *weight);
    }
    size_t bytes = 64 * sizeof(float);
    float *copy = malloc(bytes);
    memcpy(copy, weight_of(m, FIRST)->data, bytes);
    weight_of(m, SAME)->data = weight_of(m, FIRST)->data;
    weight_of(m, EQUAL)->data = copy;
    return copy;
}

static void expect_packed(const tn_model *m, int64_t sites, int64_t copies)
{
    tn_packed **list = NULL;
    size_t count = 0;
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_packed(m, &list, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, sites > 0);
    if (count > 0) {
        ck_assert_str_eq(list[0]->kernel, "packer");
        ck_assert_int_eq(list[0]->sites, sites);
        ck_assert_int_eq(list[0]->copies, copies);
        ck_assert_int_eq(list[0]->bytes, copies * MIB);
    }
    free(list);
    tn_model_get_info(m, &info);
    ck_assert_int_eq(info.packed_bytes, copies * MIB);
}

/* Last logits of a few tokens. */
static void logits_of(tn_model *m, float *out)
{
    tn_session *s = test_model_session(m, .context = 8);
    test_model_run(s, 5, ((int64_t[]){3, 1, 4, 1, 5}), .last_logits = out);
    tn_session_free(s);
}

START_TEST(equal_weights_are_packed_once)
{
    tn_model *m = open_model();
    float *copy = make_equal(m), *eager = calloc((size_t)m->info.vocab, sizeof *eager);
    float *packed = calloc((size_t)m->info.vocab, sizeof *packed);
    logits_of(m, eager);
    test_model_apply(m, NULL, "packer");
    expect_packed(m, SITES, SITES - 2);
    ck_assert_int_eq(packs, SITES - 2);
    logits_of(m, packed);
    ck_assert_mem_eq(eager, packed, (size_t)m->info.vocab * sizeof *eager);
    test_model_apply(m, NULL, "packer"); /* nothing new */
    ck_assert_int_eq(packs, SITES - 2);
    expect_packed(m, SITES, SITES - 2);
    test_model_apply(m, NULL, "none");
    expect_packed(m, 0, 0);
    free(eager);
    free(packed);
    tn_model_close(m);
    free(copy);
}
END_TEST

/* What two sites share outlives the one that packed it; a failed change leaves it. */
START_TEST(copies_live_as_long_as_they_are_used)
{
    tn_model *m = open_model();
    float *copy = make_equal(m);
    test_kernel_add(&(test_kernel){.id = "plain", .op = TN_OP_RMS_NORM});
    test_model_apply(m, NULL, "packer");
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "plain", FIRST "," SAME, NULL), TN_OK);
    expect_packed(m, SITES - 2, SITES - 2); /* EQUAL has it alone now */
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "plain", EQUAL, NULL), TN_OK);
    expect_packed(m, SITES - 3, SITES - 3);
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "packer", SAME "," EQUAL, NULL), TN_OK);
    expect_packed(m, SITES - 1, SITES - 2);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "nobody", NULL, NULL), TN_E_KERNEL);
    expect_packed(m, SITES - 1, SITES - 2);
    ck_assert_int_eq(tn_revert_kernel(m, "packer", NULL), TN_OK);
    expect_packed(m, 0, 0);
    tn_model_close(m);
    free(copy);
}
END_TEST

static tn_config *config_with(int64_t mb)
{
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_max_packed_mb(config, mb, NULL), TN_OK);
    ck_assert_int_eq(tn_config_max_packed_mb(config), mb);
    return config;
}

static size_t taken(const tn_report *report, const char **reason)
{
    size_t n = 0;
    for (size_t i = 0; i < report->site_count; i++) {
        const tn_site_report *s = report->sites[i];
        if (s->site->op != TN_OP_RMS_NORM)
            continue;
        n += s->kernel != NULL;
        if (!s->kernel)
            *reason = s->verdicts[0]->reason;
    }
    return n;
}

START_TEST(a_bound_is_kept)
{
    tn_model *m = open_model();
    float *copy = make_equal(m);
    tn_config *config = config_with(5);
    const char *reason = "";
    /* Four norms of heads, FIRST with SAME and EQUAL, and no more. */
    tn_report *report = test_model_report(m, config, "auto");
    ck_assert_uint_eq(taken(report, &reason), 7);
    ck_assert_str_eq(reason, "packed weights: 6 MiB with this site's, --max-packed-mb allows 5");
    expect_packed(m, 7, 5);
    tn_report_free(report);
    /* Adding to what is there counts that, too. */
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernel(m, config, "packer", "model.norm", &err), TN_E_KERNEL);
    suite_expect_in(err.message, "packed weights: 6 MiB with this site's, --max-packed-mb allows 5");
    expect_packed(m, 7, 5);
    tn_config_free(config);
    config = config_with(0);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernels(m, config, "packer", NULL, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "packed weights: 1 MiB with this site's, --max-packed-mb allows 0");
    report = NULL;
    ck_assert_int_eq(tn_apply_kernels(m, config, "auto", &report, NULL), TN_OK);
    ck_assert_uint_eq(taken(report, &reason), 0);
    tn_report_free(report);
    expect_packed(m, 0, 0);
    tn_config_free(config);
    config = config_with(-1);
    test_model_apply(m, config, "packer");
    expect_packed(m, SITES, SITES - 2);
    ck_assert_int_eq(tn_config_set_max_packed_mb(config, -2, NULL), TN_E_KERNEL);
    ck_assert_int_eq(tn_config_set_max_packed_mb(config, INT64_MAX, NULL), TN_E_KERNEL);
    tn_config_free(config);
    tn_model_close(m);
    free(copy);
}
END_TEST

/* Another kernel has what one that packs too much leaves. */
START_TEST(others_take_what_is_left)
{
    tn_model *m = open_model();
    test_kernel_add(&(test_kernel){.id = "plain", .op = TN_OP_RMS_NORM, .priority = -1});
    tn_config *config = config_with(2);
    tn_report *report = test_model_report(m, config, "auto");
    suite_expect_in(report->summary, "packer 2/9 RMS_NORM, plain 7/9 RMS_NORM");
    tn_report_free(report);
    tn_config_free(config);
    tn_model_close(m);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("packed weights", 60);
    suite_add(c, equal_weights_are_packed_once, copies_live_as_long_as_they_are_used, a_bound_is_kept,
              others_take_what_is_left);
    return suite_run();
}
