/* The kernels of the device npu, on the simulator of the vendor's libraries: each against the CPU's eager results
 * within the tolerance that it declares, forward and backward, at made-up sites of everything that it says it takes;
 * and what it declines, by its reasons. */
#include "ascend.h"
#include "check/check.h"
#include "check/check_device.h"
#include "check/draw_site.h"
#include "check/timing.h"
#include "npu_pair.h"
#include "op/match.h"
#include "plugin/registry.h"
#include "process.h"
#include "run/run.h"
#include "suite.h"
#include "verify/verify_plugin_sites.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const ids[] = {"npu_fused_rmsnorm", "npu_fused_rope", "npu_fused_swiglu", "npu_fused_moe"};
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
enum { IDS = sizeof ids / sizeof *ids, DTYPES = sizeof dtypes / sizeof *dtypes };

/* ---- the device ------------------------------------------------------------------------------------------- */

static const tn_kernel *kernel_of(const char *id)
{
    const registry_kernel *kernel = registry_find("npu", id);
    ck_assert_msg(kernel != NULL, "%s has no side for the device npu", id);
    return &kernel->kernel;
}

/* ---- numbers ------------------------------------------------------------------------------------------------ */

/* What made-up sites may be declined for: limits that no rule of a match can tell. */
static bool is_known(const char *reason)
{
    static const char *const known[] = {"router is ", "a matrix per expert in f32", "eps: site has", "rotary: site has",
                                        "experts: site has"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(reason, known[i]))
            return true;
    return false;
}

/* Returns whether the site was tried. */
static bool try_site(const tn_impl *impl, const tn_site *like)
{
    char text[256], reason[256];
    tn_error err = TN_ERROR_INIT;
    compare_figures figures = {0};
    npu_pair_sites *s = npu_pair_draw(like);
    verify_plugin_sites_text(&s->there, text, sizeof text);
    tn_plan plan = {.size = sizeof plan, .threads = 1, .max_tokens = 16};
    bool takes = match_site(&s->there, impl, reason, sizeof reason) == TN_OK;
    if (takes && impl->plan(&s->there, &plan, &err) != TN_OK) {
        ck_assert_msg(is_known(err.message), "%s at %s: %s", tn_op_name(s->there.op), text, err.message);
        takes = false;
    }
    const check_subject subject = {.device = &npu_pair_npu,
                                   .cpu = &npu_pair_cpu,
                                   .site = &s->there,
                                   .impl = impl,
                                   .gradients = impl->backward != NULL};
    tn_error why = TN_ERROR_INIT;
    if (takes)
        ck_assert_msg(check_site(&subject, NULL, 0, &figures, &why) == TN_OK, "%s at %s: %s", tn_op_name(s->there.op),
                      text, why.message);
    npu_pair_drop(s);
    return takes;
}

static void try_kernel(const char *id, tn_dtype dtype)
{
    tn_site sites[VERIFY_PLUGIN_SITES_MAX];
    npu_pair_open();
    const tn_kernel *kernel = kernel_of(id);
    for (uint32_t i = 0; i < kernel->impl_count; i++) {
        const tn_impl *impl = &kernel->impls[i];
        int tried = 0;
        if (!(impl->match.takes[TN_AXIS_DTYPE] & TN_TAKES(dtype)))
            continue;
        size_t count = verify_plugin_sites_draw(impl, dtype, true, sites);
        for (size_t s = 0; s < count; s++)
            tried += try_site(impl, &sites[s]);
        ck_assert_msg(tried > 0, "%s %s: no site of %zu is taken", id, tn_op_name(impl->op), count);
    }
    npu_pair_close();
}

START_TEST(they_compute_what_eager_computes)
{
    try_kernel(ids[_i / DTYPES], dtypes[_i % DTYPES]);
}
END_TEST

/* ---- rows that plan does not know of -------------------------------------------------------------------------- */

static const tn_impl *impl_for(const char *id, const tn_site *site)
{
    char reason[256];
    const tn_kernel *kernel = kernel_of(id);
    for (uint32_t i = 0; i < kernel->impl_count; i++)
        if (kernel->impls[i].op == site->op && match_site(site, &kernel->impls[i], reason, sizeof reason) == TN_OK)
            return &kernel->impls[i];
    return NULL;
}

/* Heads of a few tokens: more rows than scratch is for, so that they are done in parts. */
static const int64_t heads_shape[4] = {2, 3, 40, 64};
enum { HEADS_ELEMENTS = 2 * 3 * 40 * 64 };

/* x and, for gradients, those of y and x, at the same places of the host's memory and of the device's. */
typedef struct heads_call {
    float x[HEADS_ELEMENTS], dy[HEADS_ELEMENTS], dx[HEADS_ELEMENTS], dw[64];
} heads_call;

static tn_tensor heads_tensor(float *data)
{
    return tn_tensor_dense(data, TN_F32, 4, heads_shape);
}

/* In place forward; or all gradients. grads and weight are the caller's memory. */
static tn_call heads_make(heads_call *at, const tn_site *site, tn_grads *grads, tn_tensor *weight)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_RMS_NORM, .site = site, .in_count = 1, .out_count = !grads};
    call.in[0] = call.out[0] = heads_tensor(at->x);
    if (!grads)
        return call;
    *grads = (tn_grads){.size = sizeof *grads};
    *weight = tn_tensor_dense(at->dw, TN_F32, 1, &heads_shape[3]);
    grads->out[0] = heads_tensor(at->dy);
    grads->in[0] = heads_tensor(at->dx);
    if (site->meaning[TN_AXIS_NORM] != TN_NORM_NO_WEIGHT)
        grads->param[TN_ROLE_WEIGHT] = (tn_param){weight, 1};
    call.grads = grads;
    return call;
}

static void try_heads(const tn_site *like, bool backward)
{
    graph_binding bound = {0};
    heads_call *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    tn_grads grads[2];
    tn_tensor weights[2];
    void *far;
    tn_error err = TN_ERROR_INIT;
    compare_figures figures = {0};
    npu_pair_sites *s = npu_pair_draw(like);
    for (int i = 0; i < HEADS_ELEMENTS; i++) {
        want->x[i] = (float)(i * 37 % 101 - 50) / 16;
        want->dy[i] = (float)(i * 53 % 97 - 48) / 32;
    }
    *got = *want;
    const tn_impl *impl = impl_for(ids[0], &s->there);
    ck_assert_int_eq(timing_bind(&npu_pair_npu, &s->there, impl, &bound, &err), TN_OK);
    bound.plan.max_tokens = heads_shape[0] * heads_shape[1];
    ck_assert_int_eq(impl->plan(&s->there, &bound.plan, &err), TN_OK);
    ck_assert_int_eq(device_alloc(&npu_pair_npu, sizeof *got, &far, NULL), TN_OK);
    ck_assert_int_eq(device_upload(&npu_pair_npu, far, got, sizeof *got, NULL), TN_OK);
    tn_call eager = heads_make(want, &s->drawn.site, backward ? &grads[0] : NULL, &weights[0]);
    tn_call there = heads_make(far, &s->there, backward ? &grads[1] : NULL, &weights[1]);
    ck_assert_int_eq(run_alone(&npu_pair_cpu, NULL, NULL, &eager, &err), TN_OK);
    ck_assert_msg(run_alone(&npu_pair_npu, NULL, &bound, &there, &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(device_download(&npu_pair_npu, got, far, sizeof *got, NULL), TN_OK);
    tn_call here = heads_make(got, &s->there, backward ? &grads[1] : NULL, &weights[1]);
    if (backward)
        compare_gradients(&eager, &grads[1], impl->gradient_tolerance.ulps_f32, NULL, &figures, NULL);
    else
        compare_call(&eager, &here, impl->tolerance.ulps_f32, NULL, &figures);
    ck_assert_msg(figures.worst <= 1, "norm %d: %s", (int)like->meaning[TN_AXIS_NORM], figures.detail);
    device_free(&npu_pair_npu, far, sizeof *got);
    device_free(&npu_pair_npu, (void *)(uintptr_t)bound.packed, bound.plan.packed_bytes);
    npu_pair_drop(s);
    free(want);
    free(got);
}

START_TEST(heads_are_rows)
{
    npu_pair_open();
    tn_site site = draw_site_plain(TN_OP_RMS_NORM);
    site.dim[TN_DIM_WIDTH] = heads_shape[3];
    for (int norm = TN_NORM_W; norm <= TN_NORM_NO_WEIGHT; norm++) {
        site.meaning[TN_AXIS_NORM] = norm;
        if (norm != TN_NORM_W_GATED) {
            try_heads(&site, false);
            try_heads(&site, true);
        }
    }
    npu_pair_close();
}
END_TEST

/* The longest list that a grouped product takes. */
START_TEST(a_matrix_for_each_of_many_experts)
{
    npu_pair_open();
    tn_site site = draw_site_plain(TN_OP_MOE_EXPERTS);
    site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_EXPERT_LIST;
    site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    site.meaning[TN_AXIS_DTYPE] = site.meaning[TN_AXIS_WEIGHT] = TN_BF16;
    site.dim[TN_DIM_EXPERTS] = 128;
    ck_assert(try_site(impl_for("npu_fused_moe", &site), &site));
    npu_pair_close();
}
END_TEST

/* ---- weights side by side -----------------------------------------------------------------------------------------
 */

static int64_t launched(const char *name)
{
    const char *(*look)(int, int64_t *), *found;
    int64_t count = 0;
    *(void **)&look = dlsym(dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD), "sim_launched");
    for (int i = 0; (found = look(i, &count)) != NULL; i++)
        if (strcmp(found, name) == 0)
            return count;
    return 0;
}

/* The parameters of some roles, which are apart, in one block, as core places weights of models. */
typedef struct row {
    npu_pair_sites *s;
    tn_tensor *first, apart[3 * 130];
    int64_t count;
    void *block;
} row;

static size_t bytes_of(const tn_tensor *t)
{
    return tn_dtype_bytes(t->dtype, tn_tensor_count(t));
}

/* From the parameters of this role on, which follow one another in the sites' array; the first 2 pairs of them in turn,
 * one of the first half and one of the second. */
static void put_in_a_row(row *w, npu_pair_sites *s, tn_role from, int64_t count, int64_t pairs)
{
    size_t bytes = 0;
    *w = (row){.s = s, .first = s->tensors + (s->there.param[from].tensors - s->tensors), .count = count};
    for (int64_t i = 0; i < count; i++)
        bytes += bytes_of(&w->first[i]);
    ck_assert_int_eq(device_alloc(&npu_pair_npu, bytes, &w->block, NULL), TN_OK);
    char *at = w->block;
    for (int64_t n = 0; n < count; n++, at += bytes) {
        int64_t i = n < 2 * pairs ? n % 2 * pairs + n / 2 : n;
        bytes = bytes_of(&w->first[i]);
        void *host = malloc(bytes);
        w->apart[i] = w->first[i];
        ck_assert_int_eq(device_download(&npu_pair_npu, host, w->first[i].data, bytes, NULL), TN_OK);
        ck_assert_int_eq(device_upload(&npu_pair_npu, at, host, bytes, NULL), TN_OK);
        w->first[i].data = at;
        free(host);
    }
}

static void take_apart(const row *w)
{
    size_t bytes = 0;
    ck_assert_int_eq(device_sync(&npu_pair_npu, NULL), TN_OK);
    for (int64_t i = 0; i < w->count; i++) {
        w->first[i] = w->apart[i];
        bytes += bytes_of(&w->apart[i]);
    }
    device_free(&npu_pair_npu, w->block, bytes);
}

/* They are one product then, whose result needs no copy; forward and backward. */
START_TEST(gate_and_up_in_a_row_are_one_product)
{
    static row w;
    compare_figures figures = {0};
    tn_error err = TN_ERROR_INIT;
    npu_pair_open();
    tn_site mlp = draw_site_plain(TN_OP_MLP);
    mlp.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    mlp.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
    mlp.meaning[TN_AXIS_DTYPE] = mlp.meaning[TN_AXIS_WEIGHT] = dtypes[_i];
    npu_pair_sites *s = npu_pair_draw(&mlp);
    const check_subject subject = {.device = &npu_pair_npu,
                                   .cpu = &npu_pair_cpu,
                                   .site = &s->there,
                                   .impl = impl_for("npu_fused_swiglu", &mlp),
                                   .gradients = true};
    put_in_a_row(&w, s, TN_ROLE_GATE, 2, 0);
    ck_assert_msg(check_site(&subject, NULL, 0, &figures, &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(launched("aclnnCat"), 0);
    take_apart(&w);
    ck_assert_msg(check_site(&subject, NULL, 0, &figures, &err) == TN_OK, "%s", err.message);
    ck_assert_int_gt(launched("aclnnCat"), 0);
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* Lists whose matrices lie in a row, those of gate and up perhaps in turn, are stacks, of which operators take more,
 * and in f32, too: the device's own operation needs no product for each expert, and no counts. */
START_TEST(lists_in_a_row_are_stacks)
{
    enum { EXPERTS = 130 };
    static row w;
    compare_figures figures = {0};
    tn_error err = TN_ERROR_INIT;
    npu_pair_open();
    tn_site site = draw_site_plain(TN_OP_MOE_EXPERTS);
    site.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_EXPERT_LIST;
    site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    site.meaning[TN_AXIS_DTYPE] = site.meaning[TN_AXIS_WEIGHT] = dtypes[_i / 2];
    site.dim[TN_DIM_EXPERTS] = EXPERTS;
    npu_pair_sites *s = npu_pair_draw(&site);
    put_in_a_row(&w, s, TN_ROLE_GATE, 3 * EXPERTS, _i % 2 ? EXPERTS : 0);
    const check_device_subject eager = {
        .device = &npu_pair_npu, .cpu = &npu_pair_cpu, .site = &s->there, .op = TN_OP_MOE_EXPERTS};
    ck_assert_msg(check_device(&eager, &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(launched("aclnnMatmul"), 0);
    const tn_impl *impl = impl_for("npu_fused_moe", &site);
    const check_subject kernel = {.device = &npu_pair_npu, .cpu = &npu_pair_cpu, .site = &s->there, .impl = impl};
    if (impl)
        ck_assert_msg(check_site(&kernel, NULL, 0, &figures, &err) == TN_OK, "%s", err.message);
    ck_assert(impl || dtypes[_i / 2] == TN_F32);
    if (_i % 2) /* gate and up are one product                                                             */
        ck_assert_int_eq(launched("aclnnCat"), 0);
    take_apart(&w);
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* ---- what is declined ------------------------------------------------------------------------------------------- */

static void expect_declined(const tn_impl *impl, const tn_site *like, const char *reason)
{
    tn_error err = TN_ERROR_INIT;
    npu_pair_sites *s = npu_pair_draw(like);
    tn_plan plan = {.size = sizeof plan, .threads = 1, .max_tokens = 16};
    ck_assert_int_eq(impl->plan(&s->there, &plan, &err), TN_DECLINED);
    ck_assert_msg(strstr(err.message, reason) != NULL, "'%s' says nothing of '%s'", err.message, reason);
    npu_pair_drop(s);
}

START_TEST(limits_are_told)
{
    npu_pair_open();
    tn_site rope = draw_site_plain(TN_OP_ROPE);
    const tn_impl *impl = impl_for("npu_fused_rope", &rope);
    rope.dim[TN_DIM_HEAD] = 896;
    rope.dim[TN_DIM_ROTARY] = 0;
    expect_declined(impl, &rope, "rotary: site has 896, kernel takes up to 894");
    rope.dim[TN_DIM_HEAD] = 8;
    rope.dim[TN_DIM_Q_HEADS] = 1000;
    expect_declined(impl, &rope, "q_heads: site has 1000, kernel takes up to 999");
    rope.dim[TN_DIM_Q_HEADS] = 4;
    rope.dim[TN_DIM_KV_HEADS] = 1001;
    expect_declined(impl, &rope, "kv_heads: site has 1001, kernel takes up to 999");
    tn_site block = draw_site_plain(TN_OP_MOE_BLOCK);
    block.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    block.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_EXPERT_LIST;
    expect_declined(impl_for("npu_fused_moe", &block), &block, "a matrix per expert in f32");
    block.meaning[TN_AXIS_DTYPE] = block.meaning[TN_AXIS_WEIGHT] = TN_BF16;
    block.dim[TN_DIM_EXPERTS] = 129;
    expect_declined(impl_for("npu_fused_moe", &block), &block, "experts: site has 129, kernel takes up to 128");
    tn_site product = draw_site_plain(TN_OP_GROUPED_MATMUL);
    product.meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_STACKED_OI;
    product.dim[TN_DIM_EXPERTS] = 1;
    expect_declined(impl_for("npu_fused_moe", &product), &product, "experts: site has 1, kernel takes 2 and more");
    product.dim[TN_DIM_EXPERTS] = 2;
    product.dim[TN_DIM_OUT] = 65536;
    product.dim[TN_DIM_HIDDEN] = 2;
    expect_declined(impl_for("npu_fused_moe", &product), &product, "width: site has 65536, kernel takes up to 65535");
    npu_pair_close();
}
END_TEST

START_TEST(matches_are_told)
{
    char reason[256];
    npu_pair_open();
    tn_site mlp = draw_site_plain(TN_OP_MLP);
    mlp.meaning[TN_AXIS_ACT] = TN_ACT_GELU_TANH;
    mlp.meaning[TN_AXIS_WEIGHT] = mlp.meaning[TN_AXIS_DTYPE];
    ck_assert_int_eq(match_site(&mlp, &kernel_of("npu_fused_swiglu")->impls[0], reason, sizeof reason), TN_DECLINED);
    ck_assert_str_eq(reason, "act: site has gelu_tanh, kernel takes silu");
    npu_pair_close();
}
END_TEST

/* What the operators' documents leave out: an older family, and an installation without one of the operators. */
START_TEST(other_units_are_declined)
{
    npu_pair_open();
    setenv("ASCEND_SIM_SOC", "Ascend310P3", 1);
    tn_site norm = draw_site_plain(TN_OP_RMS_NORM);
    expect_declined(impl_for("npu_fused_rmsnorm", &norm), &norm,
                    "unit is Ascend310P3, kernel takes Ascend910B1 and later of its family, and Ascend910_93");
    unsetenv("ASCEND_SIM_SOC");
    npu_pair_close();
}
END_TEST

/* ---- both installations --------------------------------------------------------------------------------------- */

/* Where an installation has the first versions of operators alone: those of rotations and of grouped products. */
START_TEST(they_do_with_older_operators)
{
    try_kernel(_i / DTYPES ? "npu_fused_moe" : "npu_fused_rope", dtypes[_i % DTYPES]);
}
END_TEST

START_TEST(older_versions_of_operators_do)
{
    char folder[4200];
    snprintf(folder, sizeof folder, "%s/tests/ascend_sim_old", process_build());
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        setenv("TEST_ASCEND_OLD", "yes", 1);
        execl("/proc/self/exe", "/proc/self/exe", (char *)NULL);
        _exit(1);
    }
    ck_assert_int_eq(process_wait(child), 0);
}
END_TEST

static void add_tests(bool old)
{
    TCase *numbers = suite_open(old ? "ascend kernels, older installation" : "ascend kernels", 600);
    if (old) {
        tcase_add_loop_test(numbers, they_do_with_older_operators, 0, 2 * DTYPES);
    } else {
        tcase_add_loop_test(numbers, they_compute_what_eager_computes, 0, IDS * DTYPES);
        tcase_add_loop_test(numbers, gate_and_up_in_a_row_are_one_product, 0, DTYPES);
        tcase_add_loop_test(numbers, lists_in_a_row_are_stacks, 0, 2 * DTYPES);
        suite_add(numbers, older_versions_of_operators_do, heads_are_rows, a_matrix_for_each_of_many_experts,
                  limits_are_told, matches_are_told, other_units_are_declined);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests(getenv("TEST_ASCEND_OLD") != NULL);
    return npu_pair_main(argv);
}
