/* The tokenizer and template of a folder, and its tokens at both ends of a text. */
#include "dataset/reader.h"

#include "template/template_files.h"

#include <stdlib.h>
#include <string.h>

static const char CHATML[] = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                             "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* The token that texts end with. */
static tn_status read_end(reader *r, const json_t *tokens, tn_error *err)
{
    const json_t *end = json_object_get(tokens, "eos_token");
    int64_t *ids = NULL;
    size_t count = 0;
    if (!json_is_string(end) || json_string_length(end) == 0)
        return TN_OK;
    tn_status status =
        tn_tokenizer_encode(r->tokenizer, json_string_value(end), json_string_length(end), false, &ids, &count, err);
    if (status == TN_OK && count == 1)
        r->by.eos = ids[0];
    free(ids);
    return status;
}

/* What the tokenizer puts in front of a text: what it makes of an empty one, without its end. */
static tn_status read_begin(reader *r, tn_error *err)
{
    size_t count = 0;
    tn_status status = tn_tokenizer_encode(r->tokenizer, "", 0, true, &r->begin, &count, err);
    if (status == TN_OK && count > 1 && r->begin[count - 1] == r->by.eos)
        count--;
    r->by.begin = r->begin;
    r->by.begin_count = status == TN_OK ? count : 0;
    return status;
}

static tn_status read_template(reader *r, const char *folder, json_t **tokens)
{
    tn_error *why = &r->no_template;
    template_files files = {0};
    tn_status status = template_files_read(&files, folder, why);
    *tokens = json_incref(files.tokens);
    if (files.missing) {
        tn_error_clear(why);
        r->chat = tn_template_parse(CHATML, sizeof CHATML - 1, "ChatML", why);
    } else if (status == TN_OK) {
        r->chat = tn_template_open(folder, why);
    }
    r->by.chat = r->chat;
    template_files_free(&files);
    return r->chat ? TN_OK : why->code;
}

tn_status reader_open(reader *r, const char *folder, int64_t eos, tn_error *err)
{
    json_t *tokens = NULL;
    *r = (reader){.by = {.eos = eos, .no_tokenizer = &r->no_tokenizer, .no_template = &r->no_template}};
    r->tokenizer = tn_tokenizer_open(folder, &r->no_tokenizer);
    tn_status status = r->tokenizer ? read_template(r, folder, &tokens) : r->no_tokenizer.code;
    if (status == TN_E_MEMORY)
        status = tn_fail(err, status, folder, "%s", r->tokenizer ? r->no_template.message : r->no_tokenizer.message);
    else
        status = TN_OK; /* who needs what is not there, or is wrong, says so                           */
    if (status == TN_OK && r->tokenizer)
        status = escape_open(&r->specials, r->tokenizer, err);
    if (status == TN_OK && r->tokenizer)
        status = read_end(r, tokens, err);
    if (status == TN_OK && r->tokenizer)
        status = read_begin(r, err);
    r->by.tokenizer = r->tokenizer;
    r->by.specials = &r->specials;
    json_decref(tokens);
    return status;
}

void reader_close(reader *r)
{
    escape_close(&r->specials);
    tn_tokenizer_free(r->tokenizer);
    tn_template_free(r->chat);
    free(r->begin);
    *r = (reader){0};
}
