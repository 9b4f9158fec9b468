/* Adapters: what a new one changes (nothing), what is trained, files written and read again, merged weights, dropout,
 * peft's rules for targets, and what is refused. That gradients are torch's is check_training's to show. */
#include "open/model.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static const int64_t ids[] = {9, 4, 7, 30, 12, 5, 21, 8, 40, 3};
enum { TOKENS = sizeof ids / sizeof *ids };

#define LORA(...)                                                                                                      \
    &(tn_lora)                                                                                                         \
    {                                                                                                                  \
        .size = sizeof(tn_lora), .seed = 3, __VA_ARGS__                                                                \
    }

static tn_trainer *trainer_of(tn_model *m)
{
    tn_error err = TN_ERROR_INIT;
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    suite_keep(t, (void (*)(void *))tn_trainer_close);
    return t;
}

/* Of a text of so many tokens, its own over and over. */
static double loss_of_longer(tn_trainer *t, int64_t tokens)
{
    tn_error err = TN_ERROR_INIT;
    tn_train_loss loss = {.size = sizeof loss};
    int64_t longer[200];
    ck_assert_int_le(tokens, 200);
    for (int64_t i = 0; i < tokens; i++)
        longer[i] = ids[i % TOKENS];
    const tn_train_texts texts = {
        .size = sizeof texts, .ids = longer, .labels = longer, .lengths = &tokens, .count = 1};
    ck_assert_msg(tn_trainer_backward(t, &texts, &loss, &err) == TN_OK, "%s: %s", err.where, err.message);
    return loss.loss;
}

static double loss_of(tn_trainer *t)
{
    return loss_of_longer(t, TOKENS);
}

static void step(tn_trainer *t, double rate)
{
    tn_error err = TN_ERROR_INIT;
    const tn_train_step s = {.size = sizeof s, .rate = rate};
    ck_assert_msg(tn_trainer_step(t, &s, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
}

/* A trained adapter's folder, B no longer zero. */
static char *trained(const char *model, const tn_lora *lora)
{
    tn_error err = TN_ERROR_INIT;
    tn_trainer *t = trainer_of(test_model(model, .dtype = "f32", .training = true, .lora = lora));
    char *folder = tempdir_at(tempdir_new(), "adapter");
    for (int i = 0; i < 3; i++) {
        loss_of(t);
        step(t, 1e-2);
    }
    ck_assert_msg(tn_trainer_save_adapter(t, folder, &err) == TN_OK, "%s: %s", err.where, err.message);
    return folder;
}

/* ---- what is trained ------------------------------------------------------------------------------ */

START_TEST(a_new_adapter_changes_nothing_and_is_all_that_is_trained)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor a, b, w;
    tn_trainer *plain = trainer_of(test_model("llama", .dtype = "f32", .training = true));
    tn_trainer *t = trainer_of(test_model("llama", .dtype = "f32", .training = true, .lora = LORA(.rank = 4)));
    ck_assert(loss_of(t) == loss_of(plain));
    const char *const name = "base_model.model.model.layers.0.self_attn.q_proj.lora_%c.weight";
    char of[2][128];
    for (int i = 0; i < 2; i++)
        snprintf(of[i], sizeof of[i], name, "AB"[i]);
    ck_assert_int_eq(tn_trainer_gradient(t, of[0], &a, &err), TN_OK);
    ck_assert_int_eq(tn_trainer_gradient(t, of[1], &b, &err), TN_OK);
    ck_assert(a.shape[0] == 4 && b.shape[1] == 4);
    double of_a = 0, of_b = 0;
    for (int64_t i = 0; i < tn_tensor_count(&a); i++)
        of_a += fabs((double)((float *)a.data)[i]);
    for (int64_t i = 0; i < tn_tensor_count(&b); i++)
        of_b += fabs((double)((float *)b.data)[i]);
    ck_assert(of_a == 0 && of_b > 0);
    ck_assert_int_eq(tn_trainer_gradient(t, "model.layers.0.self_attn.q_proj.weight", &w, &err), TN_E_USAGE);
    ck_assert_int_eq(tn_trainer_gradient(t, "lm_head.weight", &w, NULL), TN_E_USAGE);
}
END_TEST

static const char *const models[] = {"llama", "qwen3_moe", "phi3_longrope", "gpt2", "qwen2_moe"};
enum { MODELS = sizeof models / sizeof *models };

/* Names of a mixture's projections are its experts', which share their factors. */
static const tn_lora *lora_of(int i)
{
    static const tn_lora all = {.size = sizeof all, .rank = 3, .seed = 5},
                         mixture = {
                             .size = sizeof mixture, .rank = 2, .seed = 5, .targets = "q_proj,up_proj,down_proj"};
    return strstr(models[i], "moe") ? &mixture : &all;
}

START_TEST(steps_make_the_loss_smaller_and_files_say_what_was_trained)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model(models[_i], .dtype = "f32", .training = true, .lora = lora_of(_i));
    tn_trainer *t = trainer_of(m);
    double first = loss_of(t);
    for (int i = 0; i < 5; i++) {
        step(t, 1e-2);
        loss_of(t);
    }
    tn_trainer_clear(t);
    double last = loss_of(t);
    ck_assert_msg(last < 0.99 * first, "%s: %g to %g", models[_i], first, last);
    char *folder = tempdir_at(tempdir_new(), "adapter");
    ck_assert_msg(tn_trainer_save_adapter(t, folder, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_int_eq(tn_trainer_save_adapter(t, folder, NULL), TN_E_INPUT);
    ck_assert_int_eq(tn_trainer_save(t, "nowhere", NULL), TN_E_USAGE);
    tn_trainer *u = trainer_of(test_model(models[_i], .dtype = "f32", .training = true, .adapter = folder));
    ck_assert(loss_of(u) == last);
}
END_TEST

static void logits_of(tn_model *m, float *logits)
{
    tn_session *s = test_session(m, .context = 16);
    test_model_run(s, TOKENS, ids, .logits = logits);
}

START_TEST(merged_weights_give_what_the_adapter_beside_them_gave)
{
    tn_error err = TN_ERROR_INIT;
    const char *adapter = trained(models[_i], lora_of(_i)), *merged = tempdir_at(tempdir_new(), "merged");
    tn_model *beside = test_model(models[_i], .dtype = "f32", .adapter = adapter);
    tn_model *plain = test_model(models[_i], .dtype = "f32");
    ck_assert_msg(tn_model_merge(beside, merged, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_int_eq(tn_model_merge(plain, "nowhere", NULL), TN_E_USAGE);
    tn_model *whole = test_model(merged, .dtype = "f32");
    size_t count = (size_t)(TOKENS * test_model_vocab(beside));
    float *x = calloc(3 * count, sizeof *x), *y = x + count, *z = y + count;
    suite_keep(x, free);
    logits_of(beside, x);
    logits_of(whole, y);
    logits_of(plain, z);
    double most = 0, off = 0, moved = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)x[i]));
        off = fmax(off, fabs((double)x[i] - (double)y[i]));
        moved = fmax(moved, fabs((double)x[i] - (double)z[i]));
    }
    ck_assert_msg(off <= 1e-5 * most && moved > 1e-3 * most, "%s: off by %g, moved by %g of %g", models[_i], off, moved,
                  most);
}
END_TEST

/* ---- slopes --------------------------------------------------------------------------------------- */

/* A copy of an adapter whose tensor of that number is moved along its gradient. */
static char *moved(const char *adapter, const tn_tensor *gradient, const char *name, double by)
{
    char *folder = tempdir_new();
    tempdir_copy(adapter, folder);
    char *path = tempdir_at(folder, "adapter_model.safetensors");
    tn_safetensors *file = tn_safetensors_open(tempdir_at(adapter, "adapter_model.safetensors"), NULL);
    size_t count = tn_safetensors_count(file);
    tn_named_tensor *list = calloc(count, sizeof *list);
    float *values = NULL;
    for (size_t i = 0; i < count; i++) {
        list[i].name = tn_safetensors_name(file, i);
        tn_safetensors_get(file, list[i].name, &list[i].tensor);
        if (strcmp(list[i].name, name) != 0)
            continue;
        const tn_tensor *t = &list[i].tensor;
        values = malloc((size_t)tn_tensor_count(t) * sizeof *values);
        for (int64_t k = 0; k < tn_tensor_count(t); k++)
            values[k] =
                ((const float *)t->data)[k] +
                (float)by *
                    ((const float *)
                         gradient->data)[k / t->shape[1] * gradient->stride[0] + k % t->shape[1] * gradient->stride[1]];
        list[i].tensor.data = values;
    }
    remove(path);
    ck_assert_int_eq(tn_safetensors_write(path, list, count, NULL), TN_OK);
    tn_safetensors_close(file);
    free(list);
    free(values);
    return folder;
}

static double loss_with(const char *model, const char *adapter)
{
    return loss_of(trainer_of(test_model(model, .dtype = "f32", .training = true, .adapter = adapter)));
}

/* The gradient of every kind of factor against what the loss does when it is moved along it. */
START_TEST(gradients_are_slopes)
{
    static const struct {
        const char *model, *name;
    } cases[] = {{"llama", "model.layers.1.mlp.down_proj.lora_A.weight"},
                 {"llama", "model.layers.0.self_attn.k_proj.lora_B.weight"},
                 {"phi3_longrope", "model.layers.0.mlp.gate_up_proj.lora_B.weight"},
                 {"gpt2", "transformer.h.0.attn.c_attn.lora_A.weight"},
                 {"qwen3_moe", "model.layers.0.mlp.experts.base_layer.lora_A.weight"},
                 {"qwen3_moe", "model.layers.0.mlp.experts.base_layer.lora_B.weight"},
                 {"qwen3_moe", "model.layers.0.mlp.experts.lora_A.weight"},
                 {"qwen3_moe", "model.layers.0.mlp.experts.lora_B.weight"}};
    const char *model = cases[_i].model;
    int which = 0;
    while (strcmp(models[which], model) != 0)
        which++;
    tn_error err = TN_ERROR_INIT;
    tn_tensor g;
    char name[160];
    const char *adapter = trained(model, lora_of(which));
    tn_trainer *t = trainer_of(test_model(model, .dtype = "f32", .training = true, .adapter = adapter));
    loss_of(t);
    snprintf(name, sizeof name, "base_model.model.%s", cases[_i].name);
    ck_assert_msg(tn_trainer_gradient(t, name, &g, &err) == TN_OK, "%s: %s", err.where, err.message);
    double squares = 0;
    for (int64_t i = 0; i < g.shape[0]; i++)
        for (int64_t k = 0; k < g.shape[1]; k++)
            squares += pow((double)((float *)g.data)[i * g.stride[0] + k * g.stride[1]], 2);
    double by = 2e-2 / sqrt(squares); /* a change of the loss of 2 % of the gradient's norm               */
    double up = loss_with(model, moved(adapter, &g, name, by)), down = loss_with(model, moved(adapter, &g, name, -by));
    double slope = (up - down) / (2 * by);
    ck_assert_msg(fabs(slope / squares - 1) < 1e-2, "%s: slope %g, gradient %g", name, slope, squares);
}
END_TEST

/* ---- dropout -------------------------------------------------------------------------------------- */

START_TEST(what_is_dropped_follows_from_seed_and_call_alone)
{
    double first[2], second[2];
    for (int i = 0; i < 2; i++) {
        tn_trainer *t = trainer_of(test_model("llama", .dtype = "f32", .training = true, .threads = 1 + i,
                                              .lora = LORA(.dropout = 0.5, .rank = 4)));
        loss_of(t);
        step(t, 1e-2);
        first[i] = loss_of(t);
        second[i] = loss_of(t);
    }
    ck_assert(first[0] == first[1] && second[0] == second[1]);
    ck_assert(first[0] != second[0]);
}
END_TEST

/* A layer that is computed again drops the same. */
/* Of texts, too, whose logits are made in several pieces. */
START_TEST(what_is_dropped_is_dropped_again)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = "f32", .training = true, .lora = LORA(.dropout = 0.5, .rank = 4));
    tn_trainer *t[2];
    double loss[2], norm[2];
    for (int i = 0; i < 2; i++) {
        const tn_train_options options = {.size = sizeof options, .keep = i ? TN_KEEP_LAYERS : TN_KEEP_ALL};
        const tn_train_step step = {.size = sizeof step};
        t[i] = tn_trainer_open(m, &options, &err);
        ck_assert_msg(t[i] != NULL, "%s", err.message);
        loss[i] = loss_of_longer(t[i], 200);
        ck_assert_int_eq(tn_trainer_step(t[i], &step, &norm[i], &err), TN_OK);
    }
    ck_assert_double_eq(loss[0], loss[1]);
    ck_assert_double_eq(norm[0], norm[1]);
    tn_trainer_close(t[0]);
    tn_trainer_close(t[1]);
}
END_TEST

/* While it is not trained nothing is dropped. */
START_TEST(sessions_drop_nothing)
{
    tn_model *m = test_model("llama", .dtype = "f32", .training = true, .lora = LORA(.dropout = 0.5));
    tn_trainer *t = trainer_of(m);
    loss_of(t);
    step(t, 1e-2);
    size_t count = (size_t)(TOKENS * test_model_vocab(m));
    float *x = calloc(2 * count, sizeof *x);
    suite_keep(x, free);
    logits_of(m, x);
    logits_of(m, x + count);
    ck_assert(memcmp(x, x + count, count * sizeof *x) == 0);
}
END_TEST

/* ---- targets -------------------------------------------------------------------------------------- */

static const struct {
    const char *config, *path;
    bool is;
} targets[] = {
    {"\"target_modules\": [\"q_proj\"]", "model.layers.0.self_attn.q_proj", true},
    {"\"target_modules\": [\"proj\"]", "model.layers.0.self_attn.q_proj", false},
    {"\"target_modules\": [\"self_attn.q_proj\"]", "model.layers.0.self_attn.q_proj", true},
    {"\"target_modules\": \".*layers\\\\.[02]\\\\..*_proj\"", "model.layers.2.mlp.up_proj", true},
    {"\"target_modules\": \".*layers\\\\.[02]\\\\..*_proj\"", "model.layers.1.mlp.up_proj", false},
    {"\"target_modules\": \"q_proj\"", "model.layers.0.self_attn.q_proj", false},
    {"\"target_modules\": \"all-linear\"", "model.layers.0.self_attn.q_proj", true},
    {"\"target_modules\": \"all-linear\"", "lm_head", false},
    {"\"target_modules\": [\"lm_head\"]", "lm_head", true},
    {"\"target_modules\": \"all-linear\", \"exclude_modules\": [\"up_proj\"]", "model.layers.0.mlp.up_proj", false},
    {"\"target_modules\": \"all-linear\", \"exclude_modules\": \".*mlp.*\"", "model.layers.0.mlp.up_proj", false},
    {"\"target_modules\": [\"up_proj\"], \"layers_to_transform\": [1, 2]", "model.layers.1.mlp.up_proj", true},
    {"\"target_modules\": [\"up_proj\"], \"layers_to_transform\": 2", "model.layers.1.mlp.up_proj", false},
    {"\"target_modules\": [\"up_proj\"], \"layers_to_transform\": [1], \"layers_pattern\": \"layers\"",
     "model.layers.1.mlp.up_proj", true},
    {"\"target_modules\": [\"up_proj\"], \"layers_to_transform\": [1], \"layers_pattern\": [\"h\"]",
     "model.layers.1.mlp.up_proj", false}};

START_TEST(targets_are_found_as_peft_finds_them)
{
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    peft_config c;
    char text[512], *folder = tempdir_new();
    snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"r\": 4, %s}", targets[_i].config);
    tempdir_put(folder, "adapter_config.json", text);
    ck_assert_msg(peft_config_open(&c, folder, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(peft_targets(&c, targets[_i].path, true, &status, &err) == targets[_i].is, "%s: %s", text,
                  targets[_i].path);
    ck_assert_msg(status == TN_OK, "%s", err.message);
    peft_config_close(&c);
}
END_TEST

START_TEST(patterns_give_ranks_and_factors)
{
    static const char text[] =
        "{\"r\": 4, \"lora_alpha\": 8, \"rank_pattern\": {\"self_attn\\\\.q_proj\": 16, \"x\": 1}, "
        "\"alpha_pattern\": {\"up_proj\": 2}, \"use_rslora\": %s}";
    for (int rslora = 0; rslora < 2; rslora++) {
        tn_status status = TN_OK;
        peft_config c;
        char own[512], *folder = tempdir_new();
        snprintf(own, sizeof own, text, rslora ? "true" : "false");
        tempdir_put(folder, "adapter_config.json", own);
        ck_assert_int_eq(peft_config_open(&c, folder, NULL), TN_OK);
        peft_scale q = peft_scale_of(&c, "model.layers.0.self_attn.q_proj", &status, NULL);
        peft_scale up = peft_scale_of(&c, "model.layers.0.mlp.up_proj", &status, NULL);
        peft_scale other = peft_scale_of(&c, "model.layers.0.mlp.group_proj", &status, NULL);
        ck_assert_int_eq(status, TN_OK);
        ck_assert(q.rank == 16 && q.scale == (rslora ? 2 : 0.5));
        ck_assert(up.rank == 4 && up.scale == (rslora ? 1 : 0.5));
        ck_assert(other.rank == 4 && other.scale == (rslora ? 4 : 2));
        peft_config_close(&c);
    }
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------------ */

static const struct {
    const char *config, *words;
} refused[] = {{"\"use_dora\": true", "key 'use_dora' is true, which is not supported"},
               {"\"bias\": \"all\"", "key 'bias' is 'all'"},
               {"\"lora_bias\": true", "key 'lora_bias'"},
               {"\"modules_to_save\": [\"lm_head\"]", "key 'modules_to_save'"},
               {"\"peft_type\": \"IA3\"", "key 'peft_type' is 'IA3'"},
               {"\"init_lora_weights\": \"pissa\"", "key 'init_lora_weights' is 'pissa'"},
               {"\"trainable_token_indices\": [1]", "key 'trainable_token_indices'"},
               {"\"r\": 0", "key 'r'"},
               {"\"lora_dropout\": 1", "key 'lora_dropout'"},
               {"\"target_modules\": \"(q_proj\"", "the regular expression '(q_proj' is not usable"},
               {"\"target_modules\": [3]", "key 'target_modules'"},
               {"\"target_modules\": [\"k_proj\"]", "belongs to no module that target_modules"},
               {"\"rank_pattern\": {\"q_proj\": 5}", "is of rank 2, adapter_config.json says 5"},
               {"\"r\": 3", "is of rank 2, adapter_config.json says 3"}};

/* Keys of the first one come before: JSON's last one would win, and twice is an error. */
START_TEST(what_is_not_supported_is_refused_by_key)
{
    tn_error err = TN_ERROR_INIT;
    char text[512], *folder = trained("llama", LORA(.rank = 2, .targets = "q_proj"));
    bool has_r = strstr(refused[_i].config, "\"r\""), has_targets = strstr(refused[_i].config, "target_modules");
    snprintf(text, sizeof text, "{%s%s%s}", has_r ? "" : "\"r\": 2, ",
             has_targets ? "" : "\"target_modules\": [\"q_proj\"], ", refused[_i].config);
    tempdir_put(folder, "adapter_config.json", text);
    tn_model *m = tn_model_open("tests/data/models/llama",
                                &(tn_model_options){.size = sizeof(tn_model_options), .adapter = folder}, &err);
    ck_assert_msg(m == NULL, "%s", text);
    ck_assert_int_eq(err.code, TN_E_INPUT);
    suite_expect_in(err.message, refused[_i].words);
}
END_TEST

static void expect_misfit(const char *name, int64_t rows, int64_t columns, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    float values[4096] = {0};
    char *folder = trained("llama", LORA(.rank = 2, .targets = "q_proj"));
    char *path = tempdir_at(folder, "adapter_model.safetensors");
    const tn_named_tensor one = {name, tn_tensor_dense(values, TN_F32, 2, (int64_t[]){rows, columns})};
    remove(path);
    ck_assert_int_eq(tn_safetensors_write(path, &one, 1, NULL), TN_OK);
    tn_model *m = tn_model_open("tests/data/models/llama",
                                &(tn_model_options){.size = sizeof(tn_model_options), .adapter = folder}, &err);
    ck_assert(m == NULL);
    ck_assert_int_eq(err.code, TN_E_INPUT);
    char both[sizeof err.where + sizeof err.message + 2];
    snprintf(both, sizeof both, "%s: %s", err.where, err.message);
    suite_expect_in(both, words);
}

START_TEST(what_does_not_fit_is_named)
{
    expect_misfit("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, 3,
                  "model.layers.0.self_attn.q_proj.lora_A.weight: has shape [2,3], the model takes [any,64] there");
    expect_misfit("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", 2, 3,
                  "layers.9.self_attn.q_proj.lora_A.weight: of shape [2,3]: the model has no product of that name");
    expect_misfit("base_model.model.model.embed_tokens.lora_embedding_A", 2, 3,
                  "embed_tokens.lora_embedding_A: of shape");
    expect_misfit("model.layers.0.self_attn.q_proj.lora_A.weight", 2, 3, "names begin with base_model.model.");
}
END_TEST

START_TEST(options_that_cannot_be)
{
    tn_error err = TN_ERROR_INIT;
    const tn_model_options both = {.size = sizeof both, .adapter = "x", .lora = LORA(.rank = 1)};
    ck_assert_ptr_null(tn_model_open("tests/data/models/llama", &both, &err));
    ck_assert_int_eq(err.code, TN_E_USAGE);
    static const tn_lora wrong[] = {{.size = sizeof *wrong, .rank = -1},
                                    {.size = sizeof *wrong, .dropout = 1},
                                    {.size = sizeof *wrong, .alpha = INFINITY},
                                    {.size = sizeof *wrong, .targets = "nothing"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const tn_model_options o = {.size = sizeof o, .lora = &wrong[i]};
        tn_error_clear(&err);
        ck_assert_ptr_null(tn_model_open("tests/data/models/llama", &o, &err));
        ck_assert_int_eq(err.code, TN_E_USAGE);
    }
}
END_TEST

/* kv_b_proj of latent attention: it is absorbed into others. */
START_TEST(all_are_those_that_can_have_one)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor a;
    const tn_model_options named = {.size = sizeof named, .lora = LORA(.targets = "kv_b_proj"), .training = true};
    ck_assert_ptr_null(tn_model_open("tests/data/models/deepseek_v3", &named, &err));
    suite_expect_in(err.message, "absorbed");
    tn_trainer *t = trainer_of(test_model("deepseek_v3", .dtype = "f32", .training = true, .lora = LORA(.rank = 2)));
    loss_of(t);
    static const char *const names[] = {"o_proj", "kv_b_proj"};
    for (int i = 0; i < 2; i++) {
        char name[128];
        snprintf(name, sizeof name, "base_model.model.model.layers.0.self_attn.%s.lora_A.weight", names[i]);
        ck_assert_int_eq(tn_trainer_gradient(t, name, &a, &err), i ? TN_E_USAGE : TN_OK);
    }
}
END_TEST

/* ---- in 16 bits, and over quantised weights -------------------------------------------------------- */

START_TEST(models_in_16_bits_compute_with_an_adapter_in_f32)
{
    const char *adapter = trained("llama", LORA(.rank = 4));
    tn_model *exact = test_model("llama", .dtype = "f32", .adapter = adapter);
    tn_model *rough = test_model("llama", .dtype = "bf16", .adapter = adapter);
    size_t count = (size_t)(TOKENS * test_model_vocab(exact));
    float *x = calloc(2 * count, sizeof *x);
    suite_keep(x, free);
    logits_of(exact, x);
    logits_of(rough, x + count);
    double squares = 0, off = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (double)x[i] * (double)x[i];
        off += pow((double)x[i] - (double)x[i + count], 2);
    }
    ck_assert_msg(sqrt(off / squares) < 0.03, "%g", sqrt(off / squares)); /* a few roundings of 2^-9         */
}
END_TEST

/* Mixed precision, which rounds factors, is a matter of the trainer: without it the model is as it was. */
START_TEST(a_trainer_leaves_no_rounding_behind)
{
    const char *adapter = trained("llama", LORA(.rank = 4));
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("llama", .dtype = "bf16", .adapter = adapter, .training = true);
    size_t count = (size_t)(TOKENS * test_model_vocab(m));
    float *x = calloc(3 * count, sizeof *x);
    suite_keep(x, free);
    logits_of(m, x);
    tn_trainer *t = tn_trainer_open(m, NULL, &err);
    ck_assert_msg(t != NULL, "%s", err.message);
    logits_of(m, x + count);
    tn_trainer_close(t);
    logits_of(m, x + 2 * count);
    ck_assert(memcmp(x, x + count, count * sizeof *x) != 0);
    ck_assert(memcmp(x, x + 2 * count, count * sizeof *x) == 0);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("adapters", 300);
    suite_add(tcase, a_new_adapter_changes_nothing_and_is_all_that_is_trained,
              what_is_dropped_follows_from_seed_and_call_alone, what_is_dropped_is_dropped_again, sessions_drop_nothing,
              patterns_give_ranks_and_factors, what_does_not_fit_is_named, options_that_cannot_be,
              all_are_those_that_can_have_one, models_in_16_bits_compute_with_an_adapter_in_f32,
              a_trainer_leaves_no_rounding_behind);
    tcase_add_loop_test(tcase, steps_make_the_loss_smaller_and_files_say_what_was_trained, 0, MODELS);
    tcase_add_loop_test(tcase, merged_weights_give_what_the_adapter_beside_them_gave, 0, MODELS);
    tcase_add_loop_test(tcase, gradients_are_slopes, 0, 8);
    tcase_add_loop_test(tcase, targets_are_found_as_peft_finds_them, 0, sizeof targets / sizeof *targets);
    tcase_add_loop_test(tcase, what_is_not_supported_is_refused_by_key, 0, sizeof refused / sizeof *refused);
    return suite_run();
}
