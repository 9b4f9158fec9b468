/* Which format a record has, by its keys; and those that need no template. */
#include "dataset/record.h"

#include "base/json_memory.h"
#include "base/text.h"
#include "dataset/turns.h"
#include "text/buffer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens already ---------------------------------------------------------------------------------- */

/* Numbers of a list: ids, or labels. */
static tn_status read_numbers(const record_reader *reader, const json_t *list, const char *key, bool labels,
                              int64_t *out, tn_error *err)
{
    size_t i;
    const json_t *item;
    json_array_foreach (list, i, item) {
        int64_t id = json_is_integer(item) ? json_integer_value(item) : INT64_MIN;
        if (id == INT64_MIN)
            return tn_fail(err, TN_E_INPUT, NULL, "%s has an element that is no number, at place %zu; correct it", key,
                           i);
        bool good = (labels && id == TN_NO_LABEL) || (id >= 0 && id < (reader->vocab ? reader->vocab : INT32_MAX));
        if (!good)
            return tn_fail(err, TN_E_INPUT, NULL,
                           "%s has %lld at place %zu, which is no token of the model; correct it", key, (long long)id,
                           i);
        out[i] = id;
    }
    return TN_OK;
}

static tn_status read_tokens(const record_reader *reader, const json_t *root, samples *to, tn_error *err)
{
    const json_t *ids = messages_member(root, "input_ids"), *labels = messages_member(root, "labels"), *kept = NULL;
    size_t count = json_array_size(ids);
    kept = messages_member(root, "attention_mask");
    const json_t *const lists[] = {ids, labels, kept};
    static const char *const keys[] = {"input_ids", "labels", "attention_mask"};
    for (int i = 0; i < 3; i++)
        if (lists[i] && (!json_is_array(lists[i]) || json_array_size(lists[i]) != count))
            return tn_fail(err, TN_E_INPUT, NULL,
                           i ? "%s is no list of as many numbers as input_ids; correct it"
                             : "%s is no list of numbers; correct it",
                           keys[i]);
    int64_t *numbers = malloc((2 * count + 1) * sizeof *numbers);
    if (!numbers)
        return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    int64_t *own = labels && !reader->options.train_on_prompt ? numbers + count : NULL;
    tn_status status = read_numbers(reader, ids, "input_ids", false, numbers, err);
    if (status == TN_OK && own)
        status = read_numbers(reader, labels, "labels", true, own, err);
    size_t left = 0;
    for (size_t i = 0; status == TN_OK && i < count; i++) { /* what is not looked at was padding */
        const json_t *seen = kept ? json_array_get(kept, i) : NULL;
        if (seen && !json_is_true(seen) && json_number_value(seen) == 0)
            continue;
        numbers[left] = numbers[i];
        if (own)
            own[left] = own[i];
        left++;
    }
    if (status == TN_OK)
        status = samples_add(to, numbers, own, left, (size_t)reader->options.max_length, err);
    free(numbers);
    return status;
}

/* ---- texts --------------------------------------------------------------------------------------------- */

typedef struct token_list {
    int64_t *ids; /* owned */
    size_t count, room;
} token_list;

static tn_status need_tokenizer(const record_reader *reader, tn_error *err)
{
    const tn_error *why = reader->no_tokenizer;
    if (reader->tokenizer)
        return TN_OK;
    return tn_fail(err, why && why->code ? why->code : TN_E_INPUT, NULL, "needs a tokenizer: %s",
                   why && why->code ? why->message : "there is none");
}

static tn_status add_ids(token_list *l, const int64_t *ids, size_t count, tn_error *err)
{
    int64_t *grown = buffer_grow(l->ids, &l->room, l->count + count + 1, sizeof *grown);
    if (!grown)
        return tn_fail(err, TN_E_MEMORY, NULL, "out of memory for %zu tokens", l->count + count);
    l->ids = grown;
    if (count > 0)
        memcpy(grown + l->count, ids, count * sizeof *ids);
    l->count += count;
    return TN_OK;
}

static tn_status add_text(const record_reader *reader, token_list *l, const char *text, size_t length, tn_error *err)
{
    int64_t *ids = NULL;
    size_t count = 0;
    tn_status status = tn_tokenizer_encode(reader->tokenizer, text, length, false, &ids, &count, err);
    if (status == TN_OK)
        status = add_ids(l, ids, count, err);
    free(ids);
    return status;
}

/* What a text ends with, unless it has it already. */
static tn_status add_end(const record_reader *reader, token_list *l, tn_error *err)
{
    bool ended = reader->eos < 0 || (l->count > 0 && l->ids[l->count - 1] == reader->eos);
    return ended ? TN_OK : add_ids(l, &reader->eos, 1, err);
}

/* A text, all of which is learnt, or one behind a prompt. */
static tn_status read_pair(const record_reader *reader, const json_t *prompt, const json_t *text, samples *to,
                           tn_error *err)
{
    token_list l = {0};
    tn_status status = need_tokenizer(reader, err);
    if (status == TN_OK && (!json_is_string(text) || (prompt && !json_is_string(prompt))))
        status = tn_fail(err, TN_E_INPUT, NULL,
                         prompt ? "prompt and completion are neither two texts nor two lists of messages"
                                : "text is no text; correct it");
    if (status == TN_OK)
        status = add_ids(&l, reader->begin, reader->begin_count, err);
    if (status == TN_OK && prompt)
        status = add_text(reader, &l, json_string_value(prompt), json_string_length(prompt), err);
    size_t asked = prompt ? l.count : 0;
    if (status == TN_OK)
        status = add_text(reader, &l, json_string_value(text), json_string_length(text), err);
    if (status == TN_OK)
        status = add_end(reader, &l, err);
    int64_t *labels = status == TN_OK ? malloc((l.count + 1) * sizeof *labels) : NULL;
    if (status == TN_OK && !labels)
        status = tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    for (size_t i = 0; labels && i < l.count; i++)
        labels[i] = i < asked && !reader->options.train_on_prompt ? TN_NO_LABEL : l.ids[i];
    if (status == TN_OK)
        status = samples_add(to, l.ids, labels, l.count, (size_t)reader->options.max_length, err);
    free(labels);
    free(l.ids);
    return status;
}

/* A piece of a text goes on in as many samples as it takes. */
static tn_status read_piece(const record_reader *reader, const record *r, samples *to, tn_error *err)
{
    token_list l = {0};
    size_t most = (size_t)reader->options.max_length;
    tn_status status = need_tokenizer(reader, err);
    if (status == TN_OK && !text_is_clean(r->text, r->length))
        status = tn_fail(err, TN_E_INPUT, NULL, "is no text in UTF-8; convert it");
    if (status == TN_OK && r->first)
        status = add_ids(&l, reader->begin, reader->begin_count, err);
    if (status == TN_OK)
        status = add_text(reader, &l, r->text, r->length, err);
    if (status == TN_OK && r->last)
        status = add_end(reader, &l, err);
    for (size_t at = 0; status == TN_OK && at < l.count; at += most)
        status = samples_add(to, l.ids + at, NULL, l.count - at < most ? l.count - at : most, most, err);
    free(l.ids);
    return status;
}

/* ---- by its keys --------------------------------------------------------------------------------------- */

static tn_status read_conversation(const record_reader *reader, const json_t *root, messages_kind kind, samples *to,
                                   tn_error *err)
{
    messages m = {0};
    tn_status status = need_tokenizer(reader, err);
    if (status == TN_OK && !reader->chat)
        status =
            tn_fail(err, reader->no_template->code, NULL, "needs a chat template: %s", reader->no_template->message);
    if (status == TN_OK)
        status = messages_of_record(reader, root, kind, &m, err);
    if (status == TN_OK)
        status = turns_read(reader, &m, to, err);
    messages_free(&m);
    return status;
}

/* A record of no known format is told by the keys that it has. */
static tn_status refuse(const json_t *root, tn_error *err)
{
    static const char *const halves[][2] = {{"prompt", "completion"},  {"completion", "prompt"},
                                            {"instruction", "output"}, {"output", "instruction"},
                                            {"chosen", "messages"},    {"labels", "input_ids"}};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        if (messages_member(root, halves[i][0]))
            return tn_fail(err, TN_E_INPUT, NULL, "has %s and no %s; correct it, or leave it out", halves[i][0],
                           halves[i][1]);
    text keys = {0};
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)root, key, value) /* which only reads */
        if (keys.length < 200)
            text_add(&keys, "%s%.60s", keys.length ? ", " : "", key);
    tn_fail(err, TN_E_INPUT, NULL,
            "has none of messages, conversations, prompt and completion, instruction and output, text, input_ids; its "
            "keys are %s",
            keys.data ? keys.data : "none");
    free(keys.data);
    return err->code;
}

static tn_status read_object(const record_reader *reader, const json_t *root, samples *to, tn_error *err)
{
    json_t *prompt = messages_member(root, "prompt"), *completion = messages_member(root, "completion");
    if (messages_member(root, "input_ids"))
        return read_tokens(reader, root, to, err);
    if (messages_member(root, "messages") || messages_member(root, "conversations"))
        return read_conversation(reader, root, MESSAGES_LIST, to, err);
    if (json_is_array(prompt) && json_is_array(completion))
        return read_conversation(reader, root, MESSAGES_COMPLETED, to, err);
    if (prompt && completion)
        return read_pair(reader, prompt, completion, to, err);
    if (messages_member(root, "instruction") || (messages_member(root, "input") && messages_member(root, "output")))
        return read_conversation(reader, root, MESSAGES_ALPACA, to, err);
    if (messages_member(root, "text"))
        return read_pair(reader, NULL, messages_member(root, "text"), to, err);
    return refuse(root, err);
}

/* One that leaves nothing to learn is wrong. */
static tn_status read_json(const record_reader *reader, const record *r, samples *to, int64_t *line, tn_error *err)
{
    json_error_t error = {.line = 1};
    size_t before = to->count;
    json_memory_watch();
    json_t *root = json_loadb(r->text, r->length, JSON_ALLOW_NUL, &error);
    tn_status status = TN_OK;
    if (json_memory_failed())
        status = tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    else if (!root)
        status = tn_fail(err, TN_E_INPUT, NULL, "is no JSON at column %d: %s; correct it", error.column, error.text);
    else if (!json_is_object(root))
        status = tn_fail(err, TN_E_INPUT, NULL, "is no object of JSON; write {\"messages\": ...} or another format");
    else
        status = read_object(reader, root, to, err);
    if (status == TN_OK && to->count == before)
        status =
            tn_fail(err, TN_E_INPUT, NULL,
                    "leaves nothing to learn within %lld tokens; correct it, allow longer samples, or leave it out",
                    (long long)reader->options.max_length);
    if (!root && error.line > 0)
        *line = error.line - 1;
    json_decref(root);
    return status;
}

/* Tokens that the model lacks are told here, whatever the format. */
static tn_status check_ids(const record_reader *reader, const samples *to, size_t from, tn_error *err)
{
    for (size_t i = from; reader->vocab > 0 && i < to->tokens; i++)
        if (to->ids[i] >= reader->vocab)
            return tn_fail(err, TN_E_INPUT, NULL,
                           "has the token %d, and the model has %lld; its tokenizer is another's", (int)to->ids[i],
                           (long long)reader->vocab);
    return TN_OK;
}

tn_status record_read(const record_reader *reader, const record *r, bool text, samples *to, int64_t *line,
                      tn_error *err)
{
    size_t before = to->tokens;
    *line = 0;
    if (r->length > RECORDS_LARGEST)
        return tn_fail(err, TN_E_INPUT, NULL, "has more than 64 MB, which no record may; divide it");
    tn_status status = text ? read_piece(reader, r, to, err) : read_json(reader, r, to, line, err);
    return status == TN_OK ? check_ids(reader, to, before, err) : status;
}
