/* One end of a group that this program plays: what goes together, what is refused, and a group that fails. How ranks
 * compute is check_models --parallel's matter. */
#include "open/parallel.h"
#include "suite.h"
#include "test_kernels.h"

#include <tenon/tenon.h>

#include <stdlib.h>
#include <string.h>

#define LLAMA "tests/data/models/llama"
#define MIXTURE "tests/data/models/qwen3_moe"
#define SEEING "tests/data/models/qwen2_vl"

/* The other ranks say what this one says, but for what is to go wrong. */
typedef struct play {
    int32_t rank, ranks;
    int gathers, fails_at; /* 0: never                                                              */
    bool passes;           /* there is a pass                                                          */
    bool unlike;           /* rank 1's config.json is another one                                      */
    int closed, tells;
    const char *told; /* what rank 0 tells this one; or NULL                                              */
} play;

static tn_status gather(void *self, void *all, const int64_t *bytes, tn_error *err)
{
    play *p = self;
    size_t own = 0, at = 0;
    if (++p->gathers == p->fails_at)
        return tn_fail(err, TN_E_KERNEL, "wires", "rank 1 did not answer");
    for (int32_t r = 0; r < p->rank; r++)
        own += (size_t)bytes[r];
    for (int32_t r = 0; r < p->ranks; at += (size_t)bytes[r++])
        if (r != p->rank && bytes[r] == bytes[p->rank]) {
            memmove((char *)all + at, (char *)all + own, (size_t)bytes[r]);
            if (p->unlike && p->gathers > 1)
                ((char *)all)[at + 2 * sizeof(uint64_t)] ^= 1;
        }
    return TN_OK;
}

static tn_status tell(void *self, void *data, int64_t bytes, bool idle, tn_error *err)
{
    play *p = self;
    (void)idle, (void)err;
    p->tells++;
    if (p->told) {
        memcpy(data, p->told, (size_t)bytes);
        p->told += bytes;
    }
    return TN_OK;
}

static tn_status pass(void *self, int32_t from, int32_t to, void *data, int64_t bytes, tn_error *err)
{
    (void)self, (void)from, (void)to, (void)data, (void)bytes, (void)err;
    return TN_OK;
}

static void close_end(void *self)
{
    ((play *)self)->closed++;
}

static tn_error err;

static tn_model *open_as(play *p, const char *folder, const char *parallel)
{
    const tn_group end = {.size = sizeof end,
                          .rank = p->rank,
                          .ranks = p->ranks,
                          .self = p,
                          .gather = gather,
                          .tell = tell,
                          .pass = p->passes ? pass : NULL,
                          .close = close_end};
    const tn_model_options options = {.size = sizeof options, .threads = 1, .parallel = parallel, .group = &end};
    tn_error_clear(&err);
    return tn_model_open(folder, &options, &err);
}

static void expect(tn_status code, const char *words)
{
    ck_assert_msg(err.code == code && strstr(err.message, words), "%d: %s: %s", err.code, err.where, err.message);
    tn_error_clear(&err);
}

START_TEST(what_does_not_go_together)
{
    static const char *const wrong[] = {"",
                                        "tensors",
                                        "tensor=",
                                        "tensor=0",
                                        "tensor=2x",
                                        "summ",
                                        "pipelines",
                                        "sums=",
                                        "pipeline=2,",
                                        "pipeline=2,tensor",
                                        "pipeline,tensor=2",
                                        "pipeline=2,pipeline=2",
                                        "tensor=2,pipeline=2",
                                        "pipeline=2,tensor=2,sums=2",
                                        "pipeline=64,tensor=128"};
    play p = {.ranks = 2}, alone = {.ranks = 1};
    tn_model_options o = {.size = sizeof o, .parallel = "tensor", .training = true};
    ck_assert_ptr_null(tn_model_open(LLAMA, &o, &err));
    expect(TN_E_USAGE, "training is not cut");
    o = (tn_model_options){.size = sizeof o, .parallel = "tensor", .adapter = "x"};
    ck_assert_ptr_null(tn_model_open(LLAMA, &o, &err));
    expect(TN_E_USAGE, "adapter is not cut");
    o = (tn_model_options){.size = sizeof o, .parallel = "tensor"};
    ck_assert_ptr_null(tn_model_open(LLAMA, &o, &err));
    expect(TN_E_KERNEL, "no plugin connects ranks");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_ptr_null(open_as(&p, LLAMA, wrong[i]));
        expect(TN_E_USAGE, "is no way to cut a model");
    }
    ck_assert_int_eq(p.closed, 0);
    play none = {0}, beyond = {.rank = 2, .ranks = 2};
    ck_assert_ptr_null(open_as(&none, LLAMA, "tensor"));
    expect(TN_E_USAGE, "it has rank 0 of 0");
    ck_assert_ptr_null(open_as(&beyond, LLAMA, "tensor"));
    expect(TN_E_USAGE, "it has rank 2 of 2");
    ck_assert_ptr_null(open_as(&p, LLAMA, "tensor=3"));
    expect(TN_E_USAGE, "asks for 3 ranks, 2 were started");
    ck_assert_ptr_null(open_as(&alone, LLAMA, "tensor"));
    expect(TN_E_USAGE, "there is one process");
    ck_assert_ptr_null(open_as(&p, LLAMA, "pipeline"));
    expect(TN_E_USAGE, "it has no pass");
    ck_assert_ptr_null(open_as(&p, LLAMA, "pipeline=2,tensor=1"));
    expect(TN_E_USAGE, "it has no pass");
    ck_assert_ptr_null(open_as(&p, LLAMA, "pipeline=2,tensor=4"));
    expect(TN_E_USAGE, "it has no pass");
    ck_assert_ptr_null(open_as(&p, "tests/data/nothing", "tensor"));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_int_eq(p.closed, 5); /* an end that was taken over                                          */
}
END_TEST

START_TEST(what_a_model_of_ranks_refuses)
{
    play p = {.ranks = 2}, second = {.rank = 1, .ranks = 2};
    tn_model *m = open_as(&p, MIXTURE, "tensor");
    ck_assert_msg(m != NULL, "%s", err.message);
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    ck_assert_int_eq(info.rank, 0);
    ck_assert_int_eq(info.ranks, 2);
    ck_assert_int_gt(info.cut_bytes, info.whole_bytes);
    tn_config *config = tn_config_new();
    ck_assert_int_eq(tn_follow(m, config, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "for ranks but 0");
    ck_assert_ptr_null(tn_engine_new(m, NULL, &err));
    expect(TN_E_USAGE, "many texts");
    ck_assert_ptr_null(tn_trainer_open(m, NULL, &err));
    expect(TN_E_USAGE, "training");
    ck_assert_int_eq(tn_apply_kernel(m, config, "x", NULL, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "not told to other ranks");
    const tn_tensor x = {.dtype = TN_BF16, .ndim = 2, .shape = {0, info.hidden}, .stride = {info.hidden, 1}};
    ck_assert_int_eq(tn_site_forward(m, "model.layers.0.mlp", TN_OP_MOE_BLOCK, &x, 1, &x, 1, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "its parts are cut over ranks");
    tn_model_close(m);
    ck_assert_int_eq(p.closed, 1);
    m = open_as(&second, LLAMA, "tensor=2");
    ck_assert_msg(m != NULL, "%s", err.message);
    ck_assert_int_eq(tn_apply_kernels(m, config, "none", NULL, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "rank 0 applies kernels for all");
    tn_model_close(m);
    tn_config_free(config);
}
END_TEST

/* Whole MLPs of a narrower inner row, which kernels may have. */
START_TEST(sums_are_of_parts)
{
    play first = {.ranks = 2}, second = {.rank = 1, .ranks = 2};
    tn_model *m[2] = {open_as(&first, LLAMA, "sums"), open_as(&second, LLAMA, "sums=2")};
    tn_model_info info[2] = {{.size = sizeof info[0]}, {.size = sizeof info[0]}};
    float x[64] = {1}, y[64];
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(m[i] != NULL, "%s", err.message);
        ck_assert_int_eq(tn_model_get_info(m[i], &info[i]), TN_OK);
        ck_assert_int_gt(info[i].cut_bytes, info[i].whole_bytes);
        ck_assert_int_eq(info[i].hidden, 64);
        const tn_tensor in = tn_tensor_dense(x, info[i].dtype, 2, (int64_t[]){1, 64});
        const tn_tensor out = tn_tensor_dense(y, info[i].dtype, 2, (int64_t[]){1, 64});
        ck_assert_msg(tn_site_forward(m[i], "model.layers.0.mlp", TN_OP_MLP, &in, 1, &out, 1, &err) == TN_OK, "%s",
                      err.message);
        tn_model_close(m[i]);
    }
    ck_assert_int_eq(info[0].whole_bytes, info[1].whole_bytes);
    m[0] = open_as(&first, MIXTURE, "sums");
    m[1] = open_as(&second, MIXTURE, "experts=2");
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(m[i] != NULL, "%s", err.message);
        tn_model_get_info(m[i], &info[i]);
        tn_model_close(m[i]);
    }
    ck_assert_int_eq(info[0].own_experts, 2 * info[1].own_experts);
    ck_assert_int_lt(info[0].own_inner, 24);
    ck_assert_int_eq(info[1].own_inner, 24);
    ck_assert_int_eq(info[1].own_heads, info[0].own_heads);
    ck_assert_ptr_null(open_as(&first, "tests/data/models/gemma3n_text", "sums"));
    expect(TN_E_USAGE, "activation_sparsity_pattern");
}
END_TEST

/* check_models --parallel compares what crosses with what was foretold. */
START_TEST(what_is_foretold)
{
    play p = {.ranks = 2};
    tn_model *alone = tn_model_open(LLAMA, NULL, &err), *m = open_as(&p, LLAMA, "tensor");
    const tn_session_options o = {.size = sizeof o, .context = 64, .chunk = 16};
    tn_session *lone = tn_session_new(alone, &o, &err), *s = tn_session_new(m, &o, &err);
    tn_forecast one = {.size = sizeof one}, many = {.size = sizeof many};
    ck_assert_msg(lone && s, "%s", err.message);
    ck_assert_int_eq(tn_session_forecast(lone, 1, &one, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "not parallel");
    ck_assert_int_eq(tn_session_forecast(s, 0, &one, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "have 1 to 16");
    ck_assert_int_eq(tn_session_forecast(s, 17, &one, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "have 1 to 16");
    ck_assert_int_eq(tn_session_forecast(s, 1, &one, &err), TN_OK);
    ck_assert_int_eq(tn_session_forecast(s, 16, &many, &err), TN_OK);
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(m, &info);
    ck_assert_int_eq(one.gathers, 4 * info.layers + 1); /* four in a layer, and the logits                   */
    ck_assert_int_eq(many.gathers, one.gathers);
    ck_assert_int_gt(many.gathered_bytes, one.gathered_bytes);
    ck_assert_double_eq(many.weight_bytes, one.weight_bytes);
    ck_assert_double_gt(many.operations, 8 * one.operations);
    ck_assert_double_le(one.weight_bytes, (double)(info.cut_bytes + info.whole_bytes));
    tn_session_free(s);
    tn_session_free(lone);
    tn_model_close(m);
    tn_model_close(alone);
    m = open_as(&p, LLAMA, "sums");
    s = tn_session_new(m, &o, &err);
    ck_assert_msg(s != NULL, "%s", err.message);
    ck_assert_int_eq(tn_session_forecast(s, 16, &many, &err), TN_OK);
    ck_assert_int_eq(many.gathers, 2 * info.layers + 1); /* one behind each half                               */
    tn_session_free(s);
    tn_model_close(m);
    m = open_as(&p, "tests/data/models/cohere", "sums");
    s = tn_session_new(m, &o, &err);
    ck_assert_msg(s != NULL, "%s", err.message);
    tn_model_get_info(m, &info);
    ck_assert_int_eq(tn_session_forecast(s, 16, &many, &err), TN_OK);
    ck_assert_int_eq(many.gathers, info.layers + 1); /* halves side by side are one                            */
    tn_session_free(s);
    tn_model_close(m);
    play four = {.rank = 2, .ranks = 4, .passes = true};
    m = open_as(&four, LLAMA, "pipeline=2,sums=2");
    s = m ? tn_session_new(m, &o, &err) : NULL;
    ck_assert_msg(s != NULL, "%s", err.message);
    ck_assert_int_eq(tn_session_forecast(s, 16, &many, &err), TN_OK);
    tn_model_get_info(m, &info);
    ck_assert_int_eq(many.gathers, 1); /* the logits: the head is cut over all                                 */
    ck_assert_int_eq(many.stage_gathers, 2 * info.layers);
    ck_assert_int_gt(many.passes, 3); /* to the next stage, and from the last to the other                     */
    ck_assert_int_lt(many.stage_gathered_bytes, INT64_C(2) * 16 * 4 * info.hidden * info.layers * 2 + 1);
    tn_session_free(s);
    tn_model_close(m);
}
END_TEST

START_TEST(what_a_pipeline_refuses)
{
    play p = {.ranks = 2, .passes = true}, many = {.ranks = 3, .passes = true};
    ck_assert_ptr_null(open_as(&many, LLAMA, "pipeline"));
    expect(TN_E_USAGE, "num_hidden_layers is 2: pipeline takes at most 2 ranks, not 3; tensor=3");
    many.ranks = 8;
    ck_assert_ptr_null(open_as(&many, LLAMA, "pipeline"));
    expect(TN_E_USAGE, "num_hidden_layers is 2: pipeline takes at most 2 ranks, not 8; pipeline=2,tensor=4");
    ck_assert_ptr_null(open_as(&many, LLAMA, "pipeline=4,sums=2"));
    expect(TN_E_USAGE, "num_hidden_layers is 2: pipeline takes at most 2 stages, not 4; pipeline=2,tensor=4");
    ck_assert_ptr_null(open_as(&many, LLAMA, "pipeline=2,tensor=2"));
    expect(TN_E_USAGE, "pipeline=2,tensor=2 asks for 4 ranks, 8 were started");
    tn_model *m = open_as(&many, LLAMA, "pipeline=2,tensor=4"); /* what it said                          */
    ck_assert_msg(m != NULL, "%s", err.message);
    tn_model_close(m);
    m = open_as(&p, LLAMA, "pipeline=2");
    ck_assert_msg(m != NULL, "%s", err.message);
    tn_model_info info = {.size = sizeof info}, all = {.size = sizeof all};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    tn_model *one = tn_model_open(LLAMA, NULL, &err);
    ck_assert(one && tn_model_get_info(one, &all) == TN_OK);
    ck_assert_int_eq(info.parameters, all.parameters);
    const tn_tensor x = {.dtype = TN_F32, .ndim = 2, .shape = {0, info.hidden}, .stride = {info.hidden, 1}};
    ck_assert_int_eq(tn_site_forward(m, "model.layers.1.mlp", TN_OP_MLP, &x, 1, &x, 1, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "another rank has its layer");
    tn_session *s = tn_session_new(m, NULL, &err);
    ck_assert_msg(s != NULL, "%s", err.message);
    const int64_t ids[] = {1, 2, 3};
    float *hidden[16] = {NULL};
    const tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 3, .ids = ids};
    const tn_outputs out = {.size = sizeof out, .hidden = hidden};
    ck_assert_int_eq(tn_session_run(s, &batch, &out, &err), TN_E_USAGE);
    expect(TN_E_USAGE, "do not tell their states");
    tn_session_free(s);
    tn_model_close(one);
    tn_model_close(m);
}
END_TEST

/* The last bit of its first number follows from the number of rows. */
static tn_status counts_rows(const tn_call *call, tn_error *e)
{
    tn_status status = test_kernel_forward(call, e);
    if (status == TN_OK && tn_tensor_count(&call->out[0]) > 0)
        *(unsigned char *)call->out[0].data ^= call->site->dim[TN_DIM_OUT] / 8 % 2;
    return status;
}

START_TEST(kernels_of_parts)
{
    static const char *const ways[] = {NULL, "sums", "tensor", "pipeline"};
    test_kernel_add(&(test_kernel){.id = "counts", .op = TN_OP_LINEAR, .forward = counts_rows});
    test_kernel_add(&(test_kernel){.id = "right", .op = TN_OP_LINEAR});
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        play p = {.ranks = 2, .passes = true};
        tn_model *m = ways[i] ? open_as(&p, LLAMA, ways[i]) : tn_model_open(LLAMA, NULL, &err);
        ck_assert_msg(m != NULL, "%s", err.message);
        ck_assert_msg(tn_apply_kernels(m, NULL, "right", NULL, &err) == TN_OK, "%s", err.message);
        ck_assert_int_eq(tn_apply_kernels(m, NULL, "counts", NULL, &err), i < 2 ? TN_OK : TN_E_VERIFY);
        if (i >= 2)
            expect(TN_E_VERIFY, "for some rows or heads alone than among all");
        tn_model_close(m);
    }
}
END_TEST

START_TEST(ranks_that_are_not_alike)
{
    play p = {.ranks = 2, .unlike = true};
    tn_model *m = open_as(&p, LLAMA, "tensor");
    ck_assert_msg(m != NULL, "%s", err.message);
    ck_assert_ptr_null(tn_session_new(m, NULL, &err));
    expect(TN_E_INPUT, "another config.json");
    tn_model_close(m);
}
END_TEST

/* Towers run on rank 0 before the others hear of the call. */
START_TEST(pictures_that_do_not_fit)
{
    play p = {.ranks = 2};
    tn_model *m = open_as(&p, SEEING, "tensor");
    tn_session *s = m ? tn_session_new(m, NULL, &err) : NULL;
    ck_assert_msg(s != NULL, "%s", err.message);
    const int64_t ids[] = {3, 1, 4};
    const float features[8] = {0};
    const tn_pictures images = {.size = sizeof images, .features = features, .feature_count = 1};
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 3, .ids = ids, .images = &images};
    int tells = p.tells, gathers = p.gathers;
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_E_INPUT);
    expect(TN_E_INPUT, "no token of the batch is their image_token_id");
    ck_assert_int_eq(p.tells, tells);
    ck_assert_int_eq(p.gathers, gathers);
    batch.images = NULL;
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_OK);
    ck_assert_int_gt(p.tells, tells);
    tn_session_free(s);
    tn_model_close(m);
}
END_TEST

START_TEST(calls_that_cannot_be)
{
    static const struct {
        int64_t tokens, has, images, sounds, bytes;
    } cases[] = {{2, 0, 0, 0, 8},  {2, 0, 0, 0, 24},  {2, 1, 0, 0, 16}, {2, 4, 0, 0, 24},         {2, 8, 0, 0, 32},
                 {0, 0, 0, 0, 16}, {-1, 0, 0, 0, 16}, {2, 0, 1, 0, 16}, {INT64_MAX, 0, 0, 0, 16}, {2, 0, 0, -1, 16}};
    tn_config *config = tn_config_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char told[2 * sizeof(parallel_order) + 64] = "";
        const parallel_order orders[] = {
            {.kind = ORDER_NEW, .number = {1, 64}},
            {.kind = ORDER_RUN,
             .bytes = cases[i].bytes,
             .number = {cases[i].tokens, 0, cases[i].has, 0, 0, cases[i].images, 0, cases[i].sounds}}};
        memcpy(told, orders, sizeof orders);
        play p = {.rank = 1, .ranks = 2, .told = told};
        tn_model *m = open_as(&p, LLAMA, "tensor");
        ck_assert_msg(m != NULL, "%s", err.message);
        ck_assert_int_eq(tn_follow(m, config, &err), TN_E_INTERNAL);
        expect(TN_E_INTERNAL, "report this defect");
        tn_model_close(m);
    }
    tn_config_free(config);
}
END_TEST

/* The first gather is that of opening, the second of comparing, the third of a session; then come those of a run. */
START_TEST(how_many_ranks_a_text_names)
{
    static const struct {
        const char *text;
        int64_t ranks, each;
    } cases[] = {{"tensor=4", 4, 4},
                 {"sums=3", 3, 3},
                 {"replicas=2", 2, 2},
                 {"pipeline=4", 4, 1},
                 {"pipeline=2,tensor=4", 8, 4},
                 {"tensor", 0, 0},
                 {"pipeline", 0, 0},
                 {"pipeline=2,pipeline=2", 0, 0},
                 {"pipeline=2,tensor", 0, 0},
                 {"tensor=2,pipeline=2", 0, 0},
                 {"tensor=0", 0, 0},
                 {"tensor=4x", 0, 0},
                 {"pipeline=4096,tensor=4096", 0, 0},
                 {"other=2", 0, 0},
                 {"", 0, 0},
                 {NULL, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t each = -1;
        ck_assert_int_eq(tn_parallel_ranks(cases[i].text, &each), cases[i].ranks);
        ck_assert_int_eq(each, cases[i].each);
        ck_assert_int_eq(tn_parallel_ranks(cases[i].text, NULL), cases[i].ranks);
    }
}
END_TEST

START_TEST(a_group_that_fails)
{
    play p = {.ranks = 2, .fails_at = _i};
    const int64_t ids[] = {1, 2, 3};
    const tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 3, .ids = ids};
    const tn_outputs none = {.size = sizeof none};
    float *logits = calloc(1 << 20, sizeof *logits);
    const tn_outputs out = {.size = sizeof out, .last_logits = logits};
    tn_model *m = open_as(&p, LLAMA, "tensor");
    ck_assert_int_eq(m == NULL, _i == 1);
    tn_session *s = m ? tn_session_new(m, NULL, &err) : NULL;
    ck_assert_int_eq(s == NULL, _i < 4);
    if (s)
        ck_assert_int_eq(tn_session_run(s, &batch, &out, &err), TN_E_KERNEL);
    expect(TN_E_KERNEL, "rank 1 did not answer");
    if (s) { /* never again                                                                         */
        ck_assert_int_eq(tn_session_run(s, &batch, &none, &err), TN_E_KERNEL);
        expect(TN_E_KERNEL, "start all of them again");
        ck_assert_int_eq(p.gathers, _i);
    }
    tn_session_free(s);
    tn_model_close(m);
    free(logits);
    ck_assert_int_eq(p.closed, 0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("a model of ranks", 60);
    tcase_add_test(tc, what_does_not_go_together);
    tcase_add_test(tc, what_a_model_of_ranks_refuses);
    tcase_add_test(tc, sums_are_of_parts);
    tcase_add_test(tc, what_is_foretold);
    tcase_add_test(tc, what_a_pipeline_refuses);
    tcase_add_test(tc, kernels_of_parts);
    tcase_add_test(tc, ranks_that_are_not_alike);
    tcase_add_test(tc, pictures_that_do_not_fit);
    tcase_add_test(tc, calls_that_cannot_be);
    tcase_add_test(tc, how_many_ranks_a_text_names);
    tcase_add_loop_test(tc, a_group_that_fails, 1, 9);
    return suite_run();
}
