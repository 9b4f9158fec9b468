/* Text to tokens and back. */
#include "tokens.h"

#include "request.h"

#include <stdlib.h>
#include <string.h>

/* {"tokens": [...], "count": N}; with pieces: [{"id", "piece"}, ...]. NULL: no memory. */
static json_t *list_tokens(const api *a, const int64_t *ids, size_t count, bool pieces)
{
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; i < count && good; i++) {
        json_t *id = json_integer((json_int_t)ids[i]);
        char *text = NULL;
        size_t length = 0;
        if (pieces) {
            good = tn_tokenizer_decode(a->tokenizer, &ids[i], 1, false, &text, &length, NULL) == TN_OK;
            id = json_pack("{s:o, s:o}", "id", id, "piece", good ? json_stringn(text, length) : NULL);
            free(text);
        }
        good = json_array_append_new(list, id) == 0 && good;
    }
    if (good)
        return json_pack("{s:o, s:I}", "tokens", list, "count", (json_int_t)count);
    json_decref(list);
    return NULL;
}

void tokens_encode(api *a, exchange *x)
{
    request_error e = {0};
    tn_error err = TN_ERROR_INIT;
    int64_t *ids = NULL;
    size_t count = 0;
    json_t *body = request_parse(x, &e);
    const char *name = request_member(body, "content") ? "content" : "prompt";
    const json_t *content = request_member(body, name);
    bool special = request_flag(body, "add_special", false, &e), pieces = request_flag(body, "with_pieces", false, &e);
    if (body && !json_is_string(content))
        request_refuse(&e, 400, "content", "content must be a string");
    if (!e.status && tn_tokenizer_encode(a->tokenizer, json_string_value(content), json_string_length(content), special,
                                         &ids, &count, &err) != TN_OK)
        request_failed(&e, "content", &err);
    json_decref(body);
    if (e.status)
        request_answer(x, &e);
    else
        exchange_json(x, 200, list_tokens(a, ids, count, pieces));
    free(ids);
}

void tokens_decode(api *a, exchange *x)
{
    request_error e = {0};
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    size_t count = 0, length = 0;
    json_t *body = request_parse(x, &e);
    const json_t *list = request_member(body, "tokens");
    if (body && !json_is_array(list))
        request_refuse(&e, 400, "tokens", "tokens must be an array of token ids");
    int64_t *ids = e.status ? NULL : request_ids(list, "tokens", a->info.vocab, &count, &e);
    if (ids && tn_tokenizer_decode(a->tokenizer, ids, count, false, &text, &length, &err) != TN_OK)
        request_failed(&e, "tokens", &err);
    json_decref(body);
    free(ids);
    if (e.status)
        request_answer(x, &e);
    else
        exchange_json(x, 200, json_pack("{s:o}", "content", json_stringn(text, length)));
    free(text);
}
