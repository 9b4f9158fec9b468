/* Gradients of the device npu, on the simulator of the vendor's libraries, against the CPU's: made-up sites of every
 * operation that has them, whatever is wanted and whatever there is upstream, with gaps between rows and in place. */
#include "base/convert.h"
#include "base/tensor.h"
#include "check/draw_site.h"
#include "check/gradients.h"
#include "check/inputs.h"
#include "grad_variants.h"
#include "npu_pair.h"
#include "sanitizer.h"
#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- trials ------------------------------------------------------------------------------------------------- */

enum { PARAMS = 1024, TOKENS = 21, WIDTH = 50 };

/* A call with its upstream gradients, drawn on the host; the site's parameters are on both sides. */
typedef struct trial {
    const variant *v;
    npu_pair_sites *sites;
    tn_site here, there;
    inputs in;
    gradients want, got; /* upstream gradients of want alone                                       */
    float *step;         /* the tensors of a step                                                  */
} trial;

static void draw_tensor(tn_tensor *t, random_state *random)
{
    int64_t count = tn_tensor_count(t);
    t->data = aligned_alloc(64, tensor_padded_bytes(t) + 64);
    for (int64_t i = 0; i < count; i++) {
        float value = random_nearly_normal(random);
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * tn_dtype_size(t->dtype), 1);
    }
}

/* One value for all features of a token. */
static void spread(tn_tensor *t)
{
    t->stride[0] = 1;
    t->stride[1] = 0;
}

/* Steps are not drawn by inputs.c: rows of normal numbers. */
static void draw_step(trial *t, tn_dtype dtype, int64_t tokens)
{
    random_state random = {.state = 11};
    tn_call *call = &t->in.call;
    *call = (tn_call){.size = sizeof *call, .op = t->v->op, .site = &t->here, .out_count = 1};
    call->in_count = t->v->op == TN_OP_GLU ? 2 : 1;
    t->in.tokens = tokens;
    tn_tensor like = tn_tensor_dense(NULL, dtype, 2, (int64_t[]){tokens, WIDTH});
    for (int i = 0; i < call->in_count; i++) {
        call->in[i] = like;
        draw_tensor(&call->in[i], &random);
        for (int side = 0; side < 2; side++) {
            gradients *g = side ? &t->got : &t->want;
            g->grads.in[i] = like;
            g->grads.in[i].data = aligned_alloc(64, tensor_padded_bytes(&like) + 64);
            if (t->v->spread && i == 0)
                spread(&g->grads.in[i]);
        }
    }
    if (t->v->spread)
        spread(&call->in[0]);
    t->want.grads.size = t->got.grads.size = sizeof(tn_grads);
    t->want.grads.out[0] = like;
    draw_tensor(&t->want.grads.out[0], &random);
    t->want.upstream = t->want.grads.out[0].data;
}

/* The chosen experts come from the CPU; the device's order is the same: by falling score. */
static void draw_call(trial *t, int64_t tokens)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor experts = {0};
    check_case c = {.batch = 1, .tokens = tokens, .seed = 3};
    ck_assert_msg(inputs_draw_case(&t->in, &t->here, &c, &err) == TN_OK, "%s", err.message);
    tn_call *call = &t->in.call;
    if (t->v->op == TN_OP_MOE_ROUTE) {
        tn_call forward = *call;
        for (int i = 0; i < forward.out_count; i++)
            forward.out[i].data = aligned_alloc(64, tensor_padded_bytes(&forward.out[i]) + 64);
        ck_assert_msg(run_alone(&npu_pair_cpu, NULL, NULL, &forward, &err) == TN_OK, "%s", err.message);
        experts = forward.out[1];
        free(forward.out[0].data);
    }
    ck_assert_int_eq(gradients_draw(&t->want, &t->in, &experts, &err), TN_OK);
    ck_assert_int_eq(gradients_draw(&t->got, &t->in, &experts, &err), TN_OK);
    ck_assert_int_eq(gradients_allocate(&t->want, &err), TN_OK);
    ck_assert_int_eq(gradients_allocate(&t->got, &err), TN_OK);
    free(experts.data);
}

/* Elements that a row takes on the device, gap more than its width. */
static int64_t room_of_row(const tn_tensor *t, int64_t gap)
{
    return t->ndim > 1 ? t->shape[t->ndim - 1] + gap : t->ndim > 0 ? t->shape[0] : 1;
}

static int64_t rows_of(const tn_tensor *t)
{
    int64_t width = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    return width > 0 ? tn_tensor_count(t) / width : 0;
}

static size_t bytes_there(const tn_tensor *t, int64_t gap)
{
    return (size_t)(rows_of(t) * room_of_row(t, gap)) * tn_dtype_size(t->dtype);
}

static bool is_spread(const tn_tensor *t)
{
    return t->ndim > 1 && t->stride[t->ndim - 1] == 0;
}

/* Between a tensor's memory and a copy of the device's: rows, or a number of each. */
static void move_rows(const tn_tensor *host, char *copy, int64_t gap, bool back)
{
    size_t size = tn_dtype_size(host->dtype), each = is_spread(host) ? size : (size_t)room_of_row(host, 0) * size;
    size_t step = is_spread(host) ? size : (size_t)room_of_row(host, gap) * size;
    for (int64_t i = 0, rows = rows_of(host); i < rows; i++) {
        char *here = (char *)host->data + (size_t)i * each, *there = copy + (size_t)i * step;
        memcpy(back ? here : there, back ? there : here, each);
    }
}

static void to_device(const tn_tensor *host, tn_tensor *there, int64_t gap)
{
    *there = *host;
    for (int64_t i = host->ndim - 2, step = room_of_row(host, gap); i >= 0 && !is_spread(host); i--) {
        there->stride[i] = step;
        step *= host->shape[i];
    }
    size_t bytes = bytes_there(host, gap);
    char *copy = calloc(1, bytes + 64);
    move_rows(host, copy, gap, false);
    ck_assert_int_eq(device_alloc(&npu_pair_npu, bytes, &there->data, NULL), TN_OK);
    ck_assert_int_eq(device_upload(&npu_pair_npu, there->data, copy, bytes, NULL), TN_OK);
    free(copy);
}

static void from_device(const tn_tensor *there, const tn_tensor *host, int64_t gap)
{
    size_t bytes = bytes_there(host, gap);
    char *copy = malloc(bytes + 64);
    ck_assert_int_eq(device_download(&npu_pair_npu, copy, there->data, bytes, NULL), TN_OK);
    move_rows(host, copy, gap, true);
    free(copy);
}

static trial *trial_open(const variant *v, tn_dtype dtype, int64_t tokens)
{
    trial *t = calloc(1, sizeof *t);
    tn_site like = variant_site(v, dtype);
    t->v = v;
    t->sites = npu_pair_draw(&like);
    t->here = t->sites->drawn.site;
    t->there = t->sites->there;
    if (v->op >= TN_OP_FIRST_STEP)
        draw_step(t, dtype, tokens);
    else
        draw_call(t, tokens);
    return t;
}

static void trial_close(trial *t)
{
    npu_pair_drop(t->sites);
    if (t->v->op >= TN_OP_FIRST_STEP) {
        for (int i = 0; i < t->in.call.in_count; i++) {
            free(t->in.call.in[i].data);
            free(t->want.grads.in[i].data);
            free(t->got.grads.in[i].data);
        }
        free(t->want.upstream);
    } else {
        gradients_close(&t->want);
        gradients_close(&t->got);
        inputs_close(&t->in);
    }
    free(t);
}

/* ---- on the device ------------------------------------------------------------------------------------------ */

/* How gradients are asked for. */
typedef enum way { ALL, WITH_GAPS, OF_INPUTS, OF_PARAMS, FIRST_ABSENT, ALL_ABSENT, IN_PLACE, WAYS } way;

enum { MOST_TENSORS = 4 * TN_CALL_TENSORS + PARAMS };

/* What was put on the device, and where it comes back to. */
typedef struct far_tensors {
    tn_tensor there[MOST_TENSORS], host[MOST_TENSORS];
    bool result[MOST_TENSORS];
    int count;
    int64_t gap;
} far_tensors;

static tn_tensor put(far_tensors *f, const tn_tensor *host, bool result)
{
    ck_assert_int_lt(f->count, MOST_TENSORS);
    int i = f->count++;
    if (result)
        memset(host->data, 0x7b, bytes_there(host, 0));
    f->host[i] = *host;
    f->result[i] = result;
    to_device(host, &f->there[i], f->gap);
    return f->there[i];
}

static void fetch_all(far_tensors *f)
{
    for (int i = 0; i < f->count; i++) {
        if (f->result[i])
            from_device(&f->there[i], &f->host[i], f->gap);
        device_free(&npu_pair_npu, f->there[i].data, bytes_there(&f->host[i], f->gap));
    }
}

/* Performs the call with its gradients on the device; results of what is wanted come back into grads. */
static tn_status perform_there(trial *t, const tn_grads *grads, way how, tn_error *err)
{
    far_tensors *f = calloc(1, sizeof *f);
    tn_tensor *params = calloc(PARAMS, sizeof *params), *next = params;
    tn_call far = t->in.call;
    tn_grads there = *grads;
    f->gap = how == WITH_GAPS ? 3 : 0;
    for (int i = 0; i < far.in_count; i++)
        far.in[i] = put(f, &t->in.call.in[i], false);
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->out[i].data)
            there.out[i] = put(f, &grads->out[i], false);
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->in[i].data) {
            there.in[i] = put(f, &grads->in[i], true);
            if (how == IN_PLACE && i == 0) {
                device_free(&npu_pair_npu, there.in[0].data, bytes_there(&grads->in[0], 0));
                f->there[f->count - 1].data = there.in[0].data = there.out[0].data;
            }
        }
    for (int role = 0; role < TN_ROLE_MAX; next += there.param[role++].count) {
        there.param[role].tensors = next;
        for (int64_t i = 0; i < there.param[role].count; i++)
            next[i] = put(f, &grads->param[role].tensors[i], true);
    }
    far.site = &t->there;
    far.grads = &there;
    far.out_count = 0;
    tn_status status = run_alone(&npu_pair_npu, NULL, NULL, &far, err);
    if (how == IN_PLACE) /* the upstream gradient goes with it                                      */
        for (int i = 0; i < f->count; i++)
            if (!f->result[i] && f->there[i].data == there.out[0].data)
                f->host[i].shape[0] = 0, f->there[i].data = NULL;
    fetch_all(f);
    free(f);
    free(params);
    return status;
}

/* ---- comparing ---------------------------------------------------------------------------------------------- */

/* Units of the last place at the largest magnitude of the gradient. */
static double tolerance_of(tn_dtype dtype)
{
    return dtype == TN_F32 ? 128 : 4;
}

static float value_at(const tn_tensor *t, int64_t i)
{
    float value;
    convert_to_f32((const char *)t->data + (size_t)i * tn_dtype_size(t->dtype), t->dtype, &value, 1);
    return value;
}

static double compare(const trial *t, const char *what, int index, const tn_tensor *want, const tn_tensor *got)
{
    /* A gradient in f32 is made of what the model's type rounds. */
    tn_dtype dtype = (tn_dtype)t->here.meaning[TN_AXIS_DTYPE];
    double eps = dtype == TN_F32 ? 0x1p-24 : dtype == TN_BF16 ? 0x1p-8 : 0x1p-11, largest = 0, worst = 0;
    int64_t count = tn_tensor_count(want);
    if (want->ndim > 1 && want->stride[want->ndim - 1] == 0)
        count = want->shape[0];
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)value_at(want, i)));
    for (int64_t i = 0; i < count; i++) {
        double a = (double)value_at(want, i), b = (double)value_at(got, i), off = fabs(a - b) / eps;
        double ulps = off == 0 ? 0 : off / largest;
        ck_assert_msg(ulps <= tolerance_of(dtype), "%s, %s: %s %d, element %lld: %.9g, the CPU has %.9g (%.3g ulps)",
                      t->v->name, tn_dtype_name((tn_dtype)t->here.meaning[TN_AXIS_DTYPE]), what, index, (long long)i, b,
                      a, ulps);
        worst = fmax(worst, ulps);
    }
    return worst;
}

static double compare_all(const trial *t, const tn_grads *want, const tn_grads *got)
{
    double worst = 0;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (want->in[i].data)
            worst = fmax(worst, compare(t, "input", i, &want->in[i], &got->in[i]));
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < want->param[role].count; i++)
            worst = fmax(worst, compare(t, tn_role_name((tn_role)role), (int)i, &want->param[role].tensors[i],
                                        &got->param[role].tensors[i]));
    return worst;
}

static void leave_out(tn_grads *grads, way how)
{
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        if (how == OF_PARAMS)
            grads->in[i].data = NULL;
        if (how == ALL_ABSENT || (how == FIRST_ABSENT && i == 0))
            grads->out[i].data = NULL;
    }
    if (how == OF_INPUTS)
        memset(grads->param, 0, sizeof grads->param);
}

/* Where both are asked for the same. */
static double try_way(trial *t, way how)
{
    tn_error err = TN_ERROR_INIT;
    tn_grads want = t->want.grads, got = t->got.grads;
    memcpy(got.out, want.out, sizeof got.out);
    leave_out(&want, how);
    leave_out(&got, how);
    tn_call here = t->in.call;
    here.site = &t->here;
    here.grads = &want;
    here.out_count = 0;
    ck_assert_msg(run_alone(&npu_pair_cpu, NULL, NULL, &here, &err) == TN_OK, "%s: %s", t->v->name, err.message);
    ck_assert_msg(perform_there(t, &got, how, &err) == TN_OK, "%s, way %d: %s", t->v->name, (int)how, err.message);
    return compare_all(t, &want, &got);
}

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* Operations whose results may be the memory of their first input. */
static bool works_in_place(tn_op op)
{
    return op != TN_OP_LINEAR && op != TN_OP_GROUPED_MATMUL && op != TN_OP_MOE_ROUTE && op != TN_OP_MOE_EXPERTS &&
           op != TN_OP_ATTENTION && op != TN_OP_MLP && op != TN_OP_MOE_BLOCK;
}

/* Of each variant; under the sanitizers, where they take minutes, each has one in turn. */
enum { TYPES = SANITIZER ? 1 : 3 };

START_TEST(gradients_are_the_cpus)
{
    const variant *v = &variants[_i / TYPES];
    double worst = 0;
    npu_pair_open();
    trial *t = trial_open(v, dtypes[_i % 3], TOKENS);
    for (int how = 0; how < WAYS; how++)
        if (how != IN_PLACE || (works_in_place(v->op) && !v->spread))
            worst = fmax(worst, try_way(t, (way)how));
    if (getenv("TENON_FIGURES"))
        fprintf(stderr, "%s, %s: %.3g ulps\n", v->name, tn_dtype_name(dtypes[_i % 3]), worst);
    trial_close(t);
    npu_pair_close();
}
END_TEST

START_TEST(empty_calls_have_zeros)
{
    npu_pair_open();
    for (int i = 0; i < VARIANTS; i++) {
        trial *t = trial_open(&variants[i], TN_BF16, 0);
        try_way(t, ALL);
        trial_close(t);
    }
    npu_pair_close();
}
END_TEST

/* ---- what the CPU has no gradients of ------------------------------------------------------------------------ */

enum { ROWS = 5, COLUMNS = 7, IDS = 4 };

/* Whole numbers, which every order adds up exactly. */
static tn_tensor numbers_there(far_tensors *f, float *host, int64_t rows, int64_t columns, bool result)
{
    for (int64_t i = 0; i < rows * columns; i++)
        host[i] = (float)(i * 5 % 11 - 4);
    tn_tensor t = tn_tensor_dense(host, TN_F32, columns ? 2 : 1, (int64_t[]){rows, columns});
    return put(f, &t, result);
}

static void backward_there(tn_op op, const tn_site *site, const tn_grads *grads, const tn_tensor *in, int count)
{
    tn_error err = TN_ERROR_INIT;
    tn_call call = {.size = sizeof call, .op = op, .site = site, .grads = grads, .in_count = count};
    memcpy(call.in, in, (size_t)count * sizeof *in);
    ck_assert_msg(run_alone(&npu_pair_npu, NULL, NULL, &call, &err) == TN_OK, "%s", err.message);
}

START_TEST(sums_and_factors)
{
    static far_tensors f;
    float x[ROWS * COLUMNS], g[ROWS * COLUMNS], dx[ROWS * COLUMNS], other[ROWS * COLUMNS], s[ROWS] = {2, -1, 0, 3, 4};
    float ds[ROWS], sum;
    npu_pair_open();
    tn_site site = draw_site_plain(TN_OP_MLP);
    site.num[TN_NUM_SCALE] = -3;
    tn_tensor in[2] = {numbers_there(&f, x, ROWS, COLUMNS, false)};
    in[1] = put(&f, &(tn_tensor){.data = s, .dtype = TN_F32, .ndim = 1, .shape = {ROWS}, .stride = {1}}, false);
    tn_tensor host_ds = {.data = ds, .dtype = TN_F32, .ndim = 1, .shape = {ROWS}, .stride = {1}};
    tn_grads grads = {.size = sizeof grads, .out[0] = numbers_there(&f, g, ROWS, COLUMNS, false)};
    for (int op = 0; op < 3; op++) {
        static const tn_op ops[] = {TN_OP_ADD, TN_OP_SCALE, TN_OP_ROW_SCALE};
        far_tensors results = {0};
        grads.in[0] = numbers_there(&results, dx, ROWS, COLUMNS, true);
        grads.in[1] = op == 2 ? put(&results, &host_ds, true) : numbers_there(&results, other, ROWS, COLUMNS, true);
        tn_tensor inputs[2] = {in[0], op == 2 ? in[1] : in[0]};
        backward_there(ops[op], &site, &grads, inputs, op == 1 ? 1 : 2);
        fetch_all(&results);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            float factor = op == 0 ? 1 : op == 1 ? -3 : s[i / COLUMNS];
            ck_assert_msg(dx[i] == factor * g[i], "operation %d, element %d: %g", op, i, (double)dx[i]);
            ck_assert_msg(op > 0 || other[i] == g[i], "element %d: %g", i, (double)other[i]);
        }
        for (int row = 0; row < ROWS && op == 2; row++) {
            sum = 0;
            for (int i = 0; i < COLUMNS; i++)
                sum += x[row * COLUMNS + i] * g[row * COLUMNS + i];
            ck_assert_msg(ds[row] == sum, "row %d: %g, not %g", row, (double)ds[row], (double)sum);
        }
    }
    fetch_all(&f);
    npu_pair_close();
}
END_TEST

START_TEST(rows_of_tables)
{
    static far_tensors f;
    float table[ROWS * COLUMNS], g[IDS * COLUMNS], dtable[ROWS * COLUMNS];
    int64_t ids[IDS] = {3, 0, 3, 4};
    npu_pair_open();
    tn_site site = draw_site_plain(TN_OP_MLP);
    tn_tensor weight = numbers_there(&f, table, ROWS, COLUMNS, false);
    site.op = TN_OP_EMBEDDING;
    site.features = 0;
    site.num[TN_NUM_SCALE] = 2;
    site.param[TN_ROLE_WEIGHT] = (tn_param){&weight, 1};
    tn_tensor in = put(&f, &(tn_tensor){.data = ids, .dtype = TN_I64, .ndim = 1, .shape = {IDS}, .stride = {1}}, false);
    tn_grads grads = {.size = sizeof grads, .out[0] = numbers_there(&f, g, IDS, COLUMNS, false)};
    tn_tensor to = numbers_there(&f, dtable, ROWS, COLUMNS, true);
    grads.param[TN_ROLE_WEIGHT] = (tn_param){&to, 1};
    backward_there(TN_OP_EMBEDDING, &site, &grads, &in, 1);
    fetch_all(&f);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        float sum = 0;
        for (int j = 0; j < IDS; j++)
            sum += ids[j] == i / COLUMNS ? 2 * g[j * COLUMNS + i % COLUMNS] : 0;
        ck_assert_msg(dtable[i] == sum, "element %d: %g, not %g", i, (double)dtable[i], (double)sum);
    }
    npu_pair_close();
}
END_TEST

/* Scores that do not fit into the scratch at once. */
START_TEST(attention_in_blocks)
{
    const variant v = {.name = "attention in blocks", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS};
    npu_pair_open();
    trial *t = trial_open(&v, dtypes[_i], 1100);
    try_way(t, ALL);
    trial_close(t);
    npu_pair_close();
}
END_TEST

/* What there is no gradient of is declined with its name. */
START_TEST(what_has_none_is_declined)
{
    static const struct {
        variant v;
        const char *what;
    } none[] = {
        {{.op = TN_OP_COPY}, "the gradients of COPY"},
        {{.op = TN_OP_SELECTIVE_SCAN}, "the gradients of SELECTIVE_SCAN"},
        {{.op = TN_OP_ACT, .act = TN_ACT_XIELU}, "the gradients of xielu"},
        {{.op = TN_OP_MOE_ROUTE, .score = TN_SCORE_SPARSEMIXER}, "the gradients of sparsemixer"},
        {{.op = TN_OP_ATTENTION, .features = TN_HAS_ALIBI}, "the gradients of attention with ALiBi"},
        {{.op = TN_OP_ATTENTION, .features = TN_HAS_CHOSEN_KEYS}, "the gradients of attention to chosen keys"},
        {{.op = TN_OP_RMS_NORM, .norm = TN_NORM_W, .features = TN_HAS_GROUPS}, "the gradients of norms by groups"},
        {{.op = TN_OP_RMS_NORM, .norm = TN_NORM_GATED_W}, "the gradients of gated_w"}};
    npu_pair_open();
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_site site = variant_site(&none[i].v, TN_BF16);
        tn_grads grads = {.size = sizeof grads};
        tn_call call = {.size = sizeof call, .op = none[i].v.op, .site = &site, .grads = &grads, .in_count = 1};
        ck_assert_int_eq(run_alone(&npu_pair_npu, NULL, NULL, &call, &err), TN_DECLINED);
        ck_assert_msg(strstr(err.message, none[i].what) != NULL, "%s", err.message);
    }
    npu_pair_close();
}
END_TEST

/* The first variant with grouped products, and how many there are. */
static int grouped_variants(int *count)
{
    int first = 0;
    while (variants[first].op != TN_OP_GROUPED_MATMUL)
        first++;
    for (*count = 0; variants[first + *count].op == TN_OP_GROUPED_MATMUL; *count += 1)
        ;
    return first;
}

/* The simulator without what the headers of 8.1.RC1 lack, in a program of its own: grouped products by V4. */
START_TEST(older_installations)
{
    npu_pair_on_older("groups");
}
END_TEST

static void add_tests(void)
{
    TCase *tc = suite_open("ascend_grads", 600);
    tcase_add_loop_test(tc, gradients_are_the_cpus, 0, TYPES * VARIANTS);
    suite_add(tc, empty_calls_have_zeros, sums_and_factors, rows_of_tables);
    tcase_add_loop_test(tc, attention_in_blocks, 0, 3);
    suite_add(tc, what_has_none_is_declined, older_installations);
    int count, first = grouped_variants(&count);
    tc = suite_open("groups", 600);
    tcase_add_loop_test(tc, gradients_are_the_cpus, TYPES * first, TYPES * (first + count));
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
