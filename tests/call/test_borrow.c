/* Models over borrowed memory: the same sites as the folder's, and what cannot be used is declined by name. */
#include "check/inputs.h"
#include "lent_model.h"
#include "open/model.h"
#include "optest.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- golden models ---------------------------------------------------------------------------------------- */

enum { MOST_FOLDERS = 256 };
static char *folders[MOST_FOLDERS];
static int folder_count;

static int compare_folders(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Those with plain weights. */
static void find_folders(void)
{
    DIR *dir = opendir("tests/data/models");
    for (const struct dirent *e; dir && (e = readdir(dir)) && folder_count < MOST_FOLDERS;) {
        char path[512], command[1024];
        snprintf(path, sizeof path, "tests/data/models/%s/config.json", e->d_name);
        snprintf(command, sizeof command, "grep -q quantization_config %s", path);
        if (e->d_name[0] == '.' || access(path, R_OK) != 0 || system(command) == 0)
            continue;
        folders[folder_count++] = strdup(e->d_name);
    }
    if (dir)
        closedir(dir);
    qsort(folders, (size_t)folder_count, sizeof *folders, compare_folders);
}

static void free_folders(void)
{
    for (int i = 0; i < folder_count; i++)
        free(folders[i]);
}

/* Performs the site of both models, and compares the bits. */
static void compare_site(tn_model *a, tn_model *b, const graph_site *site, const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    inputs in;
    ck_assert_int_eq(inputs_draw(&in, &site->site, 1, 3, 7, &err), TN_OK);
    tn_tensor out[2][TN_CALL_TENSORS];
    tn_model *models[2] = {a, b};
    for (int m = 0; m < 2; m++) {
        for (int i = 0; i < in.call.out_count; i++)
            out[m][i] = optest_zeros(in.call.out[i].dtype, in.call.out[i].ndim, in.call.out[i].shape);
        tn_status status = tn_site_forward(models[m], site->site.path, site->site.op, in.call.in, in.call.in_count,
                                           out[m], in.call.out_count, &err);
        ck_assert_msg(status == TN_OK, "%s: %s: %s", folder, err.where, err.message);
    }
    for (int i = 0; i < in.call.out_count; i++)
        ck_assert_msg(
            !memcmp(out[0][i].data, out[1][i].data, tn_dtype_bytes(out[0][i].dtype, tn_tensor_count(&out[0][i]))),
            "%s: %s %s differs", folder, tn_op_name(site->site.op), site->site.path);
    inputs_close(&in);
}

START_TEST(every_golden_model_is_the_folders)
{
    const char *folder = folders[_i];
    lent_model *l = lent_of(folder);
    tn_model *live = lent_open(l, .weights_change = true, .partial = true, .per_module = true);
    tn_model *file = test_model(folder, .dtype = tn_dtype_name(live->dtype));
    tn_model *all = lent_open(l, .device = NULL);
    const graph *g = file->target.graph, *h = live->target.graph;
    ck_assert_uint_eq(g->site_count, all->target.graph->site_count);
    ck_assert_uint_eq(g->site_count, h->site_count);
    size_t lacking = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        ck_assert_str_eq(g->sites[i]->site.path, h->sites[i]->site.path);
        ck_assert(!all->target.graph->sites[i]->lacking);
        compare_site(file, all, g->sites[i], folder);
        const int64_t *dims = g->sites[i]->site.dim; /* latent attention is another: modules_expand_latents  */
        if (dims[TN_DIM_KV_HEADS] != h->sites[i]->site.dim[TN_DIM_KV_HEADS])
            ck_assert_int_eq(g->sites[i]->site.op, TN_OP_ATTENTION);
        else if (!h->sites[i]->lacking)
            compare_site(file, live, g->sites[i], folder);
        else if (lacking++ == 0 || getenv("TENON_TELL"))
            fprintf(stderr, "%s: %s: %s\n", folder, h->sites[i]->site.path, h->sites[i]->declined);
    }
    ck_assert_uint_lt(lacking, g->site_count);
}
END_TEST

/* ---- names of live models --------------------------------------------------------------------------------- */

static const char *const live[] = {"qwen3_moe", "mixtral",  "deepseek_v3", "minimax",   "phimoe",
                                   "olmoe",     "glm4_moe", "dots1",       "qwen2_moe", "qwen3_next"};

/* A stack of the lists of one projection after another, [E, all rows, columns], as modules of transformers 5 have it.
 */
static tn_tensor stack(lent_model *l, const tn_param *const *lists, int count)
{
    const tn_tensor *w = lists[0]->tensors;
    int64_t e = lists[0]->count, shape[3] = {e, count * w->shape[0], w->shape[1]};
    size_t bytes = (size_t)(w->shape[0] * w->shape[1]) * tn_dtype_size(w->dtype);
    tn_tensor t = tn_tensor_dense(lent_keep(l, (size_t)(e * count) * bytes), w->dtype, 3, shape);
    for (int64_t i = 0; i < e; i++)
        for (int j = 0; j < count; j++)
            memcpy((char *)t.data + (size_t)(i * count + j) * bytes, lists[j]->tensors[i].data, bytes);
    return t;
}

static void stack_experts(lent_model *l, const tn_site *site)
{
    char name[256];
    const tn_param *up[] = {&site->param[TN_ROLE_GATE], &site->param[TN_ROLE_UP]},
                   *down[] = {&site->param[TN_ROLE_DOWN]};
    snprintf(name, sizeof name, "%s.gate_up_proj", site->path);
    lent_add(l, name, stack(l, up, 2));
    snprintf(name, sizeof name, "%s.down_proj", site->path);
    lent_add(l, name, stack(l, down, 1));
}

/* Experts as the live modules have them, in place of the files' lists. */
START_TEST(experts_of_live_models)
{
    const char *folder = live[_i];
    lent_model *l = lent_of(folder);
    tn_model *file = test_model(folder, .dtype = NULL);
    const graph *g = file->target.graph;
    for (size_t i = 0; i < l->count;)
        if (strstr(l->names[i], ".experts."))
            lent_without(l, l->names[i]);
        else
            i++;
    for (size_t i = 0; i < l->count; i++) {
        char *at = strstr(l->names[i], ".block_sparse_moe."), *gate;
        if (!at)
            continue;
        memmove(at + 5, at + 18, strlen(at + 18) + 1);
        memcpy(at, ".mlp.", 5);
        if (!strcmp(folder, "phimoe") && (gate = strstr(at, ".gate."))) { /* its name is longer there         */
            char longer[256];
            snprintf(longer, sizeof longer, "%.*s.router.%s", (int)(gate - l->names[i]), l->names[i], gate + 6);
            l->names[i] = strcpy(lent_keep(l, sizeof longer), longer);
        }
    }
    int stacks = 0;
    for (size_t i = 0; i < g->site_count; i++)
        if (g->sites[i]->site.op == TN_OP_MOE_EXPERTS && ++stacks)
            stack_experts(l, &g->sites[i]->site);
    ck_assert_int_gt(stacks, 0);
    tn_model *m = lent_open(l, .weights_change = true);
    for (size_t i = 0; i < g->site_count; i++)
        if (!m->target.graph->sites[i]->lacking)
            compare_site(file, m, g->sites[i], folder);
        else
            ck_assert_msg(strstr(m->target.graph->sites[i]->declined, "dtype"), "%s",
                          m->target.graph->sites[i]->declined);
}
END_TEST

/* A base class, and one with another head. */
START_TEST(other_heads)
{
    lent_model *l = lent_of("llama");
    if (strstr(l->config, "LlamaForCausalLM"))
        lent_rewrite(l, "LlamaForCausalLM", _i ? "LlamaForSequenceClassification" : "LlamaModel");
    for (size_t i = 0; i < l->count; i++)
        if (_i == 0 && !strncmp(l->names[i], "model.", 6))
            l->names[i] += 6;
    lent_without(l, "lm_head.weight");
    int64_t shape[2] = {3, 4};
    lent_add(l, "score.weight", tn_tensor_dense(lent_keep(l, 64), TN_F32, 2, shape));
    tn_model *m = lent_open(l, .weights_change = true), *file = test_model("llama", .dtype = NULL);
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        ck_assert_str_ne(m->target.graph->sites[i]->site.path, "lm_head");
        compare_site(file, m, m->target.graph->sites[i], "llama");
    }
    ck_assert_uint_gt(m->target.graph->site_count, 8);
}
END_TEST

/* ---- what cannot be ---------------------------------------------------------------------------------------- */

#define UP "model.layers.1.mlp.up_proj.weight"

static void refused(const lent_model *l, const tn_model_options *options, tn_status status, const char *where,
                    const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_model_borrow(l->config, l->names, l->tensors, l->count, options, &err));
    ck_assert_msg(err.code == status, "%d: %s: %s", (int)err.code, err.where, err.message);
    suite_expect_in(err.where, where);
    suite_expect_in(err.message, words);
    ck_assert_ptr_null(strchr(err.message, '\n'));
}

static void wrong_name(lent_model *l)
{
    l->names[3] = "";
}

static void twice(lent_model *l)
{
    lent_add(l, UP, *lent_at(l, UP));
}

static void no_data(lent_model *l)
{
    lent_at(l, UP)->data = NULL;
}

static void no_type(lent_model *l)
{
    lent_at(l, UP)->dtype = TN_DTYPE_NONE;
}

static void no_shape(lent_model *l)
{
    lent_at(l, UP)->ndim = 9;
}

static void other_shape(lent_model *l)
{
    lent_at(l, UP)->shape[0]--;
}

static void whole_numbers(lent_model *l)
{
    lent_at(l, UP)->dtype = TN_I16;
}

static void apart(lent_model *l)
{
    tn_tensor *t = lent_at(l, UP);
    t->stride[0] = 1;
    t->stride[1] = t->shape[0];
}

static void shifted(lent_model *l)
{
    tn_tensor *t = lent_at(l, UP);
    t->data = (char *)t->data + 1;
}

static void missing(lent_model *l)
{
    lent_without(l, UP);
}

static void nothing(lent_model *l)
{
    l->count = 0;
}

static void not_a_number(lent_model *l)
{
    free(l->config);
    l->config = strdup("{\"model_type\": \"llama\", \"rms_norm_eps\": NaN}");
}

static void no_json(lent_model *l)
{
    free(l->config);
    l->config = strdup("{\"model_type\": ");
}

static void no_model(lent_model *l)
{
    free(l->config);
    l->config = strdup("{\"model_type\": \"lama\"}");
}

/* partial: does it make a model of it? */
static const struct {
    void (*change)(lent_model *l);
    const char *where, *words;
    tn_status status;
    bool partial;
} wrongs[] = {
    {wrong_name, "names", "no name", TN_E_INPUT, false},
    {twice, "lent", "there twice", TN_E_INPUT, false},
    {no_data, UP, "no data", TN_E_INPUT, false},
    {no_type, UP, "no known type", TN_E_USAGE, false},
    {no_shape, UP, "9 dimensions", TN_E_USAGE, false},
    {other_shape, UP, "config.json implies", TN_E_INPUT, false},
    {whole_numbers, UP, "has dtype i16", TN_E_INPUT, true},
    {apart, UP, "has strides [1,", TN_E_INPUT, true},
    {shifted, UP, "not aligned", TN_E_INPUT, true},
    {missing, UP, "not lent", TN_E_INPUT, true},
    {nothing, "the lent tensors", "f32, bf16 or f16", TN_E_INPUT, false},
    {not_a_number, "config.json", "is not valid JSON", TN_E_INPUT, false},
    {no_json, "config.json", "is not valid JSON", TN_E_INPUT, false},
    {no_model, "config.json", "'llama'", TN_E_INPUT, false},
};

START_TEST(wrong_tensors)
{
    const tn_model_options partial = {.size = sizeof partial, .partial = true};
    lent_model *l = lent_of("llama");
    wrongs[_i].change(l);
    refused(l, NULL, wrongs[_i].status, wrongs[_i].where, wrongs[_i].words);
    if (!wrongs[_i].partial) {
        refused(l, &partial, wrongs[_i].status, wrongs[_i].where, wrongs[_i].words);
        return;
    }
    /* Declined by name: what has it, and what holds that. */
    tn_error err = TN_ERROR_INIT;
    tn_model *m = lent_open(l, .partial = true);
    test_kernel_add(&(test_kernel){.id = "mlp", .op = TN_OP_MLP});
    tn_report *report = test_report(m, NULL, "auto");
    for (int layer = 0; layer < 2; layer++) {
        const graph_site *mlp = test_model_site(m, layer ? "model.layers.1.mlp" : "model.layers.0.mlp", TN_OP_MLP);
        const tn_site_report *r = report->sites[mlp->index];
        ck_assert(!r->kernel == (layer == 1));
        if (layer == 0)
            continue;
        suite_expect_in(r->verdicts[0]->reason, UP);
        suite_expect_in(r->verdicts[0]->reason, wrongs[_i].words);
        ck_assert_int_eq(tn_site_forward(m, mlp->site.path, TN_OP_MLP, NULL, 0, NULL, 0, &err), TN_E_USAGE);
        suite_expect_in(err.message, UP);
        tn_error_clear(&err);
        ck_assert_ptr_null(tn_site_bind(m, mlp->site.path, TN_OP_MLP, 0, &err));
        suite_expect_in(err.message, UP);
        tn_error_clear(&err);
    }
    ck_assert(test_model_site(m, "model.layers.1.mlp.up_proj", TN_OP_LINEAR)->lacking);
    ck_assert(!test_model_site(m, "model.layers.1.mlp.gate_proj", TN_OP_LINEAR)->lacking);
    ck_assert_ptr_null(tn_session_new(m, NULL, &err));
    suite_expect_in(err.message, UP);
}
END_TEST

START_TEST(wrong_calls)
{
    tn_error err = TN_ERROR_INIT;
    lent_model *l = lent_of("llama");
    const struct {
        const char *config, *const *names;
        const tn_tensor *tensors;
        const char *missing;
    } calls[] = {{NULL, l->names, l->tensors, "config_json"},
                 {l->config, NULL, l->tensors, "names"},
                 {l->config, l->names, NULL, "tensors"}};
    for (int i = 0; i < 3; i++) {
        tn_error_clear(&err);
        ck_assert_ptr_null(tn_model_borrow(calls[i].config, calls[i].names, calls[i].tensors, l->count, NULL, &err));
        ck_assert_int_eq(err.code, TN_E_USAGE);
        suite_expect_in(err.where[0] ? err.where : err.message, calls[i].missing);
    }
    const tn_model_options wrong = {.size = sizeof wrong, .dtype = "f64"};
    refused(l, &wrong, TN_E_USAGE, "dtype", "f64");
    for (int i = 0; i < 3; i++) { /* of a folder they mean nothing                                   */
        tn_model_options o = {.size = sizeof o, .per_module = i == 0, .weights_change = i == 1, .partial = i == 2};
        tn_error_clear(&err);
        ck_assert_ptr_null(tn_model_open("tests/data/models/llama", &o, &err));
        ck_assert_int_eq(err.code, TN_E_USAGE);
        suite_expect_in(err.message, "tn_model_borrow");
    }
    lent_model *quantised = lent_of("bnb_nf4");
    const tn_model_options partial = {.size = sizeof partial, .partial = true};
    tn_error_clear(&err);
    tn_model *m =
        tn_model_borrow(quantised->config, quantised->names, quantised->tensors, quantised->count, &partial, &err);
    ck_assert_msg(m || err.message[0], "neither a model nor an error");
    tn_model_close(m);
}
END_TEST

/* ---- options ----------------------------------------------------------------------------------------------- */

START_TEST(sums_span_modules)
{
    test_kernel_add(&(test_kernel){.id = "sum", .op = TN_OP_ADD_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    lent_model *l = lent_of("llama");
    for (int per_module = 0; per_module < 2; per_module++) {
        tn_model *m = lent_open(l, .per_module = per_module);
        tn_report *r = test_report(m, NULL, "auto");
        const tn_site_report *sum = r->sites[test_model_site(m, "model.norm", TN_OP_ADD_RMS_NORM)->index];
        const tn_site_report *norm = r->sites[test_model_site(m, "model.norm", TN_OP_RMS_NORM)->index];
        ck_assert_int_eq(!sum->kernel, per_module);
        ck_assert_int_eq(!norm->kernel, !per_module);
        if (per_module)
            suite_expect_in(sum->verdicts[0]->kernel[0] == 's' ? sum->verdicts[0]->reason : sum->verdicts[1]->reason,
                            "per_module");
    }
}
END_TEST

START_TEST(modules_expand_latents)
{
    for (int per_module = 0; per_module < 2; per_module++) {
        tn_model *m = lent_open(lent_of("deepseek_v3"), .per_module = per_module);
        const tn_site *s = &test_model_site(m, "model.layers.0.self_attn", TN_OP_ATTENTION)->site;
        ck_assert_int_eq(s->dim[TN_DIM_KV_HEADS], per_module ? s->dim[TN_DIM_Q_HEADS] : 1);
        tn_error err = TN_ERROR_INIT;
        tn_session *session = tn_session_new(m, NULL, &err);
        ck_assert_int_eq(!session && strstr(err.message, "per_module"), per_module);
        tn_session_free(session);
    }
}
END_TEST

static tn_status plan_packed(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = 64;
    return TN_OK;
}

static tn_status pack(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)site;
    (void)queue;
    (void)err;
    memset(packed, 0, plan->packed_bytes);
    return TN_OK;
}

START_TEST(packed_weights_do_not_change)
{
    test_kernel_add(&(test_kernel){.id = "packer", .op = TN_OP_RMS_NORM, .plan = plan_packed, .pack = pack});
    lent_model *l = lent_of("llama");
    tn_model *fixed = lent_open(l, .device = "cpu"), *changing = lent_open(l, .weights_change = true);
    size_t at = test_model_site(fixed, "model.norm", TN_OP_RMS_NORM)->index;
    ck_assert_ptr_nonnull(test_report(fixed, NULL, "packer")->sites[at]->kernel);
    tn_report *r = test_plan(changing, NULL, "auto");
    ck_assert_ptr_null(r->sites[at]->kernel);
    ck_assert(!r->sites[at]->verdicts[0]->refused);
    suite_expect_in(r->sites[at]->verdicts[0]->reason, "weights_change");
    tn_error err = TN_ERROR_INIT;
    tn_bound *b = tn_site_bind(fixed, "model.norm", TN_OP_RMS_NORM, 0, &err);
    ck_assert_int_eq(tn_bound_point(b, TN_ROLE_WEIGHT, lent_at(l, "model.norm.weight"), 1, &err), TN_E_USAGE);
    suite_expect_in(err.message, "packed copy");
    tn_bound_close(b);
}
END_TEST

/* What would be copied while it may be written to is declined; otherwise it is copied. */
START_TEST(copies_do_not_follow)
{
    lent_model *l = lent_of("llama");
    tn_tensor *t = lent_at(l, "model.norm.weight");
    tn_dtype other = t->dtype == TN_F32 ? TN_BF16 : TN_F32;
    int64_t n = t->shape[0];
    *t = tn_tensor_dense(memset(lent_keep(l, (size_t)n * 4), 0, (size_t)n * 4), other, 1, &n);
    tn_model *copied = lent_open(l, .device = "cpu"), *changing = lent_open(l, .weights_change = true);
    ck_assert_int_gt(copied->copies.total, 0);
    ck_assert(!test_model_site(copied, "model.norm", TN_OP_RMS_NORM)->lacking);
    ck_assert_int_eq(changing->copies.total, 0);
    const graph_site *norm = test_model_site(changing, "model.norm", TN_OP_RMS_NORM);
    ck_assert(norm->lacking);
    suite_expect_in(norm->declined, "a copy would not follow");
    suite_expect_in(norm->declined, tn_dtype_name(other));
}
END_TEST

static int count_checks(void *ctx, const char *what, int64_t done, int64_t total)
{
    (void)total;
    if (strstr(what, "ing kernels") && done == 0)
        ++*(int *)ctx;
    return 0;
}

static int checks_of(lent_model *l, bool change, bool training)
{
    int count = 0;
    tn_model *m =
        lent_open(l, .weights_change = change, .training = training, .applying = count_checks, .progress_ctx = &count);
    test_report(m, NULL, "auto");
    return count;
}

/* What passed is not tried again in this process where weights are said to change anyway; what something else is asked
 * of is. */
START_TEST(checks_are_remembered)
{
    setenv("TENON_MEASURE", "no", 1);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .backward = test_kernel_backward});
    lent_model *l = lent_of("llama");
    ck_assert_int_gt(checks_of(l, true, false), 0);
    ck_assert_int_eq(checks_of(l, true, false), 0);
    ck_assert_int_gt(checks_of(l, true, true), 0);
    ck_assert_int_gt(checks_of(l, false, false), 0);
    ck_assert_int_gt(checks_of(l, false, false), 0);
    setenv("SOMETHING_THAT_A_KERNEL_READS", "1", 1);
    ck_assert_int_gt(checks_of(l, true, false), 0);
    lent_rewrite(l, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-04");
    ck_assert_int_gt(checks_of(l, true, false), 0);
}
END_TEST

/* Whose weights are another's is trained by that. */
START_TEST(no_trainer)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_trainer_open(lent_open(lent_of("llama"), .training = true), NULL, &err));
    ck_assert_int_eq(err.code, TN_E_USAGE);
    suite_expect_in(err.message, "the program's");
}
END_TEST

START_TEST(doubles_are_declined)
{
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    lent_model *l = lent_of("llama");
    for (size_t i = 0; i < l->count; i++) {
        tn_tensor *t = &l->tensors[i];
        size_t bytes = (size_t)tn_tensor_count(t) * 8;
        *t = tn_tensor_dense(memset(lent_keep(l, bytes), 0, bytes), TN_F64, t->ndim, t->shape);
    }
    tn_model *m = lent_open(l, .weights_change = true, .partial = true);
    tn_report *r = test_plan(m, NULL, "auto");
    for (size_t i = 0; i < r->site_count; i++) {
        ck_assert_ptr_null(r->sites[i]->kernel);
        if (r->sites[i]->site->op == TN_OP_ROPE)
            suite_expect_in(r->sites[i]->verdicts[0]->reason, "f64");
    }
}
END_TEST

int main(void)
{
    find_folders();
    TCase *t = suite_open("borrow", 0);
    tcase_add_loop_test(t, every_golden_model_is_the_folders, 0, folder_count);
    tcase_add_loop_test(t, experts_of_live_models, 0, sizeof live / sizeof *live);
    tcase_add_loop_test(t, other_heads, 0, 2);
    tcase_add_loop_test(t, wrong_tensors, 0, sizeof wrongs / sizeof *wrongs);
    suite_add(t, wrong_calls, sums_span_modules, modules_expand_latents, packed_weights_do_not_change,
              checks_are_remembered, copies_do_not_follow, doubles_are_declined, no_trainer);
    int failed = suite_run();
    free_folders();
    return failed;
}
