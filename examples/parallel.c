/* One model in several processes: each holds a part of the weights, rank 0 continues a prompt.
 *
 *     cc parallel.c $(pkg-config --cflags --libs tenon) -o parallel
 *     mpirun -n 2 ./parallel MODEL /path/to/plugins "And it came to pass"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

enum { TOKENS = 24 };

/* What every program with one model does. */
static tn_status go_on(tn_model *model, const tn_config *config, const char *folder, const char *prompt, tn_error *err)
{
    const tn_session_options small = {.size = sizeof small, .context = 256};
    const tn_generate_options options = {.size = sizeof options, .max_tokens = TOKENS};
    tn_generate_result result = {.size = sizeof result};
    int64_t *ids = NULL, out[TOKENS];
    size_t count = 0, length = 0;
    char *text = NULL;
    tn_status status = tn_apply_kernels(model, config, "auto", NULL, err);
    tn_session *session = status == TN_OK ? tn_session_new(model, &small, err) : NULL;
    tn_tokenizer *tokenizer = session ? tn_tokenizer_open(folder, err) : NULL;
    if (tokenizer && tn_tokenizer_encode(tokenizer, prompt, strlen(prompt), true, &ids, &count, err) == TN_OK &&
        tn_generate(session, ids, (int64_t)count, &options, out, &result, err) == TN_OK &&
        tn_tokenizer_decode(tokenizer, out, (size_t)result.count, true, &text, &length, err) == TN_OK)
        printf("%s\n", text);
    free(text);
    free(ids);
    tn_tokenizer_free(tokenizer);
    tn_session_free(session);
    return err->code;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: mpirun -n N %s MODEL PLUGINS PROMPT\n", argv[0]);
        return 2;
    }
    tn_error err = TN_ERROR_INIT;
    const tn_model_options options = {.size = sizeof options, .parallel = "tensor"};
    tn_model_info info = {.size = sizeof info};
    tn_config *config = tn_config_new();
    tn_model *model = NULL;
    if (config && tn_config_set_plugins(config, argv[2], &err) == TN_OK && tn_scan(config, &err) == TN_OK)
        model = tn_model_open(argv[1], &options, &err);
    if (model && tn_model_get_info(model, &info) == TN_OK && info.rank > 0)
        tn_follow(model, config, &err);
    else if (model)
        go_on(model, config, argv[1], argv[3], &err);
    tn_model_close(model); /* of rank 0: the others' tn_follow ends                                      */
    tn_config_free(config);
    if (err.code != TN_OK)
        fprintf(stderr, "%s: %s: %s\n", argv[0], err.where, err.message);
    return -err.code;
}
