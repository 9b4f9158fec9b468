/* Caches of the device npu, on the simulator of the vendor's libraries: what lies in slots that are not used reaches no
 * result, whoever left it there, and costs nothing where it is known to be zero. */
#include "base/convert.h"
#include "check/compare.h"
#include "npu_pair.h"
#include "suite.h"
#include "variants.h"

#include <tenon/tenon.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, PAST = 20, UNUSED = 5 };
enum { Q, KEYS, VALUES, Q_INDEX, KV_INDEX };
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* ---- a cache --------------------------------------------------------------------------------------------------- */

static size_t bytes_of(const tn_tensor *t)
{
    return tn_dtype_bytes(t->dtype, tn_tensor_count(t));
}

static void drop(const tn_tensor *there)
{
    ck_assert_int_eq(device_sync(&npu_pair_npu, NULL), TN_OK);
    device_free(&npu_pair_npu, there->data, bytes_of(there));
}

/* The first slots of x [B,S,K,D], on the host, to the same ones of a cache on the device. */
static void append(const tn_tensor *x, int64_t count, const tn_tensor *cache)
{
    tn_error err = TN_ERROR_INIT;
    tn_call call = {.size = sizeof call, .op = TN_OP_CACHE_APPEND, .in_count = 2, .out_count = 1};
    int32_t *slots = malloc((size_t)(ROWS * x->shape[1]) * sizeof *slots);
    for (int64_t i = 0; i < ROWS * x->shape[1]; i++)
        slots[i] = i % x->shape[1] < count ? (int32_t)(i % x->shape[1]) : -1;
    tn_tensor slot = tn_tensor_dense(slots, TN_I32, 2, (int64_t[]){ROWS, x->shape[1]});
    npu_pair_upload(x, &call.in[0]);
    npu_pair_upload(&slot, &call.in[1]);
    call.out[0] = *cache;
    ck_assert_msg(run_alone(&npu_pair_npu, NULL, NULL, &call, &err) == TN_OK, "%s", err.message);
    for (int i = 0; i < 2; i++)
        drop(&call.in[i]);
    free(slots);
}

/* Slots first .. end - 1, a token of each row at a time. */
static void append_one_by_one(const tn_tensor *x, int64_t first, int64_t end, const tn_tensor *cache)
{
    tn_error err = TN_ERROR_INIT;
    tn_call call = {.size = sizeof call, .op = TN_OP_CACHE_APPEND, .in_count = 2, .out_count = 1, .out = {*cache}};
    tn_tensor token = tn_tensor_dense(NULL, x->dtype, 4, (int64_t[]){ROWS, 1, x->shape[2], x->shape[3]});
    size_t bytes = bytes_of(&token) / ROWS;
    token.data = malloc(ROWS * bytes);
    for (int32_t t = (int32_t)first; t < end; t++) {
        for (int64_t b = 0; b < ROWS; b++)
            memcpy((char *)token.data + (size_t)b * bytes, (char *)x->data + (size_t)(b * x->shape[1] + t) * bytes,
                   bytes);
        tn_tensor slot = tn_tensor_dense((int32_t[]){t, t}, TN_I32, 2, (int64_t[]){ROWS, 1});
        npu_pair_upload(&token, &call.in[0]);
        npu_pair_upload(&slot, &call.in[1]);
        ck_assert_msg(run_alone(&npu_pair_npu, NULL, NULL, &call, &err) == TN_OK, "%s", err.message);
        for (int i = 0; i < 2; i++)
            drop(&call.in[i]);
    }
    free(token.data);
}

static tn_tensor new_cache(const tn_tensor *like)
{
    tn_tensor cache = *like;
    ck_assert_int_eq(device_alloc(&npu_pair_npu, bytes_of(like), &cache.data, NULL), TN_OK);
    return cache;
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

/* A drawn call, in the last slots of whose caches is no number, and which are not used. */
static void draw(const npu_pair_sites *s, inputs *in)
{
    tn_error err = TN_ERROR_INIT;
    check_case c = {.batch = ROWS, .tokens = 1, .past = PAST, .seed = 3};
    ck_assert_msg(inputs_draw_case(in, &s->drawn.site, &c, &err) == TN_OK, "%s", err.message);
    int64_t slots = in->call.in[KEYS].shape[1];
    for (int64_t i = 0; i < ROWS * slots; i++)
        if (i % slots >= slots - UNUSED)
            ((int32_t *)in->call.in[KV_INDEX].data)[i] = -1;
    for (int which = KEYS; which <= VALUES; which++) {
        tn_tensor *t = &in->call.in[which];
        int64_t width = t->shape[2] * t->shape[3];
        for (int64_t i = 0; i < tn_tensor_count(t); i++)
            if (i / width % slots >= slots - UNUSED)
                convert_from_f32(&(float){i % 2 ? NAN : INFINITY}, t->dtype,
                                 (char *)t->data + (size_t)i * tn_dtype_size(t->dtype), 1);
    }
}

/* Of the call with these caches, which has to give what the CPU gives: how much was launched for it. */
static int64_t attend(const npu_pair_sites *s, const inputs *in, const tn_tensor caches[2])
{
    tn_error err = TN_ERROR_INIT;
    compare_figures figures = {0};
    tn_call here = in->call, there = in->call, far = in->call;
    npu_pair_give_results(&here);
    npu_pair_give_results(&there);
    here.site = &s->drawn.site;
    far.site = &s->there;
    ck_assert_msg(run_alone(&npu_pair_cpu, NULL, NULL, &here, &err) == TN_OK, "%s", err.message);
    far.in[KEYS].data = caches[0].data;
    far.in[VALUES].data = caches[1].data;
    far.out[0] = new_cache(&there.out[0]);
    for (int i = 0; i < in->call.in_count; i++)
        if (i != KEYS && i != VALUES)
            npu_pair_upload(&in->call.in[i], &far.in[i]);
    int64_t before = npu_pair_figures().launches;
    ck_assert_msg(run_alone(&npu_pair_npu, NULL, NULL, &far, &err) == TN_OK, "%s", err.message);
    int64_t launched = npu_pair_figures().launches - before;
    ck_assert_int_eq(device_download(&npu_pair_npu, there.out[0].data, far.out[0].data, bytes_of(&far.out[0]), &err),
                     TN_OK);
    compare_call(&here, &there, there.in[0].dtype == TN_F32 ? 256 : 8, NULL, &figures);
    ck_assert_msg(figures.worst <= 1, "%s", figures.detail);
    for (int i = 0; i < in->call.in_count; i++)
        if (i != KEYS && i != VALUES)
            drop(&far.in[i]);
    drop(&far.out[0]);
    npu_pair_free_results(&here);
    npu_pair_free_results(&there);
    return launched;
}

static npu_pair_sites *begin(tn_dtype dtype, inputs *in)
{
    const variant v = {.op = TN_OP_ATTENTION, .dims = {{TN_DIM_HEAD, 32}}};
    const tn_site site = variant_site(&v, dtype);
    npu_pair_open();
    npu_pair_sites *s = npu_pair_draw(&site);
    draw(s, in);
    return s;
}

/* Slots that were never written are zero and need nothing; those that were, and are taken back, are left out by copies,
 * and need none once others were written there; of caches that somebody uploaded into nothing is known. */
START_TEST(unused_slots_reach_no_result)
{
    inputs in;
    npu_pair_sites *s = begin(dtypes[_i], &in);
    const tn_tensor *from = &in.call.in[KEYS];
    int64_t slots = from[0].shape[1];
    const tn_tensor caches[2] = {new_cache(&from[0]), new_cache(&from[1])};
    for (int i = 0; i < 2; i++)
        append(&from[i], slots - UNUSED, &caches[i]);
    int64_t clean = attend(s, &in, caches);
    for (int i = 0; i < 2; i++)
        append(&from[i], slots, &caches[i]);
    ck_assert_int_gt(attend(s, &in, caches), clean);
    const tn_tensor others[2] = {new_cache(&from[0]), new_cache(&from[1])};
    for (int i = 0; i < 2; i++) {
        append(&from[i], slots - UNUSED, &others[i]);
        ck_assert_int_eq(device_upload(&npu_pair_npu, others[i].data, from[i].data, bytes_of(&from[i]), NULL), TN_OK);
    }
    ck_assert_int_gt(attend(s, &in, others), clean);
    for (int i = 0; i < 2; i++) {
        drop(&caches[i]);
        drop(&others[i]);
    }
    inputs_close(&in);
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* Token by token, too: the last slot that was written is left out like others. */
START_TEST(nor_do_those_that_tokens_of_decode_left)
{
    inputs in;
    npu_pair_sites *s = begin(dtypes[_i], &in);
    const tn_tensor *from = &in.call.in[KEYS];
    const tn_tensor caches[2] = {new_cache(&from[0]), new_cache(&from[1])};
    int64_t slots = from[0].shape[1];
    for (int i = 0; i < 2; i++)
        append_one_by_one(&from[i], 0, slots - UNUSED, &caches[i]);
    int64_t clean = attend(s, &in, caches);
    for (int i = 0; i < 2; i++)
        append_one_by_one(&from[i], slots - UNUSED, slots - UNUSED + 1, &caches[i]);
    ck_assert_int_gt(attend(s, &in, caches), clean);
    for (int i = 0; i < 2; i++)
        drop(&caches[i]);
    inputs_close(&in);
    npu_pair_drop(s);
    npu_pair_close();
}
END_TEST

/* ---- sessions -------------------------------------------------------------------------------------------------- */

static void run(tn_session *s, int64_t tokens, float *logits)
{
    static const int64_t ids[] = {1, 5, 9, 2, 11, 7, 3, 4};
    tn_error err = TN_ERROR_INIT;
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = ids};
    tn_outputs out = {.size = sizeof out, .last_logits = logits};
    ck_assert_msg(tn_session_run(s, &batch, &out, &err) == TN_OK, "%s", err.message);
}

/* The launches of a token behind four others, the last of which was like it. */
static int64_t launches_of_a_token(tn_session *s, float *logits)
{
    run(s, 3, logits);
    run(s, 1, logits);
    int64_t before = npu_pair_figures().launches;
    run(s, 1, logits);
    return npu_pair_figures().launches - before;
}

/* A session that is reset is like a new one; one that went back has slots to leave out until they are written anew. */
START_TEST(sessions_begin_again)
{
    tn_error err = TN_ERROR_INIT;
    setenv("TENON_NPU_GRAPH", "no", 1); /* calls are counted                                               */
    npu_pair_scan();
    tn_model_options o = {.size = sizeof o, .dtype = "bf16", .device = "npu"};
    tn_model *m = tn_model_open("tests/data/models/qwen3", &o, &err);
    ck_assert_msg(m != NULL, "%s", err.message);
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    float *logits = calloc((size_t)info.vocab, sizeof *logits);
    tn_session_options so = {.size = sizeof so, .context = 32, .chunk = 8};
    tn_session *s = tn_session_new(m, &so, &err);
    int64_t fresh = launches_of_a_token(s, logits);
    run(s, 8, logits);
    tn_session_reset(s);
    ck_assert_int_eq(launches_of_a_token(s, logits), fresh);
    run(s, 8, logits);
    ck_assert_int_eq(tn_session_rewind(s, 2, &err), TN_OK);
    ck_assert_int_gt(launches_of_a_token(s, logits), fresh);
    run(s, 8, logits);
    ck_assert_int_eq(launches_of_a_token(s, logits), fresh);
    tn_session_free(s);
    tn_model_close(m);
    free(logits);
    npu_pair_expect_clean();
}
END_TEST

static void add_tests(void)
{
    TCase *tc = suite_open("ascend_caches", 600);
    tcase_add_loop_test(tc, unused_slots_reach_no_result, 0, 3);
    tcase_add_loop_test(tc, nor_do_those_that_tokens_of_decode_left, 0, 3);
    suite_add(tc, sessions_begin_again);
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
