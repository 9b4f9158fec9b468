/* Formats of conversations as one: roles, contents, calls of tools. Where jansson has no memory what it makes is NULL,
 * which it takes everywhere; that is looked at once, at the end. */
#include "dataset/messages.h"

#include "base/json_memory.h"
#include "dataset/escape.h"

#include <stdlib.h>
#include <string.h>

typedef struct reading {
    const record_reader *reader;
    messages *to;
    tn_error *err;
} reading;

json_t *messages_member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

bool messages_is_answer(const messages *m, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(m->list, i), "role"));
    return role && strcmp(role, "assistant") == 0;
}

void messages_free(messages *m)
{
    json_decref(m->list);
    json_decref(m->tools);
    free(m->learnt);
    *m = (messages){0};
}

/* Puts a copy of a text, or of all texts in a value, without special tokens. */
static tn_status put(const reading *r, json_t *object, const char *key, json_t *value)
{
    json_t *made = escape_value(r->reader->specials, value, r->err);
    if (!made)
        return r->err->code;
    json_object_set_new(object, key, made);
    return TN_OK;
}

/* ---- calls of tools ----------------------------------------------------------------------------------- */

/* The value itself, or what a text has as JSON, a list or an object. NULL: it is neither. Owned. */
static json_t *parsed(json_t *value)
{
    json_t *made = json_is_string(value)
                       ? json_loadb(json_string_value(value), json_string_length(value), JSON_ALLOW_NUL, NULL)
                       : json_incref(value);
    if (json_is_array(made) || json_is_object(made))
        return made;
    json_decref(made);
    return NULL;
}

/* {"name", "arguments"}, or such an object as "function" of another. Templates take arguments as an object. */
static tn_status add_call(const reading *r, json_t *call, json_t *calls)
{
    json_t *function = messages_member(call, "function"), *id = messages_member(call, "id");
    json_t *name = messages_member(function ? function : call, "name");
    json_t *arguments = messages_member(function ? function : call, "arguments");
    if (!json_is_string(name))
        return tn_fail(r->err, TN_E_INPUT, NULL,
                       "calls a tool without a name; write {\"name\": ..., \"arguments\": {...}}");
    json_t *object = arguments ? parsed(arguments) : json_object(), *inner = json_object(), *outer = json_object();
    json_object_set(inner, "name", name);
    tn_status status = put(r, inner, "arguments", object ? object : arguments);
    json_decref(object);
    if (id)
        json_object_set(outer, "id", id);
    json_object_set_new(outer, "type", json_string("function"));
    json_object_set_new(outer, "function", inner);
    json_array_append_new(calls, outer);
    return status;
}

/* One call or a list of them, or a text that is such JSON. */
static tn_status add_calls(const reading *r, json_t *given, json_t *message)
{
    json_t *all = parsed(given), *calls = messages_member(message, "tool_calls"), *call;
    tn_status status = TN_OK;
    size_t i;
    if (!all)
        return tn_fail(r->err, TN_E_INPUT, NULL,
                       "calls a tool by what is no JSON; write {\"name\": ..., \"arguments\": {...}}");
    if (!calls && (json_is_object(all) || json_array_size(all) > 0)) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    if (json_is_object(all))
        status = add_call(r, all, calls);
    json_array_foreach (all, i, call) {
        if (status == TN_OK)
            status = add_call(r, call, calls);
    }
    json_decref(all);
    return status;
}

/* ---- contents ------------------------------------------------------------------------------------------ */

/* Two texts as one, with another between them. Owned. */
static json_t *joined(const json_t *a, const char *between, const json_t *b)
{
    size_t first = json_string_length(a), middle = strlen(between), last = json_string_length(b);
    char *text = malloc(first + middle + last + 1);
    if (!text)
        return NULL;
    memcpy(text, json_string_value(a), first);
    memcpy(text + first, between, middle);
    memcpy(text + first + middle, json_string_value(b), last);
    json_t *made = json_stringn(text, first + middle + last);
    free(text);
    return made;
}

/* Appends a text to the one that the message has under a key. */
static tn_status append(const reading *r, json_t *message, const char *key, json_t *words)
{
    json_t *more = escape_value(r->reader->specials, words, r->err), *have = messages_member(message, key);
    if (!more)
        return r->err->code;
    json_t *all = json_is_string(have) ? joined(have, "", more) : json_incref(more);
    json_decref(more);
    return json_object_set_new(message, key, all) == 0 ? TN_OK : tn_fail(r->err, TN_E_MEMORY, NULL, "out of memory");
}

/* {"type", "text"} stays a part, {"type", "value"} becomes a piece of one text; or a text. */
static tn_status add_part(const reading *r, json_t *part, json_t *list, json_t *message)
{
    json_t *value = messages_member(part, "value"), *words = value ? value : messages_member(part, "text");
    const char *type = json_string_value(messages_member(part, "type"));
    words = json_is_string(part) ? part : words;
    if (type && strcmp(type, "tool_call") == 0 && value)
        return add_calls(r, value, message);
    if (type && (strcmp(type, "reasoning") == 0 || strcmp(type, "thinking") == 0)) {
        words = words ? words : messages_member(part, type);
        if (json_is_string(words))
            return append(r, message, "reasoning_content", words);
    }
    if (type && strcmp(type, "text") != 0)
        return tn_fail(r->err, TN_E_INPUT, NULL,
                       "has a part of type '%.40s', and only texts can be learnt; leave it out", type);
    if (!json_is_string(words))
        return tn_fail(r->err, TN_E_INPUT, NULL,
                       "has a part without a text; write {\"type\": \"text\", \"text\": ...}");
    if (value)
        return append(r, message, "content", words);
    json_t *copy = json_object();
    json_object_set_new(copy, "type", json_string("text"));
    json_array_append_new(list, copy);
    return put(r, copy, "text", words);
}

static tn_status read_content(const reading *r, json_t *content, json_t *message)
{
    json_t *part, *list;
    size_t i;
    tn_status status = TN_OK;
    if (json_is_string(content))
        return put(r, message, "content", content);
    if (!json_is_array(content))
        return tn_fail(r->err, TN_E_INPUT, NULL,
                       "has a content that is neither a text nor a list of parts; correct it");
    list = json_array();
    json_array_foreach (content, i, part) {
        if (status == TN_OK)
            status = add_part(r, part, list, message);
    }
    if (json_array_size(list) > 0 && !messages_member(message, "content"))
        json_object_set(message, "content", list);
    else if (json_array_size(list) > 0 && status == TN_OK)
        status = tn_fail(r->err, TN_E_INPUT, NULL, "has parts with a value beside others with a text; write all alike");
    json_decref(list);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* What templates call who is called name here; NULL: nobody is. */
static const char *role_of(const reading *r, const char *name, bool *calls)
{
    static const char *const names[][2] = {
        {"user", "user"},         {"human", "user"},       {"assistant", "assistant"}, {"gpt", "assistant"},
        {"chatgpt", "assistant"}, {"model", "assistant"},  {"system", "system"},       {"function_call", "assistant"},
        {"tool", "tool"},         {"observation", "tool"}, {"function", "tool"},       {"function_response", "tool"}};
    *calls = name && strcmp(name, "function_call") == 0;
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i][0]) == 0)
            return names[i][1];
    if (!name || strcmp(name, "developer") != 0)
        return NULL;
    const char *source = tn_template_source(r->reader->chat, false);
    return source && strstr(source, "developer") ? "developer" : "system";
}

static tn_status copy_others(const reading *r, json_t *from, json_t *to)
{
    static const char *const texts[] = {"reasoning_content", "thinking", "reasoning"};
    static const char *const read[] = {"role", "from", "content", "value", "tool_calls", "loss_weight", "weight"};
    const char *key;
    json_t *value;
    json_object_foreach (from, key, value) {
        bool known = json_is_null(value);
        for (size_t i = 0; i < sizeof read / sizeof *read; i++)
            known |= strcmp(key, read[i]) == 0;
        bool text = false;
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            text |= strcmp(key, texts[i]) == 0 && json_is_string(value);
        if (!known && !text)
            json_object_set(to, key, value);
        else if (!known && put(r, to, key, value) != TN_OK)
            return r->err->code;
    }
    return TN_OK;
}

/* A weight of the loss says whether an answer is learnt. */
static tn_status read_weight(const reading *r, const json_t *given, bool *learnt)
{
    const json_t *weight = messages_member(given, "loss_weight");
    weight = weight ? weight : messages_member(given, "weight");
    *learnt = !weight || json_number_value(weight) == 1;
    if (*learnt || (json_is_number(weight) && json_number_value(weight) == 0))
        return TN_OK;
    return tn_fail(r->err, TN_E_INPUT, NULL, "has a loss_weight that is neither 0 nor 1; write one of them");
}

static tn_status add_message(reading *r, json_t *given)
{
    bool calls = false;
    json_t *name = messages_member(given, "role"), *content = messages_member(given, "content");
    name = name ? name : messages_member(given, "from");
    content = content ? content : messages_member(given, "value");
    const char *role = role_of(r, json_string_value(name), &calls);
    if (!role)
        return tn_fail(r->err, TN_E_INPUT, NULL, "message %zu has %s%.40s%s; write user, assistant, system or tool",
                       json_array_size(r->to->list), json_is_string(name) ? "the role '" : "no role",
                       json_is_string(name) ? json_string_value(name) : "", json_is_string(name) ? "'" : "");
    json_t *message = json_object(), *called = messages_member(given, "tool_calls");
    size_t number = json_array_size(r->to->list);
    json_object_set_new(message, "role", json_string(role));
    json_array_append_new(r->to->list, message);
    tn_status status = read_weight(r, given, &r->to->learnt[number]);
    if (status == TN_OK)
        status = copy_others(r, given, message);
    if (status == TN_OK && calls && content)
        status = add_calls(r, content, message);
    else if (status == TN_OK && content)
        status = read_content(r, content, message);
    if (status == TN_OK && called)
        status = add_calls(r, called, message);
    bool empty = status == TN_OK && !messages_member(message, "content");
    if (empty && !content && !messages_member(message, "tool_calls"))
        return tn_fail(r->err, TN_E_INPUT, NULL, "message %zu has no content; write one, which may be empty", number);
    if (empty)
        json_object_set_new(message, "content", json_string(""));
    return status;
}

/* Adds the messages of a list; learnt has room for them. */
static tn_status add_list(reading *r, json_t *list, const char *key)
{
    json_t *message;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return tn_fail(r->err, TN_E_INPUT, NULL, "%s is no list of messages; write [{\"role\": ..., \"content\": ...}]",
                       key);
    json_array_foreach (list, i, message) {
        if (add_message(r, message) != TN_OK)
            return r->err->code;
    }
    return TN_OK;
}

static tn_status add_text(reading *r, const char *role, json_t *text, const char *key)
{
    if (!json_is_string(text))
        return tn_fail(r->err, TN_E_INPUT, NULL, "%s is no text; correct it", key);
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string(role));
    json_object_set(message, "content", text);
    tn_status status = add_message(r, message);
    json_decref(message);
    return status;
}

/* ---- records --------------------------------------------------------------------------------------------- */

static tn_status add_history(reading *r, json_t *history)
{
    json_t *pair;
    size_t i;
    if (history && !json_is_array(history))
        return tn_fail(r->err, TN_E_INPUT, NULL, "history is no list; write [[question, answer], ...]");
    json_array_foreach (history, i, pair) {
        if (json_array_size(pair) != 2)
            return tn_fail(r->err, TN_E_INPUT, NULL, "history has what is no pair; write [[question, answer], ...]");
        if (add_text(r, "user", json_array_get(pair, 0), "a question of history") != TN_OK ||
            add_text(r, "assistant", json_array_get(pair, 1), "an answer of history") != TN_OK)
            return r->err->code;
    }
    return TN_OK;
}

static tn_status read_alpaca(reading *r, const json_t *root)
{
    json_t *instruction = messages_member(root, "instruction"), *input = messages_member(root, "input");
    json_t *output = messages_member(root, "output");
    if (!output)
        return tn_fail(r->err, TN_E_INPUT, NULL, "has an instruction and no output; write one, which may be empty");
    if ((instruction && !json_is_string(instruction)) || (input && !json_is_string(input)))
        return tn_fail(r->err, TN_E_INPUT, NULL, "has an instruction or an input that is no text; correct it");
    bool both = json_string_length(instruction) > 0 && json_string_length(input) > 0;
    if (add_history(r, messages_member(root, "history")) != TN_OK)
        return r->err->code;
    json_t *one = json_string_length(input) > 0 ? input : instruction;
    json_t *asked = both ? joined(instruction, r->reader->options.join, input) : json_incref(one ? one : input);
    tn_status status =
        asked ? add_text(r, "user", asked, "instruction") : tn_fail(r->err, TN_E_MEMORY, NULL, "out of memory");
    json_decref(asked);
    return status == TN_OK ? add_text(r, "assistant", output, "output") : status;
}

/* A system prompt beside the messages stands before them, unless they begin with one. */
static tn_status add_system(reading *r, const json_t *root, json_t *first)
{
    json_t *system = messages_member(root, "system"), *role = messages_member(first, "role");
    const char *name = json_string_value(role ? role : messages_member(first, "from"));
    bool has = name && (strcmp(name, "system") == 0 || strcmp(name, "developer") == 0);
    bool empty = json_is_string(system) && json_string_length(system) == 0;
    return system && !has && !empty ? add_text(r, "system", system, "system") : TN_OK;
}

/* A list, one tool, or a text that is such JSON. */
static tn_status read_tools(reading *r, const json_t *root)
{
    json_t *given = messages_member(root, "tools");
    const char *text = json_string_value(given);
    if (!given || (text && text[strspn(text, " \t\r\n")] == '\0'))
        return TN_OK;
    json_t *tools = parsed(given), *list = json_is_object(tools) ? json_array() : json_incref(tools);
    if (!tools)
        return tn_fail(r->err, TN_E_INPUT, NULL, "tools is no list, nor a text with one; correct it");
    if (json_is_object(tools))
        json_array_append(list, tools);
    if (json_array_size(list) > 0)
        r->to->tools = escape_value(r->reader->specials, list, r->err);
    bool good = json_array_size(list) == 0 || r->to->tools;
    json_decref(list);
    json_decref(tools);
    return good ? TN_OK : r->err->code;
}

static tn_status read_kind(reading *r, const json_t *root, messages_kind kind)
{
    json_t *list = messages_member(root, "messages");
    const char *key = list ? "messages" : "conversations";
    list = list ? list : messages_member(root, key);
    if (kind == MESSAGES_COMPLETED)
        list = messages_member(root, key = "prompt");
    json_t *more = kind == MESSAGES_COMPLETED ? messages_member(root, "completion") : NULL;
    json_t *history = kind == MESSAGES_ALPACA ? messages_member(root, "history") : NULL;
    r->to->list = json_array();
    r->to->learnt = calloc(json_array_size(list) + json_array_size(more) + 2 * json_array_size(history) + 4, 1);
    if (!r->to->list || !r->to->learnt)
        return tn_fail(r->err, TN_E_MEMORY, NULL, "out of memory");
    tn_status status = add_system(r, root, json_array_get(list, 0));
    if (status == TN_OK)
        status = kind == MESSAGES_ALPACA ? read_alpaca(r, root) : add_list(r, list, key);
    if (status == TN_OK && kind == MESSAGES_COMPLETED) {
        r->to->prompt = json_array_size(r->to->list);
        status = add_list(r, more, "completion");
    }
    return status == TN_OK ? read_tools(r, root) : status;
}

tn_status messages_of_record(const record_reader *reader, const json_t *root, messages_kind kind, messages *m,
                             tn_error *err)
{
    reading r = {.reader = reader, .to = m, .err = err};
    tn_status status = read_kind(&r, root, kind);
    if (!json_memory_failed())
        return status;
    tn_error_clear(err); /* of what was taken for the record's fault */
    return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}
