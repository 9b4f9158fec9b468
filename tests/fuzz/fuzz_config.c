/* Any bytes as a config.json: every getter on every kind of value, at the top and one level down. */
#include "fuzz.h"
#include "fuzz_json.h"
#include "checkpoint/checkpoint.h"

#include <math.h>

FUZZ_ENTRY(fuzz_config)

static const char *const keys[] = {"hidden_size", "rms_norm_eps", "tie_word_embeddings", "hidden_act", "eos_token_id",
                                   "layer_types", "rope_scaling", "rope_theta",          "factor",     "a"};

/* After a call that may fail: status and error say the same, in one line. Both are ready for the next call then. */
static bool settle(const config_reader *c)
{
    bool ok = *c->status == TN_OK;
    fuzz_require(ok == (c->err->code == TN_OK) && *c->status == c->err->code, "the status and the error disagree");
    fuzz_require(ok || (c->err->message[0] && !strchr(c->err->message, '\n')), "the error is not one line");
    tn_error_clear(c->err);
    *c->status = TN_OK;
    return ok;
}

static void read_list(const config_reader *c, const char *key)
{
    int64_t count = config_list(c, key);
    fuzz_require((count >= 0) == config_has(c, key), "a list is there and is not");
    for (int64_t i = 0; i < count && i < 100; i++) {
        config_list_i64(c, key, i);
        settle(c);
        config_list_f64(c, key, i);
        settle(c);
        fuzz_require(config_list_str(c, key, i) != NULL, "a string is not there");
        settle(c);
        config_list_holds(c, key, i);
        settle(c);
    }
    config_list_i64(c, key, count);
    fuzz_require(!settle(c), "a list has an element behind its end");
}

static void read_key(const config_reader *c, const char *key, int depth)
{
    static const config_word words[] = {{"silu", 1}, {"default", 2}, {0}};
    int64_t number = config_i64(c, key, 5, 1, 1000000);
    fuzz_require(number >= 1 && number <= 1000000, "a number is out of its range");
    settle(c);
    config_need_i64(c, key, INT64_MIN, INT64_MAX);
    fuzz_require(!settle(c) || config_has(c, key), "a key is absent and was read");
    fuzz_require(isfinite(config_f64(c, key, 0.5)), "a number is not finite");
    settle(c);
    config_bool(c, key, false);
    settle(c);
    const char *text = config_str(c, key, "default");
    fuzz_require(text && strlen(text) < SIZE_MAX, "a string is not there");
    settle(c);
    int32_t choice = config_choice(c, key, "default", words);
    fuzz_require(choice == 1 || choice == 2, "a choice is none of the words");
    settle(c);
    read_list(c, key);
    config_reader child = config_child(c, key);
    settle(c);
    fuzz_require(child.node == config_child(c, key).node, "a child is not the same twice");
    settle(c);
    for (size_t i = 0; child.node && depth < 1 && i < sizeof keys / sizeof keys[0]; i++)
        read_key(&child, keys[i], depth + 1);
}

int fuzz_config(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = fuzz_file(data, size, path);
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    config_file *file = config_open(path, &err);
    close(fd);
    fuzz_require((file != NULL) == (err.code == TN_OK), "the result and the error disagree");
    for (size_t i = 0; file && i < sizeof keys / sizeof keys[0]; i++) {
        config_reader root = config_root(file, &status, &err);
        read_key(&root, keys[i], 0);
    }
    config_close(file);
    return 0;
}
