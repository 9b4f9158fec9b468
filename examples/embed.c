/* A program that embeds Tenon: opens a model, looks for plugins, applies every kernel that fits, continues a prompt
 * greedily and prints the text as it comes.
 *
 *     cc embed.c $(pkg-config --cflags --libs tenon) -o embed
 *     ./embed MODEL /path/to/plugins "And it came to pass"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

#define TOKENS 48

typedef struct printer {
    tn_stream *stream;
    tn_error *err;
} printer;

/* Called for every token. A character may take several tokens: the stream returns text when it is whole. */
static int print_token(void *ctx, int64_t id)
{
    printer *p = ctx;
    size_t length = 0;
    const char *text = tn_stream_push(p->stream, id, &length, p->err);
    if (!text)
        return 1;
    fwrite(text, 1, length, stdout);
    return fflush(stdout) != 0;
}

/* Folders of plugins are absolute, so that nobody can slip in others by choosing where a program starts. */
static tn_config *find_plugins(const char *folder, tn_error *err)
{
    tn_config *config = tn_config_new();
    if (config && tn_config_add_plugins(config, folder, err) == TN_OK && tn_scan(config, err) == TN_OK)
        return config;
    tn_config_free(config);
    return NULL;
}

static tn_status continue_text(tn_model *model, const tn_tokenizer *tokenizer, const char *prompt, tn_error *err)
{
    int64_t *ids = NULL, out[TOKENS];
    size_t count = 0, length = 0;
    tn_status status = tn_tokenizer_encode(tokenizer, prompt, strlen(prompt), true, &ids, &count, err);
    if (status)
        return status;
    tn_session_options options = {.size = sizeof options, .context = (int64_t)count + TOKENS};
    tn_session *session = tn_session_new(model, &options, err);
    printer p = {tn_stream_new(tokenizer, true, err), err};
    status = TN_E_INTERNAL;
    if (session && p.stream) {
        tn_generate_options g = {.size = sizeof g, .max_tokens = TOKENS, .on_token = print_token, .ctx = &p};
        tn_generate_result result = {.size = sizeof result};
        status = tn_generate(session, ids, (int64_t)count, &g, out, &result, err);
        const char *rest = tn_stream_flush(p.stream, &length, err);
        printf("%s\n", rest ? rest : "");
    }
    tn_stream_free(p.stream);
    tn_session_free(session);
    free(ids);
    return err->code ? err->code : status;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL PLUGINS PROMPT\n", argv[0]);
        return 2;
    }
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    tn_config *config = find_plugins(argv[2], &err);
    tn_model *model = config ? tn_model_open(argv[1], NULL, &err) : NULL;
    tn_tokenizer *tokenizer = model ? tn_tokenizer_open(argv[1], &err) : NULL;
    if (tokenizer && tn_apply_kernels(model, config, "auto", &report, &err) == TN_OK) {
        fprintf(stderr, "%s\n", report->summary);
        continue_text(model, tokenizer, argv[3], &err);
    }
    if (err.code)
        fprintf(stderr, "%s: %s: %s\n", argv[0], err.where, err.message);
    tn_report_free(report);
    tn_tokenizer_free(tokenizer);
    tn_model_close(model);
    tn_config_free(config);
    return -err.code;
}
