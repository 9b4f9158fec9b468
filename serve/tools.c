/* Reading tools and tool_choice. */
#include "tools.h"

#include <string.h>

enum { MOST_TOOLS = 128, LONGEST_NAME = 64 };

bool tools_is_name(const json_t *name)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    const char *text = json_string_value(name);
    size_t length = json_string_length(name);
    return text && length > 0 && length <= LONGEST_NAME && strspn(text, allowed) == length;
}

static bool wrong_tool(size_t number, const char *what, request_error *e)
{
    return request_refuse(e, 400, "tools", "tools[%zu] %s", number, what);
}

static bool check_tool(const json_t *tool, size_t number, request_error *e)
{
    const json_t *function = request_member(tool, "function"), *type = request_member(tool, "type");
    const json_t *about = request_member(function, "description"), *parameters = request_member(function, "parameters");
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)
        return wrong_tool(number, "must have the type \"function\"", e);
    if (!json_is_object(function))
        return wrong_tool(number, "has no function", e);
    if (!tools_is_name(request_member(function, "name")))
        return wrong_tool(number, "needs a function.name of 1 to 64 letters, digits, _ and -", e);
    if (about && !json_is_string(about))
        return wrong_tool(number, "has a function.description that is no string", e);
    if (parameters && !json_is_object(parameters))
        return wrong_tool(number, "has function.parameters that are no JSON schema", e);
    request_flag(function, "strict", false, e);
    return e->status == 0;
}

static const char *name_of(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool read_list(tools *t, const json_t *body, request_error *e)
{
    const json_t *list = request_member(body, "tools"), *tool;
    size_t i;
    if (!list)
        return true;
    if (!json_is_array(list))
        return request_refuse(e, 400, "tools", "tools must be an array of tools");
    if (json_array_size(list) > MOST_TOOLS)
        return request_refuse(e, 400, "tools", "tools has more than %d entries", MOST_TOOLS);
    json_array_foreach (list, i, tool) {
        if (!check_tool(tool, i, e))
            return false;
    }
    if (json_array_size(list) > 0)
        t->list = list;
    return true;
}

static bool read_named(tools *t, const json_t *choice, request_error *e)
{
    const char *type = json_string_value(request_member(choice, "type"));
    t->named = json_string_value(request_member(request_member(choice, "function"), "name"));
    t->choice = TOOLS_NAMED;
    if (!type || strcmp(type, "function") != 0 || !t->named)
        return request_refuse(e, 400, "tool_choice",
                              "tool_choice must be none, auto, required or {\"type\": \"function\", \"function\": "
                              "{\"name\": ...}}");
    for (size_t i = 0; i < json_array_size(t->list); i++)
        if (strcmp(name_of(json_array_get(t->list, i)), t->named) == 0)
            return true;
    return request_refuse(e, 400, "tool_choice", "tool_choice names '%.64s', which is none of tools", t->named);
}

static bool read_choice(tools *t, const json_t *body, request_error *e)
{
    static const struct {
        const char *name;
        tools_choice choice;
    } words[] = {{"none", TOOLS_NONE}, {"auto", TOOLS_AUTO}, {"required", TOOLS_REQUIRED}};
    const json_t *choice = request_member(body, "tool_choice");
    const char *word = json_string_value(choice);
    t->choice = t->list ? TOOLS_AUTO : TOOLS_NONE;
    if (!choice || (word && strcmp(word, "none") == 0)) {
        t->choice = choice ? TOOLS_NONE : t->choice;
        return true;
    }
    bool empty = request_member(body, "tools") != NULL && word && strcmp(word, "auto") == 0;
    if (!t->list)
        return empty || request_refuse(e, 400, "tool_choice", "tool_choice needs tools");
    if (json_is_object(choice))
        return read_named(t, choice, e);
    for (size_t i = 0; i < sizeof words / sizeof *words && word; i++)
        if (strcmp(word, words[i].name) == 0) {
            t->choice = words[i].choice;
            return true;
        }
    return request_refuse(e, 400, "tool_choice", "tool_choice must be none, auto, required or one of tools");
}

bool tools_read(tools *t, const json_t *body, request_error *e)
{
    static const char *const former[] = {"functions", "function_call"};
    *t = (tools){0};
    for (size_t i = 0; i < sizeof former / sizeof *former; i++)
        if (request_member(body, former[i]))
            return request_refuse(e, 400, former[i], "%s is no longer supported; use tools and tool_choice", former[i]);
    t->one_call = !request_flag(body, "parallel_tool_calls", true, e);
    return e->status == 0 && read_list(t, body, e) && read_choice(t, body, e);
}
