/* The tool that makes checkpoints to measure on: its folders are right, and the same for the same seed. */
#include "checkpoint/checkpoint.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The tool lies beside this program, whatever the build folder is called. */
static int run_tool(const char *arguments)
{
    char self[4096], command[8192];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = '\0';
    snprintf(command, sizeof command, "'%s/make_checkpoint' %s >/dev/null 2>&1", dirname(self), arguments);
    int status = system(command);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static shards *make(const char *folder, const char *options)
{
    char arguments[4096];
    snprintf(arguments, sizeof arguments, "--like tiny-qwen3 --layers 1 --vocab 300 '%s' %s", folder, options);
    ck_assert_int_eq(run_tool(arguments), 0);
    tn_error err = TN_ERROR_INIT;
    shards *set = shards_open(folder, &err);
    ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
    return set;
}

#define UP "model.layers.0.mlp.up_proj.weight"
#define NORM "model.layers.0.input_layernorm.weight"

START_TEST(a_folder_is_complete)
{
    char *folder = tempdir_new();
    shards *set = make(folder, "--dtype f32 --shard-bytes 30000000");
    tn_tensor t;
    ck_assert_uint_eq(shards_count(set), 13); /* embedding, 11 of the layer, norm; the head is tied */
    ck_assert_int_eq(shards_dtype(set), TN_F32);
    ck_assert(shards_get(set, UP, &t));
    ck_assert_int_eq(t.shape[0], 3072);
    ck_assert_int_eq(t.shape[1], 1024);
    ck_assert(strstr(shards_file_of(set, UP), "-of-0000"));
    /* Mean 0 and deviation 0.02, within five times the error of the estimate. */
    int64_t n = tn_tensor_count(&t);
    const float *values = t.data;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    ck_assert_double_lt(fabs(sum / (double)n), 5 * 0.02 / sqrt((double)n));
    ck_assert_double_lt(fabs(sqrt(squares / (double)n) / 0.02 - 1), 5 / sqrt(2 * (double)n));
    ck_assert(memcmp(values, values + 1024, 4096) != 0);
    ck_assert(shards_get(set, NORM, &t));
    ck_assert_int_eq(t.ndim, 1);
    shards_close(set);
    char *path = tempdir_at(folder, "config.json");
    config_file *config = config_open(path, NULL);
    ck_assert_ptr_nonnull(config);
    tn_status status = TN_OK;
    config_reader root = config_root(config, &status, NULL);
    ck_assert_int_eq(config_need_i64(&root, "num_hidden_layers", 0, 100), 1);
    ck_assert_int_lt(config_need_i64(&root, "eos_token_id", 1, 299), 300);
    ck_assert_str_eq(config_str(&root, "torch_dtype", "?"), "float32");
    ck_assert_int_eq(status, TN_OK);
    config_close(config);
    path = tempdir_at(folder, "generation_config.json");
    ck_assert_ptr_nonnull(config = config_open(path, NULL));
    config_close(config);
}
END_TEST

/* Names and shapes are those that the architecture reads. */
START_TEST(every_architecture_opens)
{
    static const char *const models[] = {"tiny-qwen3", "tiny-moe", "tiny-mixtral", "tiny-gemma2"};
    char *folder = tempdir_new(), arguments[4096];
    snprintf(arguments, sizeof arguments, "--like %s --layers 1 --vocab 300 '%s'", models[_i], folder);
    ck_assert_int_eq(run_tool(arguments), 0);
    test_model(folder, .dtype = NULL);
}
END_TEST

START_TEST(a_seed_decides_everything)
{
    char *folders[3];
    shards *sets[3];
    tn_tensor t[3];
    static const char *const options[3] = {"--seed 7", "--seed 7", "--seed 8"};
    static const char *const names[] = {UP, NORM};
    for (int i = 0; i < 3; i++)
        sets[i] = make(folders[i] = tempdir_new(), options[i]);
    for (size_t k = 0; k < 2; k++) {
        for (int i = 0; i < 3; i++)
            ck_assert(shards_get(sets[i], names[k], &t[i]));
        size_t bytes = (size_t)tn_tensor_count(&t[0]) * tn_dtype_size(t[0].dtype);
        ck_assert_int_eq(t[0].dtype, TN_BF16);
        ck_assert(memcmp(t[0].data, t[1].data, bytes) == 0);
        ck_assert(memcmp(t[0].data, t[2].data, bytes) != 0);
    }
    for (int i = 0; i < 3; i++) {
        shards_close(sets[i]);
    }
}
END_TEST

START_TEST(usage_is_checked)
{
    ck_assert_int_eq(run_tool("--help"), 0);
    ck_assert_int_eq(run_tool(""), 2);
    ck_assert_int_eq(run_tool("--like tiny-qwen3"), 2);
    ck_assert_int_eq(run_tool("--like nothing /tmp"), 2);
    ck_assert_int_eq(run_tool("--like tiny-qwen3 --layers 0 /tmp"), 2);
    ck_assert_int_eq(run_tool("--like tiny-qwen3 --dtype i8 /tmp"), 2);
    ck_assert_int_eq(run_tool("--like tiny-qwen3 /dev/null/x"), 4);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("make_checkpoint", 120);
    suite_add(tc, a_folder_is_complete);
    tcase_add_loop_test(tc, every_architecture_opens, 0, 4);
    suite_add(tc, a_seed_decides_everything, usage_is_checked);
    return suite_run();
}
