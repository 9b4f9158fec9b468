/* Any bytes as a config.json: every getter on every kind of value, at the top and one level down. */
#include "fuzz.h"
#include "checkpoint/checkpoint.h"

#include <math.h>
#include <string.h>

#ifdef TN_FUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_config(data, size);
}
#endif

static const char *const keys[] = {"hidden_size", "rms_norm_eps", "tie_word_embeddings", "hidden_act", "eos_token_id",
                                   "layer_types", "rope_scaling", "rope_theta",          "factor",     "a"};

static void check_status(tn_status status, tn_error *err)
{
    fuzz_require((status == TN_OK) == (err->code == TN_OK) && status == err->code, "the result and the error disagree");
    fuzz_require(status == TN_OK || (err->message[0] && !strchr(err->message, '\n')), "the error is not one line");
    tn_error_clear(err);
}

static void read_list(const config_node *node, const char *key, tn_error *err)
{
    int64_t count = config_list(node, key), i64 = 0;
    double f64 = 0;
    const char *text = "";
    fuzz_require((count >= 0) == config_has(node, key), "a list is there and is not");
    for (int64_t i = 0; i < count && i < 100; i++) {
        check_status(config_list_i64(node, key, i, &i64, err), err);
        check_status(config_list_f64(node, key, i, &f64, err), err);
        check_status(config_list_str(node, key, i, &text, err), err);
    }
    fuzz_require(config_list_i64(node, key, count, &i64, NULL) != TN_OK, "a list has an element behind its end");
}

static void read_key(const config_node *node, const char *key, int depth)
{
    tn_error err = TN_ERROR_INIT;
    int64_t i64 = 5;
    double f64 = 0.5;
    bool flag = false;
    const char *text = "default";
    check_status(config_i64(node, key, 1, 1000000, &i64, &err), &err);
    fuzz_require(i64 >= 1 && i64 <= 1000000, "a number is out of its range");
    tn_status status = config_need_i64(node, key, INT64_MIN, INT64_MAX, &i64, &err);
    fuzz_require(status != TN_OK || config_has(node, key), "a key is absent and was read");
    check_status(status, &err);
    check_status(config_f64(node, key, &f64, &err), &err);
    fuzz_require(isfinite(f64), "a number is not finite");
    check_status(config_bool(node, key, &flag, &err), &err);
    check_status(config_str(node, key, &text, &err), &err);
    fuzz_require(text && strlen(text) < SIZE_MAX, "a string is not there");
    read_list(node, key, &err);
    const config_node *child = config_child(node, key, &err);
    fuzz_require(!child || err.code == TN_OK, "a child came with an error");
    fuzz_require(child == config_child(node, key, NULL), "a child is not the same twice");
    for (size_t i = 0; child && depth < 2 && i < sizeof keys / sizeof keys[0]; i++)
        read_key(child, keys[i], depth + 1);
}

int fuzz_config(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = fuzz_file(data, size, path);
    tn_error err = TN_ERROR_INIT;
    config_file *file = config_open(path, &err);
    close(fd);
    fuzz_require((file != NULL) == (err.code == TN_OK), "the result and the error disagree");
    for (size_t i = 0; file && i < sizeof keys / sizeof keys[0]; i++)
        read_key(config_root(file), keys[i], 0);
    config_close(file);
    return 0;
}
