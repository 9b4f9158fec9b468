/* Messages of a chat: checked and put into one form. */
#include "messages.h"

#include <stdio.h>
#include <string.h>

enum { MOST_MESSAGES = 1 << 16 };

/* Where in the request something is. */
typedef struct place {
    const api *api;
    size_t number;   /* of the message                                                            */
    size_t calls;    /* of tools that came so far: ids are made up for those that have none         */
    size_t answered; /* of these, how many answers came without an id                             */
    shown *shown;
    request_error *e;
} place;

static bool wrong(const place *p, const char *member, const char *what)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu]%s%s", p->number, member[0] ? "." : "", member);
    return request_refuse(p->e, 400, param, "%s %s", param, what);
}

static bool put(const place *p, json_t *to, const char *key, json_t *value)
{
    return json_object_set_new(to, key, value) == 0 || request_no_memory(p->e);
}

/* ---- content ------------------------------------------------------------------------------------ */

static bool read_part(const place *p, const json_t *part, json_t *out)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, type && strcmp(type, "refusal") == 0 ? "refusal" : "text");
    if (!type)
        return wrong(p, "content", "has a part without a type");
    if (strcmp(type, "image_url") == 0 || strcmp(type, "input_audio") == 0) {
        char param[64];
        snprintf(param, sizeof param, "messages[%zu].content", p->number);
        json_t *seen = shown_take(p->shown, part, param, p->e);
        return seen && (json_array_append_new(out, seen) == 0 || request_no_memory(p->e));
    }
    if (strcmp(type, "video_url") == 0 || strcmp(type, "file") == 0)
        return wrong(p, "content", "has a part that is no text, picture or sound");
    if (strcmp(type, "text") != 0 && strcmp(type, "refusal") != 0)
        return wrong(p, "content", "has a part of an unknown type");
    if (!json_is_string(text))
        return wrong(p, "content", "has a part whose text is no string");
    json_t *one = json_pack("{s:s, s:O}", "type", "text", "text", text);
    return json_array_append_new(out, one) == 0 || request_no_memory(p->e);
}

static bool read_parts(const place *p, const json_t *parts, json_t *to)
{
    size_t i;
    json_t *part, *list = json_array();
    if (json_array_size(parts) == 0) {
        json_decref(list);
        return wrong(p, "content", "has no parts");
    }
    if (!put(p, to, "content", list))
        return false;
    json_array_foreach (parts, i, part) {
        if (!read_part(p, part, list))
            return false;
    }
    return true;
}

static bool read_content(const place *p, const json_t *message, bool needed, json_t *to)
{
    json_t *content = request_member(message, "content");
    if (json_is_array(content))
        return read_parts(p, content, to);
    if (!content && needed)
        return wrong(p, "content", "is missing");
    if (content && !json_is_string(content))
        return wrong(p, "content", "must be a string or an array of parts");
    return put(p, to, "content", content ? json_incref(content) : json_null());
}

/* ---- calls -------------------------------------------------------------------------------------- */

/* Templates write arguments as an object; what is none stays the text that it is. */
static json_t *arguments_of(json_t *given)
{
    const char *text = json_string_value(given);
    if (!text)
        return given ? json_incref(given) : json_object();
    json_t *object = json_loadb(text, json_string_length(given), JSON_ALLOW_NUL, NULL);
    if (!object && json_string_length(given) == 0)
        return json_object();
    if (json_is_object(object))
        return object;
    json_decref(object);
    return json_incref(given);
}

/* Some clients send none; nine characters are what the strictest template wants. */
static json_t *id_of(json_t *given, size_t number)
{
    char made[16];
    snprintf(made, sizeof made, "call%05zu", number % 100000);
    return json_is_string(given) && json_string_length(given) > 0 ? json_incref(given) : json_string(made);
}

static bool read_call(place *p, const json_t *call, json_t *out)
{
    const json_t *function = request_member(call, "function"), *id = request_member(call, "id");
    json_t *name = request_member(function, "name"), *arguments = request_member(function, "arguments");
    if (!json_is_object(function) || !json_is_string(name))
        return wrong(p, "tool_calls", "must be an array of calls with function.name");
    if (id && !json_is_string(id))
        return wrong(p, "tool_calls", "has an id that is no string");
    if (arguments && !json_is_string(arguments) && !json_is_object(arguments))
        return wrong(p, "tool_calls", "has arguments that are no string");
    json_t *one = json_pack("{s:o, s:s, s:{s:O, s:o}}", "id", id_of(request_member(call, "id"), ++p->calls), "type",
                            "function", "function", "name", name, "arguments", arguments_of(arguments));
    return json_array_append_new(out, one) == 0 || request_no_memory(p->e);
}

static bool read_calls(place *p, const json_t *message, json_t *to)
{
    const json_t *calls = request_member(message, "tool_calls"), *call;
    size_t i;
    if (!calls || (json_is_array(calls) && json_array_size(calls) == 0))
        return true;
    if (!json_is_array(calls))
        return wrong(p, "tool_calls", "must be an array of calls with function.name");
    json_t *list = json_array();
    if (!put(p, to, "tool_calls", list))
        return false;
    p->answered = p->calls;
    json_array_foreach (calls, i, call) {
        if (!read_call(p, call, list))
            return false;
    }
    return true;
}

/* ---- messages ----------------------------------------------------------------------------------- */

static bool copy_text(const place *p, const json_t *message, const char *from, const char *key, json_t *to)
{
    json_t *value = request_member(message, from);
    if (value && !json_is_string(value))
        return wrong(p, from, "must be a string");
    return !value || put(p, to, key, json_incref(value));
}

/* What the model thought before goes by several names. */
static bool copy_thought(const place *p, const json_t *message, json_t *to)
{
    const char *from = request_member(message, "reasoning_content") ? "reasoning_content" : "reasoning";
    const char *text = p->api->template_text ? p->api->template_text : "";
    if (!json_is_string(request_member(message, from)) && strcmp(from, "reasoning") == 0)
        return true; /* of other services it is an object                                              */
    if (!copy_text(p, message, from, "reasoning_content", to))
        return false;
    bool other = !strstr(text, "reasoning_content") && strstr(text, ".thinking") && !request_member(to, "content");
    return !other || copy_text(p, message, from, "thinking", to);
}

static bool read_assistant(place *p, const json_t *message, json_t *to)
{
    bool calls = json_array_size(request_member(message, "tool_calls")) > 0;
    bool thought = request_member(message, "reasoning_content") || request_member(message, "reasoning") ||
                   request_member(message, "refusal");
    return read_content(p, message, !calls && !thought, to) && read_calls(p, message, to) &&
           copy_thought(p, message, to);
}

static bool read_tool(place *p, const json_t *message, json_t *to)
{
    json_t *id = request_member(message, "tool_call_id");
    if (id && !json_is_string(id))
        return wrong(p, "tool_call_id", "must be a string");
    if (!id)
        p->answered++;
    return read_content(p, message, true, to) && put(p, to, "tool_call_id", id_of(id, p->answered));
}

static bool read_message(place *p, const json_t *message, json_t *to)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    const char *role = json_string_value(json_object_get(message, "role"));
    bool known = false;
    if (!json_is_object(message))
        return wrong(p, "", "must be an object with role and content");
    for (size_t i = 0; i < sizeof roles / sizeof *roles && role; i++)
        known = known || strcmp(role, roles[i]) == 0;
    if (!known)
        return wrong(p, "role", "must be system, developer, user, assistant or tool");
    const char *text = p->api->template_text;
    if (strcmp(role, "developer") == 0 && !(text && strstr(text, "developer")))
        role = "system";
    if (!put(p, to, "role", json_string(role)) || !copy_text(p, message, "name", "name", to))
        return false;
    if (strcmp(role, "assistant") == 0)
        return read_assistant(p, message, to);
    return strcmp(role, "tool") == 0 ? read_tool(p, message, to) : read_content(p, message, true, to);
}

json_t *messages_read(const api *a, const json_t *body, shown *shown, request_error *e)
{
    const json_t *given = request_member(body, "messages"), *message;
    place p = {.api = a, .shown = shown, .e = e};
    if (!json_is_array(given) || json_array_size(given) == 0) {
        request_refuse(e, 400, "messages", "messages must be an array of at least one message");
        return NULL;
    }
    if (json_array_size(given) > MOST_MESSAGES) {
        request_refuse(e, 400, "messages", "messages has more than %d entries", MOST_MESSAGES);
        return NULL;
    }
    json_t *out = json_array();
    bool good = out || request_no_memory(e);
    json_array_foreach (given, p.number, message) {
        json_t *one = good ? json_object() : NULL;
        if (json_array_append_new(out, one) != 0)
            good = good && request_no_memory(e);
        good = good && read_message(&p, message, one);
        if (!good)
            break;
    }
    if (good)
        return out;
    json_decref(out);
    return NULL;
}
