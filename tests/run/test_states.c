/* What a session keeps of recurrent layers: one call, calls in pieces with padding, and a session that was reset. */
#include "eager/eager.h"
#include "optest.h"
#include "suite.h"
#include "run/cache.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, TOKENS = 23, WIDTH = 6, TAPS = 4, HEADS = 2, DK = 4, DV = 3, LAYERS = 4 };

static const model_layer layers[] = {
    {.conv_width = WIDTH, .conv_taps = TAPS},
    {.state_heads = HEADS, .state_k = DK, .state_v = DV},
    {.kv_heads = 1, .head_dim = 4, .v_head_dim = 4},
    {.state_heads = HEADS, .state_k = DK, .state_v = DV},
};

typedef struct model {
    graph_site conv, delta, scan;
    kv_cache cache;
    arena arena;
    tn_tensor x, v, q, k, a, b; /* [ROWS, TOKENS, ..] */
    int64_t mask[ROWS * TOKENS];
} model;

static void open_model(model *m)
{
    const model_shape shape = {.layers = LAYERS, .layer = layers};
    *m = (model){.conv.site = optest_site(TN_OP_SHORT_CONV, TN_F32),
                 .delta.site = optest_site(TN_OP_GATED_DELTA_RULE, TN_F32),
                 .scan.site = optest_site(TN_OP_SELECTIVE_SCAN, TN_F32)};
    tn_tensor filter = optest_random(TN_F32, 2, (int64_t[]){WIDTH, TAPS}, 1);
    tn_tensor rate = optest_random(TN_F32, 1, (int64_t[]){HEADS}, 2);
    tn_tensor bias = optest_random(TN_F32, 1, (int64_t[]){HEADS}, 3);
    optest_param(&m->conv.site, TN_ROLE_WEIGHT, &filter, 1);
    optest_param(&m->delta.site, TN_ROLE_DECAY, &rate, 1);
    optest_param(&m->delta.site, TN_ROLE_BIAS, &bias, 1);
    optest_param(&m->scan.site, TN_ROLE_DECAY, &rate, 1);
    optest_param(&m->scan.site, TN_ROLE_BIAS, &bias, 1);
    optest_param(&m->scan.site, TN_ROLE_WEIGHT, &rate, 1);
    m->scan.site.dim[TN_DIM_HEAD] = DK;
    m->conv.site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    m->conv.site.dim[TN_DIM_TAPS] = TAPS;
    m->delta.site.dim[TN_DIM_HEAD] = DK;
    m->x = optest_random(TN_F32, 3, (int64_t[]){ROWS, TOKENS, WIDTH}, 4);
    m->v = optest_random(TN_F32, 4, (int64_t[]){ROWS, TOKENS, HEADS, DV}, 5);
    m->q = optest_random(TN_F32, 4, (int64_t[]){ROWS, TOKENS, HEADS, DK}, 6);
    m->k = optest_random(TN_F32, 4, (int64_t[]){ROWS, TOKENS, HEADS, DK}, 7);
    m->a = optest_random(TN_F32, 3, (int64_t[]){ROWS, TOKENS, HEADS}, 8);
    m->b = optest_random(TN_F32, 3, (int64_t[]){ROWS, TOKENS, HEADS}, 9);
    for (int64_t i = 0; i < ROWS * TOKENS; i++)
        m->mask[i] = i < TOKENS || i - TOKENS >= 9;
    ck_assert_int_eq(cache_init(&m->cache, &cpu_device, TN_F32, &shape, ROWS, 64, TOKENS, NULL), TN_OK);
    ck_assert_int_eq(arena_init(&m->arena, &cpu_device, 1 << 20, NULL), TN_OK);
}

static void close_model(model *m)
{
    arena_close(&m->arena);
    cache_close(&m->cache);
}

/* Some tokens of every row, dense as a call of a session has them. */
static tn_tensor piece(const tn_tensor *t, int64_t first, int64_t count)
{
    int64_t shape[TN_MAX_DIMS], row = tn_tensor_count(t) / ROWS / TOKENS;
    memcpy(shape, t->shape, sizeof shape);
    shape[1] = count;
    tn_tensor part = optest_zeros(TN_F32, t->ndim, shape);
    for (int64_t b = 0; b < ROWS; b++)
        memcpy((float *)part.data + b * count * row, (const float *)t->data + (b * TOKENS + first) * row,
               (size_t)(count * row) * sizeof(float));
    return part;
}

static void keep(const tn_tensor *part, int64_t first, tn_tensor *all)
{
    int64_t row = tn_tensor_count(all) / ROWS / TOKENS, count = tn_tensor_count(part) / ROWS / row;
    for (int64_t b = 0; b < ROWS; b++)
        memcpy((float *)all->data + (b * TOKENS + first) * row, (const float *)part->data + b * count * row,
               (size_t)(count * row) * sizeof(float));
}

/* All tokens, step of them a call; what the layers give goes to y, o and z. */
static void run(model *m, int64_t step, tn_tensor *y, tn_tensor *o, tn_tensor *z)
{
    static int32_t index[ROWS * TOKENS];
    tn_error err = TN_ERROR_INIT;
    for (int64_t first = 0; first < TOKENS; first += step) {
        int64_t count = TOKENS - first < step ? TOKENS - first : step;
        graph_run r = {
            .device = &cpu_device, .arena = &m->arena, .dtype = TN_F32, .rows = ROWS, .tokens = count, .err = &err};
        arena_release(&m->arena, 0);
        ck_assert_int_eq(cache_advance(&m->cache, count, m->mask + first, TOKENS, index, &err), TN_OK);
        r.index = tn_tensor_dense(index, TN_I32, 2, (int64_t[]){ROWS, count});
        run_segment segment = {0, count, m->cache.view};
        r.segment = &segment;
        r.segments = 1;
        tn_tensor x = piece(&m->x, first, count);
        x = steps_view(&x, 2, (int64_t[]){ROWS * count, WIDTH});
        const steps_delta in = {.v = piece(&m->v, first, count),
                                .q = piece(&m->q, first, count),
                                .k = piece(&m->k, first, count),
                                .a = piece(&m->a, first, count),
                                .b = piece(&m->b, first, count)};
        tn_tensor conv = steps_short_conv(&r, &m->conv, 0, &x), delta = steps_delta_rule(&r, &m->delta, 1, &in);
        const steps_scan_inputs scanned = {.x = in.v, .b = in.q, .c = in.k, .dt = in.a};
        tn_tensor scan = steps_scan(&r, &m->scan, 3, &scanned);
        ck_assert_msg(r.status == TN_OK, "%s", err.message);
        keep(&scan, first, z);
        keep(&conv, first, y);
        keep(&delta, first, o);
    }
}

START_TEST(pieces_and_reset)
{
    static const int64_t steps[] = {TOKENS, 1, 5, 16};
    model m;
    open_model(&m);
    tn_tensor want_y = optest_zeros(TN_F32, 3, m.x.shape), want_o = optest_zeros(TN_F32, 4, m.v.shape);
    tn_tensor want_z = optest_zeros(TN_F32, 4, m.v.shape);
    run(&m, TOKENS, &want_y, &want_o, &want_z);
    ck_assert_int_eq(cache_length(&m.cache), TOKENS);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        tn_tensor y = optest_zeros(TN_F32, 3, m.x.shape), o = optest_zeros(TN_F32, 4, m.v.shape);
        tn_tensor z = optest_zeros(TN_F32, 4, m.v.shape);
        cache_reset(&m.cache);
        run(&m, steps[i], &y, &o, &z);
        optest_close(&z, &want_z, 0, 0, "scan");
        optest_close(&y, &want_y, 0, 0, "convolution");
        /* In chunks or token by token: some units of f32 of numbers up to 2. */
        optest_close(&o, &want_o, 64 * 0x1p-24, 0, "delta rule");
    }
    close_model(&m);
}
END_TEST

/* A row behind padding is what it is without. */
START_TEST(padding_takes_no_part)
{
    model m;
    open_model(&m);
    tn_tensor y = optest_zeros(TN_F32, 3, m.x.shape), o = optest_zeros(TN_F32, 4, m.v.shape);
    tn_tensor other_y = optest_zeros(TN_F32, 3, m.x.shape), other_o = optest_zeros(TN_F32, 4, m.v.shape);
    tn_tensor z = optest_zeros(TN_F32, 4, m.v.shape), other_z = optest_zeros(TN_F32, 4, m.v.shape);
    run(&m, TOKENS, &y, &o, &z);
    for (int64_t i = TOKENS * WIDTH; i < (TOKENS + 9) * WIDTH; i++)
        optest_set(&m.x, i, 1000);
    for (int64_t i = TOKENS * HEADS * DV; i < (TOKENS + 9) * HEADS * DV; i++)
        optest_set(&m.v, i, 1000);
    cache_reset(&m.cache);
    run(&m, TOKENS, &other_y, &other_o, &other_z);
    optest_close(&other_z, &z, 0, 0, "scan");
    optest_close(&other_y, &y, 0, 0, "convolution");
    optest_close(&other_o, &o, 0, 0, "delta rule");
    close_model(&m);
}
END_TEST

START_TEST(bytes_are_those_of_states)
{
    model m;
    open_model(&m);
    size_t conv = ROWS * WIDTH * (TAPS - 1), state = ROWS * HEADS * DK * DV, kv = 2 * ROWS * 64 * 4;
    ck_assert_uint_eq(m.cache.bytes, 4 * (conv + 2 * state + kv));
    ck_assert_ptr_null(m.cache.k[0].data);
    ck_assert_ptr_null(m.cache.state[2]);
    close_model(&m);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("recurrent states", 0);
    suite_add(tc, pieces_and_reset, padding_takes_no_part, bytes_are_those_of_states);
    return suite_run();
}
