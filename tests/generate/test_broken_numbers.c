/* Checkpoints whose weights hold NaN or infinity: an error that says where it begins, never text. */
#include "broken.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

/* Writes value over the first element of an f32 tensor of the folder's file. */
static void spoil(const char *folder, const char *name, float value)
{
    tn_error err = TN_ERROR_INIT;
    char *path = tempdir_at(folder, "model.safetensors");
    size_t size;
    char *bytes = tempdir_read(path, &size);
    uint64_t header;
    tn_tensor t, first;
    tn_safetensors *file = tn_safetensors_open(path, &err);
    ck_assert_msg(file && tn_safetensors_get(file, name, &t) && t.dtype == TN_F32, "%s: %s", name, err.message);
    /* The first of the data lies at the header's end. */
    memcpy(&header, bytes, sizeof header);
    const char *lowest = NULL;
    for (size_t i = 0; i < tn_safetensors_count(file); i++) {
        tn_safetensors_get(file, tn_safetensors_name(file, i), &first);
        lowest = !lowest || (const char *)first.data < lowest ? first.data : lowest;
    }
    size_t at = 8 + header + (size_t)((const char *)t.data - lowest);
    tn_safetensors_close(file);
    memcpy(bytes + at, &value, sizeof value);
    tempdir_write(path, bytes, size);
    free(bytes);
}

/* Every way to ask for logits must say text. */
static void expect(const char *tensor, float value, const char *text)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = broken_copy("llama");
    spoil(folder, tensor, value);
    tn_model *model = test_model(folder, .dtype = NULL);
    int64_t vocab = test_model_vocab(model);
    tn_session *session = test_session(model, .context = 16);
    const int64_t ids[] = {1, 0, 3};
    int64_t out[4];
    float *logits = calloc(3 * (size_t)vocab, sizeof *logits);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 3, .ids = ids};
    tn_outputs all = {.size = sizeof all, .logits = logits}, last = {.size = sizeof last, .last_logits = logits};
    tn_generate_options generate = {.size = sizeof generate, .max_tokens = 4};
    tn_generate_result result = {.size = sizeof result};
    for (int way = 0; way < 3; way++) {
        err = (tn_error)TN_ERROR_INIT;
        tn_session_reset(session);
        tn_status status = way == 0   ? tn_session_run(session, &batch, &all, &err)
                           : way == 1 ? tn_session_run(session, &batch, &last, &err)
                                      : tn_generate(session, ids, 3, &generate, out, &result, &err);
        ck_assert_int_eq(status, text ? TN_E_VERIFY : TN_OK);
        if (text)
            ck_assert_msg(strstr(err.message, text) != NULL, "%s, wanted: %s", err.message, text);
    }
    free(logits);
}

START_TEST(the_first_layer_that_is_wrong_is_named)
{
    expect("model.embed_tokens.weight", NAN, "what the embeddings give");
    expect("model.layers.0.mlp.down_proj.weight", NAN, "what layer 0 gives");
    expect("model.layers.1.self_attn.o_proj.weight", INFINITY, "what layer 1 or the norm behind it gives");
    expect("model.norm.weight", INFINITY, "what layer 1 or the norm behind it gives");
    expect("lm_head.weight", NAN, "what the output head gives");
}
END_TEST

START_TEST(numbers_are_no_error)
{
    expect("lm_head.weight", 1e30F, NULL);
}
END_TEST

int main(void)
{
    TCase *cases = suite_open("broken_numbers", 0);
    suite_add(cases, the_first_layer_that_is_wrong_is_named, numbers_are_no_error);
    return suite_run();
}
