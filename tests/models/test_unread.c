/* Tensors that nothing reads are told, unless an architecture's files hold such. */
#include "broken.h"
#include "models/models.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

START_TEST(a_layer_that_is_left_out_is_told)
{
    char *folder = broken_copy("llama");
    broken_json(folder, "config.json", "num_hidden_layers", "1");
    tn_model *model = test_model_open(folder, NULL);
    tn_model_close(model);
    ck_assert_uint_eq(tn_notice_count(), 1);
    ck_assert_ptr_nonnull(strstr(tn_notice_get(0), "9 of 21 tensors are read by nothing, model.layers.1."));
}
END_TEST

START_TEST(whole_checkpoints_are_not_told_of)
{
    static const char *const folders[] = {"llama", "gemma3n_text", "qwen3_5_text", "glm4_moe", "qwen2_5_vl"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        tn_model *model = test_model_open(folders[i], NULL);
        tn_model_close(model);
    }
    ck_assert_uint_eq(tn_notice_count(), 0);
}
END_TEST

START_TEST(what_files_of_a_type_hold)
{
    ck_assert(models_leaves("deepseek_v3", 61, "model.layers.61.eh_proj.weight"));
    ck_assert(!models_leaves("deepseek_v3", 61, "model.layers.60.mlp.gate.weight"));
    ck_assert(!models_leaves("llama", 2, "model.layers.2.mlp.up_proj.weight"));
    ck_assert(models_leaves("llama", 2, "model.layers.0.self_attn.rotary_emb.inv_freq"));
    ck_assert(models_leaves("qwen3_next", 2, "mtp.norm.weight"));
    ck_assert(models_leaves("gemma3n_text", 30, "model.language_model.layers.29.self_attn.k_proj.weight"));
    ck_assert(!models_leaves("gemma2", 30, "model.layers.29.self_attn.k_proj.weight"));
}
END_TEST

int main(void)
{
    TCase *cases = suite_open("unread", 0);
    suite_add(cases, a_layer_that_is_left_out_is_told, whole_checkpoints_are_not_told_of, what_files_of_a_type_hold);
    return suite_run();
}
