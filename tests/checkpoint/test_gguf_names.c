/* The tensors of a .gguf under Hugging Face's names: views into the file, and the few that are made. */
#include "base/gguf.h"
#include "broken.h"
#include "checkpoint/checkpoint.h"
#include "gguf_model.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <string.h>

static char *path;
static gguf_model *f;
static tn_error err;

static void setup(void)
{
    path = tempdir_at(tempdir_new(), "m.gguf");
    f = gguf_model_new();
    err = (tn_error)TN_ERROR_INIT;
}

static void close_set(void *set)
{
    shards_close(set);
}

static shards *try_open(void)
{
    gguf_model_write(f, path);
    gguf *file = gguf_open(path, &err);
    ck_assert_msg(file != NULL, "%s: %s", err.where, err.message);
    return gguf_names_open(file, &err);
}

static shards *open_good(const char *arch)
{
    gguf_model_text(f, "general.architecture", arch);
    shards *set = try_open();
    ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
    suite_keep(set, close_set);
    return set;
}

/* A tensor of f32 whose elements count from first on. */
static void add_counting(const char *name, int32_t ndim, const int64_t *shape, float first)
{
    float values[256];
    int64_t count = 1;
    for (int32_t i = 0; i < ndim; i++)
        count *= shape[i];
    for (int64_t i = 0; i < count; i++)
        values[i] = first + (float)i;
    gguf_model_tensor(f, name, TN_F32, ndim, shape, values);
}

/* It is there with this shape (0 where there is no such dimension), and element index is value. */
static void expect(const shards *set, const char *name, int64_t rows, int64_t columns, int64_t index, float value)
{
    tn_tensor t;
    float got;
    ck_assert_msg(shards_get(set, name, &t), "%s", name);
    ck_assert_msg(t.ndim == (columns ? 2 : 1) && t.shape[0] == rows && (!columns || t.shape[1] == columns), "%s", name);
    memcpy(&got, (const char *)t.data + (size_t)index * sizeof got, sizeof got);
    ck_assert_msg(got == value, "%s: %g", name, (double)got);
}

START_TEST(names_outside_and_inside_of_layers)
{
    add_counting("token_embd.weight", 2, (int64_t[]){4, 2}, 0);
    add_counting("output_norm.weight", 1, (int64_t[]){2}, 10);
    add_counting("blk.12.attn_q.weight", 2, (int64_t[]){2, 2}, 20);
    add_counting("blk.12.attn_q.bias", 1, (int64_t[]){2}, 30);
    add_counting("blk.12.attn_norm.weight", 1, (int64_t[]){2}, 40);
    add_counting("rope_freqs.weight", 1, (int64_t[]){1}, 50);
    add_counting("blk.0.unheard_of.weight", 1, (int64_t[]){1}, 60);
    shards *set = open_good("llama");
    ck_assert_uint_eq(shards_count(set), 6); /* all but the factors, which the config has */
    expect(set, "model.embed_tokens.weight", 4, 2, 7, 7);
    expect(set, "model.norm.weight", 2, 0, 1, 11);
    expect(set, "model.layers.12.self_attn.q_proj.weight", 2, 2, 2, 22);
    expect(set, "model.layers.12.self_attn.q_proj.bias", 2, 0, 1, 31);
    expect(set, "model.layers.12.input_layernorm.weight", 2, 0, 0, 40);
    expect(set, "model.layers.0.unheard_of.weight", 1, 0, 0, 60); /* nothing reads it, which is told */
    ck_assert_str_eq(shards_file_of(set, "model.norm.weight"), path);
}
END_TEST

/* Quantised experts are views into the file, one below the other. */
START_TEST(stacks_become_lists)
{
    tn_tensor first, last;
    gguf_model_tensor(f, "blk.0.ffn_down_exps.weight", TN_Q8_0, 3, (int64_t[]){3, 2, 32}, NULL);
    shards *set = open_good("qwen3moe");
    ck_assert_uint_eq(shards_count(set), 3);
    ck_assert(shards_get(set, "model.layers.0.mlp.experts.0.down_proj.weight", &first));
    ck_assert(shards_get(set, "model.layers.0.mlp.experts.2.down_proj.weight", &last));
    ck_assert_int_eq(last.ndim, 2);
    ck_assert_int_eq(last.shape[0], 2);
    ck_assert_int_eq(last.shape[1], 32);
    ck_assert_int_eq(last.dtype, TN_Q8_0);
    ck_assert_int_eq((const char *)last.data - (const char *)first.data, 2 * 2 * 34);
}
END_TEST

/* Newer files have gates and ups of an expert in one matrix. */
START_TEST(gates_and_ups_together)
{
    add_counting("blk.1.ffn_gate_up_exps.weight", 3, (int64_t[]){2, 4, 3}, 0);
    shards *set = open_good("qwen3moe");
    expect(set, "model.layers.1.mlp.experts.0.up_proj.weight", 2, 3, 0, 6);
    expect(set, "model.layers.1.mlp.experts.1.gate_proj.weight", 2, 3, 0, 12);
    expect(set, "model.layers.1.mlp.experts.1.up_proj.weight", 2, 3, 5, 23);
}
END_TEST

/* Old files have each expert by itself. */
START_TEST(old_experts)
{
    add_counting("blk.0.ffn_gate.3.weight", 2, (int64_t[]){2, 2}, 0);
    add_counting("blk.0.ffn_down.0.weight", 2, (int64_t[]){2, 2}, 4);
    gguf_model_integer(f, "llama.expert_count", 4);
    shards *set = open_good("llama");
    expect(set, "model.layers.0.mlp.experts.3.w1.weight", 2, 2, 3, 3);
    expect(set, "model.layers.0.mlp.experts.0.w2.weight", 2, 2, 0, 4);
}
END_TEST

/* Norms of 1 + w; others, and what only ends like one, stay. */
START_TEST(norms_of_gemma)
{
    add_counting("blk.0.ffn_norm.weight", 1, (int64_t[]){2}, 1.5F);
    add_counting("blk.0.attn_q_norm.weight", 1, (int64_t[]){2}, 3);
    add_counting("blk.0.attn_q.weight", 2, (int64_t[]){2, 2}, 3);
    shards *set = open_good("gemma3");
    expect(set, "model.layers.0.pre_feedforward_layernorm.weight", 2, 0, 1, 1.5F);
    expect(set, "model.layers.0.self_attn.q_norm.weight", 2, 0, 0, 2);
    expect(set, "model.layers.0.self_attn.q_proj.weight", 2, 2, 0, 3);
}
END_TEST

/* Biases of an expert's gates lie before those of its ups, as its rows in Hugging Face's stack do. */
START_TEST(biases_side_by_side)
{
    add_counting("blk.0.ffn_up_exps.bias", 2, (int64_t[]){2, 3}, 100);
    add_counting("blk.0.ffn_gate_exps.bias", 2, (int64_t[]){2, 3}, 0);
    add_counting("blk.0.ffn_down_exps.bias", 2, (int64_t[]){2, 4}, 50);
    shards *set = open_good("gpt-oss");
    ck_assert_uint_eq(shards_count(set), 2);
    expect(set, "model.layers.0.mlp.experts.gate_up_proj_bias", 2, 6, 7, 4);
    expect(set, "model.layers.0.mlp.experts.gate_up_proj_bias", 2, 6, 11, 105);
    expect(set, "model.layers.0.mlp.experts.down_proj_bias", 2, 4, 5, 55);
}
END_TEST

START_TEST(halves_of_kv_b)
{
    add_counting("blk.0.attn_k_b.weight", 3, (int64_t[]){2, 4, 3}, 0);
    add_counting("blk.0.attn_v_b.weight", 3, (int64_t[]){2, 5, 4}, 100);
    shards *set = open_good("deepseek2");
    expect(set, "model.layers.0.self_attn.k_b_proj.1.weight", 4, 3, 0, 12);
    expect(set, "model.layers.0.self_attn.v_b_proj.1.weight", 5, 4, 0, 120);
}
END_TEST

START_TEST(a_row_that_is_a_matrix)
{
    add_counting("blk.0.ffn_gate_inp_shexp.weight", 1, (int64_t[]){3}, 0);
    shards *set = open_good("qwen2moe");
    expect(set, "model.layers.0.mlp.shared_expert_gate.weight", 1, 3, 2, 2);
}
END_TEST

/* The factor of a matrix of NVFP4, or of each of a stack, is its scale. */
START_TEST(factors_of_matrices)
{
    gguf_model_tensor(f, "blk.0.ffn_up_exps.weight", TN_NVFP4, 3, (int64_t[]){2, 3, 64}, NULL);
    add_counting("blk.0.ffn_up_exps.scale", 1, (int64_t[]){2}, 5);
    shards *set = open_good("qwen3moe");
    ck_assert_uint_eq(shards_count(set), 2);
    shards_parts parts = shards_parts_of(set, "model.layers.0.mlp.experts.1.up_proj.weight");
    ck_assert_int_eq(parts.scale.dtype, TN_F32);
    ck_assert(parts.scale.shape[0] == 3 && parts.scale.shape[1] == 1 && parts.scale.stride[0] == 0);
    float factor;
    memcpy(&factor, parts.scale.data, sizeof factor);
    ck_assert(factor == 6);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------------------------ */

static const struct {
    const char *arch, *name;
    tn_dtype dtype;
    int32_t ndim;
    int64_t shape[3];
    const char *words;
} wrong[] = {
    {"qwen3moe", "blk.0.ffn_up_exps.weight", TN_F32, 2, {4, 2}, "'blk.0.ffn_up_exps.weight' is no stack of matrices"},
    {"qwen3moe", "blk.0.ffn_up_exps.weight", TN_F32, 3, {70000, 1, 1}, "is no stack of matrices"},
    {"qwen3moe", "blk.0.ffn_gate_up_exps.weight", TN_F32, 3, {2, 3, 4}, "is no stack of gates and ups"},
    {"gpt-oss", "blk.0.ffn_gate_exps.bias", TN_F32, 2, {2, 3}, "has no like beside it in ffn_up_exps.bias"},
    {"gemma2", "blk.0.attn_norm.weight", TN_Q8_0, 1, {32}, "'blk.0.attn_norm.weight' is a norm, but neither of f32"},
    {"gemma2", "blk.0.attn_output.scale", TN_F16, 1, {1}, "'blk.0.attn_output.scale' is no f32 for each matrix"},
    {"llama", "model.layers.0.self_attn.o_proj.weight", TN_F32, 1, {1}, "is there twice"},
};

START_TEST(what_is_wrong_is_named)
{
    gguf_model_text(f, "general.architecture", wrong[_i].arch);
    gguf_model_tensor(f, "blk.0.attn_output.weight", TN_F32, 2, (int64_t[]){2, 2}, NULL);
    gguf_model_tensor(f, wrong[_i].name, wrong[_i].dtype, wrong[_i].ndim, wrong[_i].shape, NULL);
    ck_assert_ptr_null(try_open());
    broken_expect(&err, TN_E_INPUT, "m.gguf", wrong[_i].words, NULL);
}
END_TEST

START_TEST(a_factor_that_is_no_number)
{
    gguf_model_text(f, "general.architecture", "llama");
    gguf_model_tensor(f, "output.weight", TN_NVFP4, 2, (int64_t[]){2, 64}, NULL);
    add_counting("output.scale", 1, (int64_t[]){1}, NAN);
    ck_assert_ptr_null(try_open());
    broken_expect(&err, TN_E_INPUT, "m.gguf", "'output.scale' has a factor that is no finite number", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("gguf_names", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, names_outside_and_inside_of_layers, stacks_become_lists, gates_and_ups_together, old_experts,
              norms_of_gemma, biases_side_by_side, halves_of_kv_b, a_row_that_is_a_matrix, factors_of_matrices,
              a_factor_that_is_no_number);
    tcase_add_loop_test(tc, what_is_wrong_is_named, 0, sizeof wrong / sizeof *wrong);
    return suite_run();
}
