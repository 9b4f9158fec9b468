/* Messages before and behind the template: what apply_chat_template of transformers does around Jinja. */
#include "template/conversation.h"
#include "template/chars.h"
#include "template/runtime.h"

#include <string.h>

static const char MARK[] = "CONTINUE_FINAL_MESSAGE_TAG ";

static value list_of(sandbox *s, const json_t *json)
{
    size_t count = json_array_size(json);
    list *items = value_list_new(s, LIST_LIST, count);
    for (size_t i = 0; i < count; i++)
        value_list_add(s, items, conversation_value(s, json_array_get(json, i)));
    return value_list(items);
}

static value dict_of(sandbox *s, const json_t *json)
{
    mapping *m = mapping_new(s);
    const char *key;
    json_t *item;
    json_object_foreach ((json_t *)(uintptr_t)json, key, item) /* which only reads */
        mapping_put(s, m, key, conversation_value(s, item));
    return mapping_value(m);
}

value conversation_value(sandbox *s, const json_t *json)
{
    value v = value_none();
    sandbox_enter(s);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        v = dict_of(s, json);
        break;
    case JSON_ARRAY:
        v = list_of(s, json);
        break;
    case JSON_STRING:
        v = value_string(s, json_string_value(json), json_string_length(json));
        break;
    case JSON_INTEGER:
        v = value_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = value_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v = value_bool(json_is_true(json));
        break;
    default:
        break;
    }
    sandbox_leave(s);
    return v;
}

/* Some templates read reasoning as `thinking`, which comes first then, most as `reasoning_content`. */
static value with_reasoning(sandbox *s, value message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const value *reasoning = NULL;
    for (int i = 0; i < 3 && !reasoning; i++) {
        reasoning = mapping_find(s, message.as.mapping, names[i]);
        if (reasoning && reasoning->kind == VALUE_NONE)
            reasoning = NULL;
    }
    if (!reasoning)
        return message;
    mapping *m = mapping_new(s);
    mapping_put(s, m, "thinking", *reasoning);
    mapping_update(s, m, message.as.mapping);
    mapping_put(s, m, "reasoning_content", *reasoning);
    return mapping_value(m);
}

/* The texts of a content in parts, a line each, as the servers of models join them. */
static value joined(sandbox *s, const list *parts, size_t message)
{
    piece_text to = {0};
    for (size_t i = 0; i < parts->count; i++) {
        value part = parts->items[i];
        bool is_object = part.kind == VALUE_DICT;
        const value *type = is_object ? mapping_find(s, part.as.mapping, "type") : NULL;
        const value *words = is_object ? mapping_find(s, part.as.mapping, "text") : &part;
        if (type && type->kind == VALUE_STRING && strcmp(type->as.string->data, "text") != 0)
            sandbox_fail(
                s,
                "message %zu has a part of type '%.40s', and this chat template takes texts only; leave the part "
                "out, or use a model that takes it",
                message, type->as.string->data);
        if (!words || words->kind != VALUE_STRING)
            sandbox_fail(s, "message %zu has a part without a text; write {\"type\": \"text\", \"text\": ...}",
                         message);
        repr_add_text(s, &to, i > 0 ? "\n" : "");
        repr_add_str(s, &to, *words);
    }
    return repr_done(s, &to);
}

value conversation_messages(sandbox *s, const json_t *json, bool parts)
{
    value messages = conversation_value(s, json);
    for (size_t i = 0; i < messages.as.list->count; i++) {
        value *message = &messages.as.list->items[i];
        if (message->kind != VALUE_DICT)
            sandbox_fail(s, "message %zu is no object; write {\"role\": ..., \"content\": ...}", i);
        const value *content = mapping_find(s, message->as.mapping, "content");
        if (!parts && content && content->kind == VALUE_LIST)
            mapping_put(s, message->as.mapping, "content", joined(s, content->as.list, i));
        *message = with_reasoning(s, *message);
    }
    return messages;
}

static value marked(sandbox *s, value text)
{
    piece_text to = {0};
    if (text.kind != VALUE_STRING)
        sandbox_fail(s, "the last message's content is no text to continue; leave continue_final_message out");
    repr_add_str(s, &to, text);
    repr_add_text(s, &to, MARK);
    return repr_done(s, &to);
}

value conversation_mark(sandbox *s, value messages, const string **text)
{
    list *items = messages.as.list;
    if (items->count == 0)
        sandbox_fail(s, "there is no message to continue; leave continue_final_message out");
    mapping *last = items->items[items->count - 1].as.mapping;
    const value *content = mapping_find(s, last, "content");
    if (!content || content->kind == VALUE_NONE)
        sandbox_fail(s, "the last message has no content to continue; leave continue_final_message out");
    if (content->kind != VALUE_LIST) {
        value with_mark = marked(s, *content);
        *text = content->as.string;
        mapping_put(s, last, "content", with_mark);
        return messages;
    }
    for (size_t i = content->as.list->count; i-- > 0;) {
        value part = content->as.list->items[i];
        const value *words = part.kind == VALUE_DICT ? mapping_find(s, part.as.mapping, "text") : NULL;
        if (words) {
            value with_mark = marked(s, *words);
            *text = words->as.string;
            mapping_put(s, part.as.mapping, "text", with_mark);
            return messages;
        }
    }
    sandbox_fail(s, "the last message has no text to continue; leave continue_final_message out");
}

size_t conversation_cut(sandbox *s, const char *rendered, size_t size, const string *text)
{
    const string mark = {.data = MARK, .size = sizeof MARK - 2}; /* without its space */
    const string *words = text_methods_strip(s, text, (value){0}, true, true).as.string;
    const char *found = chars_find_last(s, rendered, size, &mark);
    bool there = chars_find(s, rendered, size, words) != NULL;
    if (!found || !there)
        sandbox_fail(s, "the last message's content does not appear in what the template makes of it, so it cannot be "
                        "continued; leave continue_final_message out");
    size_t at = (size_t)(found - rendered);
    if (at + mark.size < size && rendered[at + mark.size] == ' ')
        return at;
    string kept = {.data = rendered, .size = at, .points = chars_count(s, rendered, at)};
    return text_methods_strip(s, &kept, (value){0}, false, true).as.string->size;
}
