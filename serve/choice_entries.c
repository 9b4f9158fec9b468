/* The log-probabilities of a sequence's tokens, which go out with the text that they are of. */
#include "reply.h"

#include <stdlib.h>
#include <string.h>

/* ---- which token's text is whole ---------------------------------------------------------------- */

/* How many bytes at the end begin a character of UTF-8 that is not whole. */
static size_t open_bytes(const unsigned char *bytes, size_t length)
{
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        unsigned char c = bytes[length - back];
        if (c < 0x80)
            return 0;
        if (c >= 0xC0) {
            size_t whole = c >= 0xF5 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 1;
            return whole > back ? back : 0;
        }
    }
    return 0;
}

/* Does the token end in the midst of a character? */
static bool leaves_open(choice *c, int64_t id)
{
    char *bytes = NULL;
    size_t length = 0;
    if (!c->of->api->vocabulary || tn_tokenizer_bytes(c->of->api->tokenizer, id, &bytes, &length, NULL, NULL) != TN_OK)
        return false;
    unsigned char all[2 * sizeof c->tail];
    size_t taken = length < sizeof c->tail ? length : sizeof c->tail;
    size_t before = length < sizeof c->tail ? c->tail_length : 0;
    memcpy(all, c->tail, before);
    memcpy(all + before, bytes + length - taken, taken);
    free(bytes);
    c->tail_length = open_bytes(all, before + taken);
    memcpy(c->tail, all + before + taken - c->tail_length, c->tail_length);
    return c->tail_length > 0;
}

/* ---- keeping ------------------------------------------------------------------------------------ */

bool choice_note(choice *c, int64_t id, const char *shown, size_t length)
{
    if (c->entry_count == c->entry_capacity) {
        size_t capacity = c->entry_capacity * 2 + 16;
        choice_entry *larger = realloc(c->entries, capacity * sizeof *larger);
        if (!larger)
            return choice_fail(c, 500, "out of memory");
        c->entries = larger;
        c->entry_capacity = capacity;
    }
    json_t *json = likelihood_entry(&c->likelihood, id, shown, length);
    if (!json)
        return choice_fail(c, 500, "out of memory");
    bool open = leaves_open(c, id);
    for (size_t i = c->entry_count; i > 0 && c->entries[i - 1].open; i--) {
        c->entries[i - 1].end = c->told + length;
        c->entries[i - 1].open = open;
    }
    c->entries[c->entry_count++] = (choice_entry){json, c->told + length, open};
    return true;
}

/* ---- giving out --------------------------------------------------------------------------------- */

static size_t characters_of(const json_t *text)
{
    const char *at = json_string_value(text);
    size_t n = 0, length = json_string_length(text);
    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)at[i] & 0xC0) != 0x80;
    return n;
}

/* Of completions four lists that run beside each other. */
static bool list_completion(choice *c, json_t *out, const json_t *entry)
{
    json_t *token = json_object_get(entry, "token");
    bool good = json_array_append(json_object_get(out, "tokens"), token) == 0 &&
                json_array_append(json_object_get(out, "token_logprobs"), json_object_get(entry, "logprob")) == 0 &&
                json_array_append(json_object_get(out, "top_logprobs"), json_object_get(entry, "top")) == 0 &&
                json_array_append_new(json_object_get(out, "text_offset"), json_integer((json_int_t)c->offset)) == 0;
    c->offset += characters_of(token);
    return good;
}

static json_t *new_list(const choice *c)
{
    return c->of->chat
               ? json_pack("{s:[], s:n}", "content", "refusal")
               : json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
}

json_t *choice_take_entries(choice *c, bool all)
{
    size_t n = 0;
    while (n < c->entry_count && !c->entries[n].open && c->entries[n].end <= c->kept)
        n++;
    json_t *out = n > 0 ? new_list(c) : NULL;
    bool good = out != NULL;
    for (size_t i = 0; i < n; i++) {
        good = good && (c->of->chat ? json_array_append(json_object_get(out, "content"), c->entries[i].json) == 0
                                    : list_completion(c, out, c->entries[i].json));
        json_decref(c->entries[i].json);
    }
    for (size_t i = n; i < c->entry_count && all; i++) /* of what a stop has removed                             */
        json_decref(c->entries[i].json);
    if (all)
        n = c->entry_count;
    c->entry_count -= n;
    if (c->entry_count > 0)
        memmove(c->entries, c->entries + n, c->entry_count * sizeof *c->entries);
    if (out && !good) {
        json_decref(out);
        choice_fail(c, 500, "out of memory");
        return NULL;
    }
    return out;
}
