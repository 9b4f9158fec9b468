/* Gradients at every kind of site that the golden cases have, quantised ones too, whose weights have none: those of
 * eager against differences of its forward, along a direction for each tensor; and those of every kernel that takes a
 * site against eager's, at all sites of each model that has a kind which none before it had, of the operations that
 * have such a kind. */
#include "base/blocks.h"
#include "base/hash.h"
#include "check/gradients.h"
#include "eager/eager.h"
#include "op/op.h"
#include "open/model.h"
#include "plugin/registry.h"
#include "process.h"
#include "run/run.h"
#include "sanitizer.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static glob_t cases;

static const char *case_folder(int i)
{
    static char folder[512];
    snprintf(folder, sizeof folder, "%s", cases.gl_pathv[i]);
    if (strstr(folder, "config.json"))
        *strrchr(folder, '/') = '\0';
    return folder;
}

/* ---- eager --------------------------------------------------------------------------------------- */

/* A call of a site with parameters of its own, which may be moved. */
typedef struct trial {
    tn_site site;
    inputs in;
    tn_call call;
    gradients wanted;
    void *blocks[1024];
    size_t block_count;
    const tn_tensor *experts; /* that were picked, where the operation picks                          */
    double terms;             /* sum |g y|: what rounding is relative to                               */
} trial;

static void *keep(trial *t, size_t bytes)
{
    ck_assert_uint_lt(t->block_count, sizeof t->blocks / sizeof t->blocks[0]);
    void *p = calloc(1, bytes ? bytes : 1);
    ck_assert_ptr_nonnull(p);
    return t->blocks[t->block_count++] = p;
}

/* Codes and what belongs to them are not moved: they have no gradients. */
static bool is_moved(int role, const tn_tensor *t)
{
    return role < TN_ROLE_FIRST_GROUP && !blocks_is_quantised(t->dtype);
}

static void copy_params(trial *t)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &t->site.param[role];
        tn_tensor *own = p->count ? keep(t, (size_t)p->count * sizeof *own) : NULL;
        for (int64_t i = 0; i < p->count; i++) {
            size_t bytes = (size_t)tn_tensor_count(&p->tensors[i]) * tn_dtype_size(p->tensors[i].dtype);
            own[i] = p->tensors[i];
            if (!is_moved(role, &own[i]))
                continue;
            own[i].data = keep(t, bytes);
            memcpy(own[i].data, p->tensors[i].data, bytes);
        }
        p->tensors = own;
    }
}

static void forward(trial *t)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(run_alone(&cpu_device, NULL, NULL, &t->call, &err) == TN_OK, "%s: %s", t->site.path, err.message);
}

/* The column of row where the operation picked the same expert as it did before anything was moved. */
static int64_t same_expert(const trial *t, int64_t row, int64_t column)
{
    int64_t width = t->experts->shape[1];
    const int32_t *now = (const int32_t *)t->call.out[1].data + row * width;
    for (int64_t j = 0; j < width; j++)
        if (now[j] == ((const int32_t *)t->experts->data)[row * width + column])
            return j;
    return column;
}

/* sum g y over all results. */
static double loss(trial *t)
{
    double sum = 0, terms = 0;
    forward(t);
    for (int i = 0; i < t->call.out_count; i++) {
        const float *g = t->wanted.grads.out[i].data, *y = t->call.out[i].data;
        for (int64_t k = 0; g && k < tn_tensor_count(&t->call.out[i]); k++) {
            int64_t width = t->experts ? t->experts->shape[1] : 1;
            double value = y[t->experts ? k / width * width + same_expert(t, k / width, k % width) : k];
            sum += g[k] * value;
            terms += fabs(g[k] * value);
        }
    }
    t->terms = terms;
    return sum;
}

static bool open_trial(trial *t, const tn_site *site)
{
    tn_error err = TN_ERROR_INIT;
    *t = (trial){.site = *site};
    copy_params(t);
    check_case size = {.batch = 1, .tokens = 5, .seed = 3};
    if (inputs_draw_case(&t->in, &t->site, &size, &err) != TN_OK)
        return false; /* no tokens whose routing is clear */
    t->call = t->in.call;
    for (int i = 0; i < t->call.out_count; i++)
        t->call.out[i].data = keep(t, (size_t)tn_tensor_count(&t->call.out[i]) * tn_dtype_size(t->call.out[i].dtype));
    forward(t);
    static tn_tensor picked;
    if (op_find(site->op)->picks) {
        size_t bytes = (size_t)tn_tensor_count(&t->call.out[1]) * sizeof(int32_t);
        picked = t->call.out[1];
        picked.data = memcpy(keep(t, bytes), picked.data, bytes);
        t->experts = &picked;
    }
    ck_assert_int_eq(gradients_draw(&t->wanted, &t->in, t->experts, &err), TN_OK);
    ck_assert_int_eq(gradients_allocate(&t->wanted, &err), TN_OK);
    t->call.grads = &t->wanted.grads;
    tn_status status = run_alone(&cpu_device, NULL, NULL, &t->call, &err);
    ck_assert_msg(status == TN_OK, "%s: backward: %s", site->path, err.message);
    t->call.grads = NULL;
    return true;
}

static void close_trial(trial *t)
{
    for (size_t i = 0; i < t->block_count; i++)
        free(t->blocks[i]);
    gradients_close(&t->wanted);
    inputs_close(&t->in);
}

/* x moved by h along d. */
static double loss_at(trial *t, float *x, const float *kept, const float *d, int64_t n, double h)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(kept[i] + h * d[i]);
    double value = loss(t);
    memcpy(x, kept, (size_t)n * sizeof *x);
    return value;
}

/* How far differences along a random direction are from the gradient's product with it, as a part of the bound.
 * Differences over h and 2h leave h^4 of the fifth derivative; results are rounded by about 1e-6 of their terms,
 * divided by h. Where a choice or a corner lies within h, a smaller one goes on this side of it. */
static double derivative_error(trial *t, const tn_tensor *moving, const tn_tensor *gradient, uint64_t seed)
{
    static const double steps[] = {2e-2, 5e-3, 1e-3};
    int64_t n = tn_tensor_count(moving);
    float *x = moving->data, *kept = keep(t, 2 * (size_t)n * sizeof *kept), *d = kept + n;
    const float *g = gradient->data;
    random_state random = {.state = seed};
    double squares = 0, expected = 0, size = 0, worst = 0;
    memcpy(kept, x, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        squares += (double)x[i] * x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) {
        d[i] = random_nearly_normal(&random) * (float)(squares > 0 ? sqrt(squares) : 1);
        expected += (double)g[i] * d[i];
        size += fabs((double)g[i] * d[i]);
    }
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        double h = steps[s], near = loss_at(t, x, kept, d, n, h) - loss_at(t, x, kept, d, n, -h);
        double far = loss_at(t, x, kept, d, n, 2 * h) - loss_at(t, x, kept, d, n, -2 * h);
        worst = fabs((8 * near - far) / (12 * h) - expected) / ((1e-3 + 1e-6 / h) * (size + t->terms) + 1e-12);
        if (worst <= 1)
            break;
    }
    return worst;
}

/* Corners may lie on one direction; a wrong gradient is wrong along all. */
static void expect_derivative(trial *t, const tn_tensor *moving, const tn_tensor *gradient, const char *what)
{
    double worst = 2;
    for (uint64_t seed = 11; seed < 14 && worst > 1; seed++)
        worst = derivative_error(t, moving, gradient, seed);
    ck_assert_msg(worst <= 1, "%s (%s): gradient of %s along directions: %.3g times the bound from differences",
                  t->site.path, op_find(t->site.op)->name, what, worst);
}

/* false: there are no inputs to try it with. */
static bool try_site(const tn_site *site)
{
    static trial t;
    char what[64];
    bool opened = open_trial(&t, site);
    if (opened) {
        for (int i = 0; i < t.call.in_count; i++)
            if (t.wanted.grads.in[i].data) {
                snprintf(what, sizeof what, "input %d", i);
                expect_derivative(&t, &t.call.in[i], &t.wanted.grads.in[i], what);
            }
        for (int role = 0; role < TN_ROLE_MAX; role++)
            for (int64_t i = 0; i < t.wanted.grads.param[role].count && i < 3; i++)
                expect_derivative(&t, &t.site.param[role].tensors[i], &t.wanted.grads.param[role].tensors[i],
                                  tn_role_name((tn_role)role));
    }
    close_trial(&t);
    return opened;
}

/* ---- which sites ----------------------------------------------------------------------------------- */

/* Many models have the same: one site stands for those of the same operation, meaning and dtypes, and of dims of which
 * the same are there and the same are equal (heads of queries and keys, a head and what of it is rotated). What was
 * tried before in another test, in a child, is told by memory that is shared. */
enum { KINDS_MAX = 1 << 14 };
static uint64_t *eager_tried, *kernels_tried;

static uint64_t kind_of(const tn_site *site)
{
    uint64_t hash = hash_bytes(HASH_START, &site->op, sizeof site->op);
    hash = hash_bytes(hash, &site->features, sizeof site->features);
    hash = hash_bytes(hash, site->meaning, sizeof site->meaning);
    for (int i = 0, first; i < TN_DIM_MAX; i++) {
        for (first = 0; site->dim[i] && site->dim[first] != site->dim[i];)
            first++;
        hash = hash_bytes(hash, &(int64_t){site->dim[i] ? first : -1}, sizeof(int64_t));
    }
    for (int i = 0; i < TN_NUM_MAX; i++)
        hash = hash_bytes(hash, &(char){site->num[i] != 0}, 1);
    for (int i = 0; i < TN_ROLE_MAX; i++)
        hash = hash_bytes(hash, &(int32_t){site->param[i].count ? (int32_t)site->param[i].tensors->dtype : -1}, 4);
    return hash | 1;
}

/* Where it is kept that a site's kind was tried: 0 there until it was. */
static uint64_t *place_of(uint64_t *tried, uint64_t kind)
{
    uint64_t *place = &tried[kind % KINDS_MAX];
    for (int steps = 0; *place && *place != kind; steps++) {
        ck_assert_int_lt(steps, KINDS_MAX);
        place = place + 1 < tried + KINDS_MAX ? place + 1 : tried;
    }
    return place;
}

START_TEST(eager_agrees_with_differences)
{
    tn_model *model = test_model(case_folder(_i), .dtype = "f32", .training = true);
    const graph *g = model->target.graph;
    int count = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        uint64_t kind = kind_of(&g->sites[i]->site), *tried = place_of(eager_tried, kind);
        if (!*tried && try_site(&g->sites[i]->site)) {
            *tried = kind;
            count++;
        }
    }
    if (_i == 0)
        ck_assert_int_gt(count, 3);
}
END_TEST

/* ---- kernels --------------------------------------------------------------------------------------- */

static bool is_fresh(const graph *g, const bool *fresh, tn_op op)
{
    for (size_t i = 0; i < g->site_count; i++)
        if (fresh[i] && g->sites[i]->site.op == op)
            return true;
    return false;
}

/* All kernels but those for operations of which the model has no site of a new kind. */
static void name_kernels(const graph *g, const bool *fresh, char *spec, size_t size)
{
    size_t length = (size_t)snprintf(spec, size, "auto");
    for (size_t i = 0; i < registry_count("cpu"); i++) {
        const tn_kernel *kernel = &registry_at("cpu", i)->kernel;
        bool wanted = false;
        for (size_t j = 0; j < kernel->impl_count; j++)
            wanted |= is_fresh(g, fresh, kernel->impls[j].op);
        if (!wanted)
            length += (size_t)snprintf(spec + length, size - length, ",-%s", kernel->id);
        ck_assert_uint_lt(length, size);
    }
}

/* Returns how many gradients were held against eager's, over all sites and kernels. */
static size_t verify(tn_model *model, const tn_config *config, const char *spec, const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    tn_verify_row **rows = NULL;
    size_t count = 0, gradients = 0;
    tn_status status = tn_verify_kernels(model, config, spec, NULL, &rows, &count, &err);
    for (size_t i = 0; i < count; i++) {
        ck_assert_msg(rows[i]->passed, "%s: %s %s: %s at %s", folder, rows[i]->kernel, rows[i]->gradient,
                      rows[i]->reason, rows[i]->worst_site);
        gradients += rows[i]->kind != TN_VERIFY_RESULTS;
    }
    ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
    free(rows);
    return gradients;
}

START_TEST(kernels_agree_with_eager)
{
    tn_model *model = test_model(case_folder(_i), .dtype = "f32", .training = true);
    const graph *g = model->target.graph;
    bool *fresh = calloc(g->site_count, sizeof *fresh), any = false;
    ck_assert_ptr_nonnull(fresh);
    for (size_t i = 0; i < g->site_count; i++) {
        uint64_t kind = kind_of(&g->sites[i]->site), *tried = place_of(kernels_tried, kind);
        any |= fresh[i] = !*tried;
    }
    for (size_t i = 0; i < g->site_count; i++) {
        uint64_t kind = kind_of(&g->sites[i]->site);
        *place_of(kernels_tried, kind) = kind;
    }
    if (!any) {
        free(fresh);
        return;
    }
    char plugins[4200], absolute[4096];
    tn_error err = TN_ERROR_INIT;
    snprintf(plugins, sizeof plugins, "%s/plugins", process_build());
    ck_assert_ptr_nonnull(realpath(plugins, absolute));
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_config_set_plugins(config, absolute, &err), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s: %s", err.where, err.message);
    char spec[4096];
    name_kernels(g, fresh, spec, sizeof spec);
    free(fresh);
    size_t gradients = verify(model, config, spec, case_folder(_i));
    if (gradients == 0) /* no kernel is for the new ones */
        gradients = verify(model, config, "auto", case_folder(_i));
    ck_assert_uint_gt(gradients, 0);
    tn_config_free(config);
}
END_TEST

int main(void)
{
    if (glob("tests/data/models/*/config.json", 0, NULL, &cases) != 0 ||
        glob("tests/data/models/*/model.gguf", GLOB_APPEND, NULL, &cases) != 0)
        return 1;
    eager_tried =
        mmap(NULL, 2 * KINDS_MAX * sizeof *eager_tried, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (eager_tried == MAP_FAILED)
        return 1;
    kernels_tried = eager_tried + KINDS_MAX;
    TCase *tc = suite_open("gradients", 300);
    ADD_SLOW_LOOP(tc, eager_agrees_with_differences, cases.gl_pathc);
    ADD_SLICED_LOOP(tc, kernels_agree_with_eager, cases.gl_pathc, 15);
    int failed = process_main();
    globfree(&cases);
    return failed;
}
