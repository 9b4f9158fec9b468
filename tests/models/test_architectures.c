/* What a model computes follows config.json: keys that are absent mean the architecture's defaults, keys that it does
 * not read change nothing, all others do. The golden cases say that the values that they have are read rightly. */
#include "broken.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 24 };

/* Logits of one row of tokens in f32. Owned. */
static float *logits_of(const char *folder, int64_t *count)
{
    tn_model *model = test_model_open(folder, "f32");
    int64_t vocab = test_model_vocab(model);
    int64_t ids[TOKENS];
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 11) % vocab;
    *count = TOKENS * vocab;
    float *logits = malloc((size_t)*count * sizeof *logits);
    tn_session *session = test_model_session(model, .context = TOKENS);
    test_model_run(session, TOKENS, ids, .logits = logits);
    tn_session_free(session);
    tn_model_close(model);
    return logits;
}

/* Are the logits of the two folders the same bits? */
static bool same_logits(const char *a, const char *b)
{
    int64_t a_count, b_count;
    float *x = logits_of(a, &a_count), *y = logits_of(b, &b_count);
    ck_assert_int_eq(a_count, b_count);
    bool same = !memcmp(x, y, (size_t)a_count * sizeof *x);
    free(x);
    free(y);
    return same;
}

static const struct {
    const char *model, *key, *value; /* value NULL: the key is taken away                          */
    bool same;
} keys[] = {
    {"gemma2", "layer_types", NULL, true},
    {"gemma2", "layer_types", "[\"full_attention\", \"full_attention\", \"full_attention\"]", false},
    {"gemma2", "hidden_act", "\"relu\"", true},
    {"gemma2", "hidden_activation", NULL, true},
    {"gemma2", "hidden_activation", "\"silu\"", false},
    {"gemma2", "query_pre_attn_scalar", NULL, false},
    {"gemma2", "query_pre_attn_scalar", "24.0", false},
    {"gemma2", "attn_logit_softcapping", "null", false},
    {"gemma2", "attn_logit_softcapping", "50", false},
    {"gemma2", "final_logit_softcapping", "null", false},
    {"gemma2", "final_logit_softcapping", NULL, false},
    {"gemma2", "sliding_window", "null", false},
    {"gemma2", "tie_word_embeddings", NULL, true},
    {"gemma2", "rms_norm_eps", NULL, true},
    {"mixtral", "rope_parameters/rope_theta", NULL, true},
    {"mixtral", "rope_theta", "10000", true}, /* rope_parameters have it                            */
    {"mixtral", "rms_norm_eps", NULL, true},
    {"mixtral", "num_local_experts", NULL, true},
    {"mixtral", "num_experts_per_tok", NULL, true},
    {"mixtral", "num_experts_per_tok", "3", false},
    {"mixtral", "sliding_window", NULL, true},
    {"mixtral", "sliding_window", "4", false},
    {"mixtral", "hidden_act", "\"gelu\"", false},
    {"qwen2_sliding", "use_sliding_window", "false", false},
    {"qwen2_sliding", "max_window_layers", "0", false},
    {"qwen3_moe", "norm_topk_prob", NULL, false},
    {"qwen3_moe", "hidden_activation", "\"relu\"", true},
    {"llama", "rope_parameters/rope_theta", "20000", false},
    {"llama_yarn", "rope_parameters/factor", "2", false},
};

START_TEST(a_key)
{
    char *whole = broken_copy(keys[_i].model), *changed = broken_copy(keys[_i].model);
    broken_json(changed, "config.json", keys[_i].key, keys[_i].value);
    bool same = same_logits(whole, changed);
    ck_assert_msg(same == keys[_i].same, "%s: %s = %s leaves the logits %s", keys[_i].model, keys[_i].key,
                  keys[_i].value ? keys[_i].value : "(absent)", same ? "as they are" : "different");
}
END_TEST

/* Replaces a part of all names in a file's header. new is no longer than old; spaces behind make up for it. */
static void rename_tensors(const char *folder, const char *old, const char *new)
{
    size_t size, old_size = strlen(old), new_size = strlen(new), length = 0;
    char *path = tempdir_at(folder, "model.safetensors"), *file = tempdir_read(path, &size);
    for (int i = 0; i < 8; i++)
        length |= (size_t)(unsigned char)file[i] << (8 * i);
    char *to = file + 8, *end = file + 8 + length;
    int found = 0;
    for (const char *from = file + 8; from < end;) {
        bool here = (size_t)(end - from) >= old_size && !memcmp(from, old, old_size);
        memmove(to, here ? new : from, here ? new_size : 1);
        from += here ? old_size : 1;
        to += here ? new_size : 1;
        found += here;
    }
    memset(to, ' ', (size_t)(end - to));
    ck_assert_int_gt(found, 0);
    tempdir_write(path, file, size);
    free(file);
}

/* transformers loads files that have the names of its modules as well. */
START_TEST(names_of_the_tree)
{
    char *whole = broken_copy("mixtral"), *renamed = broken_copy("mixtral");
    rename_tensors(renamed, ".block_sparse_moe.", ".mlp.");
    ck_assert(same_logits(whole, renamed));
}
END_TEST

/* Writes the file again with every tensor whose name ends in suffix turned: its last two dimensions change over. */
static int turn_tensors(const char *folder, const char *suffix)
{
    enum { MOST = 512 };
    static tn_named_tensor list[MOST];
    static char *made[MOST];
    char *path = tempdir_at(folder, "model.safetensors"), *other = tempdir_at(folder, "other");
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open(path, &err);
    ck_assert_msg(file != NULL, "%s: %s", err.where, err.message);
    size_t count = tn_safetensors_count(file);
    int turned = 0;
    ck_assert_uint_le(count, MOST);
    for (size_t i = 0; i < count; i++) {
        tn_tensor *t = &list[i].tensor;
        list[i].name = tn_safetensors_name(file, i);
        ck_assert(tn_safetensors_get(file, list[i].name, t));
        size_t length = strlen(list[i].name), size = tn_dtype_size(t->dtype);
        if (length < strlen(suffix) || strcmp(list[i].name + length - strlen(suffix), suffix) != 0)
            continue;
        ck_assert_int_eq(t->ndim, 3);
        int64_t m = t->shape[1], n = t->shape[2], shape[] = {t->shape[0], n, m};
        char *data = malloc((size_t)(shape[0] * m * n) * size);
        for (int64_t at = 0; at < shape[0] * m * n; at++) {
            int64_t stack = at / (m * n), row = at / n % m, column = at % n;
            memcpy(data + (size_t)((stack * n + column) * m + row) * size, (const char *)t->data + (size_t)at * size,
                   size);
        }
        *t = tn_tensor_dense(data, t->dtype, 3, shape);
        made[turned++] = data;
    }
    ck_assert_int_eq(tn_safetensors_write(other, list, count, &err), TN_OK);
    tn_safetensors_close(file);
    for (int i = 0; i < turned; i++)
        free(made[i]);
    ck_assert_int_eq(rename(other, path), 0);
    return turned;
}

/* Stacks of experts: a file may have either of the two in the other order. Turned while loading, one of them alone
 * gives the bits that it gives where the file has it so. */
START_TEST(stacks_in_the_other_order)
{
    static const char *const suffixes[] = {"experts.down_proj", "experts.gate_up_proj"};
    char *both = broken_copy("qwen3_vl_moe");
    for (int i = 0; i < 2; i++)
        ck_assert_int_gt(turn_tensors(both, suffixes[i]), 0);
    for (int i = 0; i < 2; i++) {
        char *one = broken_copy("qwen3_vl_moe");
        ck_assert_int_gt(turn_tensors(one, suffixes[i]), 0);
        ck_assert_msg(same_logits(both, one), "%s", suffixes[i]);
    }
}
END_TEST

/* Ends loading at the call whose number ctx points to. */
static int stop_at(void *ctx, const char *what, int64_t done, int64_t total)
{
    int *left = ctx;
    ck_assert(!strcmp(what, "loading") && done > 0 && done <= total);
    return --*left == 0;
}

START_TEST(loading_can_be_cancelled)
{
    int left = 3;
    tn_error err = TN_ERROR_INIT;
    tn_model_options o = {.size = sizeof o, .progress = stop_at, .progress_ctx = &left};
    ck_assert_ptr_null(tn_model_open("tests/data/models/llama", &o, &err));
    ck_assert_msg(err.code == TN_E_CANCELLED && strstr(err.message, "loading was cancelled"), "%s", err.message);
    ck_assert_int_eq(left, 0);
    left = 0; /* never */
    tn_model *m = tn_model_open("tests/data/models/llama", &o, NULL);
    ck_assert_ptr_nonnull(m);
    tn_model_close(m);
}
END_TEST

/* lfm2 with conv_bias, biases of its own, and an embedding of zeros for token 0. */
static char *biased_convolutions(void)
{
    enum { HIDDEN = 64, MOST = 64 };
    static float biases[3][3 * HIDDEN];
    static const char *const parts[] = {"conv", "in_proj", "out_proj"};
    const int64_t sizes[] = {HIDDEN, 3 * HIDDEN, HIDDEN};
    static char names[6][64];
    tn_error err = TN_ERROR_INIT;
    tn_named_tensor tensors[MOST];
    char *folder = broken_copy("lfm2"), *to = tempdir_at(folder, "model.safetensors");
    tn_safetensors *file = tn_safetensors_open("tests/data/models/lfm2/model.safetensors", &err);
    size_t count = tn_safetensors_count(file);
    ck_assert_uint_le(count + 6, MOST);
    for (size_t i = 0; i < count; i++) {
        tensors[i].name = tn_safetensors_name(file, i);
        tn_safetensors_get(file, tensors[i].name, &tensors[i].tensor);
        tn_tensor *t = &tensors[i].tensor;
        if (!strstr(tensors[i].name, "embed_tokens"))
            continue;
        size_t row = (size_t)t->shape[1] * tn_dtype_size(t->dtype), bytes = (size_t)t->shape[0] * row;
        char *copy = malloc(bytes);
        memcpy(copy, t->data, bytes);
        memset(copy, 0, row);
        t->data = copy;
        suite_keep(copy, free);
    }
    for (int i = 0; i < 6; i++) {
        float *bias = biases[i % 3];
        for (int64_t j = 0; j < sizes[i % 3]; j++)
            bias[j] = (float)(j % 11 - 5) / 4;
        snprintf(names[i], sizeof names[i], "model.layers.%d.conv.%s.bias", i / 3 * 2, parts[i % 3]);
        tensors[count].name = names[i];
        tensors[count++].tensor = tn_tensor_dense(bias, TN_F32, 1, &sizes[i % 3]);
    }
    ck_assert_msg(tn_safetensors_write(to, tensors, count, &err) == TN_OK, "%s", err.message);
    tn_safetensors_close(file);
    broken_json(folder, "config.json", "conv_bias", "true");
    return folder;
}

/* What the projection makes of padding, its bias, reaches the convolution of the tokens behind it, as in transformers:
 * what a token whose state is zero would do. */
START_TEST(biased_convolutions_see_padding)
{
    enum { ROW = 6, BEFORE = 3, HIDDEN = 64 };
    const int64_t ids[2 * ROW] = {0, 0, 0, 5, 77, 130, 9, 9, 9, 5, 77, 130};
    const int64_t mask[2 * ROW] = {1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1};
    float first[2 * ROW * HIDDEN], alone[BEFORE * HIDDEN];
    float *hidden[4] = {NULL, first, NULL, NULL}, *short_hidden[4] = {NULL, alone, NULL, NULL};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model_kept(test_model_open(biased_convolutions(), "f32"));
    tn_session *s = test_session_kept(test_model_session(m, .rows = 2, .context = ROW));
    tn_batch batch = {.size = sizeof batch, .rows = 2, .tokens = ROW, .ids = ids, .mask = mask};
    tn_outputs out = {.size = sizeof out, .hidden = hidden};
    ck_assert_msg(tn_session_run(s, &batch, &out, &err) == TN_OK, "%s", err.message);
    tn_session *one = test_session_kept(test_model_session(m, .context = ROW));
    test_model_run(one, BEFORE, ids + BEFORE, .hidden = short_hidden);
    double apart = 0;
    for (int i = BEFORE * HIDDEN; i < ROW * HIDDEN; i++) {
        ck_assert_double_eq_tol((double)first[i], (double)first[ROW * HIDDEN + i], 1e-5);
        double d = (double)first[i] - (double)alone[i - BEFORE * HIDDEN];
        apart = d * d > apart ? d * d : apart;
    }
    ck_assert_double_gt(apart, 1e-4);
}
END_TEST

/* transformers' Gemma4TextConfig halves the window and adds one; its mask has the token at that distance, too. */
START_TEST(gemma4_sees_both_sides)
{
    char *folder = broken_copy("gemma4_text");
    broken_json(folder, "config.json", "use_bidirectional_attention", "\"all\"");
    const tn_model *m = test_model(folder, .dtype = "f32");
    const tn_site *sliding = &test_model_site(m, "model.layers.0.self_attn", TN_OP_ATTENTION)->site;
    const tn_site *full = &test_model_site(m, "model.layers.3.self_attn", TN_OP_ATTENTION)->site;
    ck_assert(sliding->features & TN_HAS_BOTH_SIDES && full->features & TN_HAS_BOTH_SIDES);
    ck_assert_int_eq(sliding->dim[TN_DIM_WINDOW], 8 / 2 + 2);
    ck_assert_int_eq(full->dim[TN_DIM_WINDOW], 0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("architectures", 60);
    tcase_add_loop_test(tc, a_key, 0, (int)(sizeof keys / sizeof keys[0]));
    suite_add(tc, gemma4_sees_both_sides, names_of_the_tree, stacks_in_the_other_order, loading_can_be_cancelled,
              biased_convolutions_see_padding);
    return suite_run();
}
