/* A chat's messages become the text of a prompt. */
#include "messages.h"

#include <stdlib.h>
#include <string.h>

/* ---- what the template is told ------------------------------------------------------------------ */

/* How much thought is asked for; "none" is also told in the ways of templates that know only yes and no. */
static bool set_effort(json_t *variables, const json_t *body, request_error *e)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const char *effort = request_text(body, "reasoning_effort", NULL, e);
    bool known = !effort;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts && effort; i++)
        known = known || strcmp(effort, efforts[i]) == 0;
    if (!known)
        return request_refuse(e, 400, "reasoning_effort",
                              "reasoning_effort must be none, minimal, low, medium, high, xhigh or max");
    if (!effort)
        return e->status == 0;
    bool none = strcmp(effort, "none") == 0;
    bool good = json_object_set_new(variables, "reasoning_effort", json_string(effort)) == 0 &&
                (!none || (json_object_set_new(variables, "enable_thinking", json_false()) == 0 &&
                           json_object_set_new(variables, "thinking", json_false()) == 0));
    return good || request_no_memory(e);
}

/* Owned; NULL: e says what is wrong. */
static json_t *variables_of(const json_t *body, request_error *e)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt"};
    json_t *given = request_member(body, "chat_template_kwargs"), *variables = json_object();
    bool good = variables || request_no_memory(e);
    if (good && given && !json_is_object(given))
        good = request_refuse(e, 400, "chat_template_kwargs", "chat_template_kwargs must be an object");
    good = good && set_effort(variables, body, e);
    if (good && given && json_object_update(variables, given) != 0)
        good = request_no_memory(e);
    for (size_t i = 0; i < sizeof own / sizeof *own && good; i++)
        if (json_object_get(given, own[i]))
            good = request_refuse(e, 400, "chat_template_kwargs", "chat_template_kwargs must not have %s", own[i]);
    if (good)
        return variables;
    json_decref(variables);
    return NULL;
}

static bool read_ending(tn_render_options *o, const json_t *body, const json_t *messages, request_error *e)
{
    o->continue_final_message = request_flag(body, "continue_final_message", false, e);
    o->add_generation_prompt = request_flag(body, "add_generation_prompt", !o->continue_final_message, e);
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (o->continue_final_message && o->add_generation_prompt)
        return request_refuse(e, 400, "continue_final_message",
                              "continue_final_message and add_generation_prompt exclude each other");
    if (o->continue_final_message && !request_member(last, "content"))
        return request_refuse(e, 400, "continue_final_message",
                              "continue_final_message: the last message has no content to go on with");
    return e->status == 0;
}

/* ---- what templates differ in --------------------------------------------------------------------- */

/* Contents that are null become empty texts. false: no memory. */
static bool fill_contents(json_t *messages, bool *any)
{
    size_t i;
    json_t *message;
    json_array_foreach (messages, i, message) {
        if (!json_is_null(json_object_get(message, "content")))
            continue;
        *any = true;
        if (json_object_set_new(message, "content", json_string("")) != 0)
            return false;
    }
    return true;
}

/* Arguments of calls become texts of JSON. false: no memory. */
static bool write_arguments(json_t *messages, bool *any)
{
    size_t i, k;
    json_t *message, *call;
    json_array_foreach (messages, i, message) {
        json_array_foreach (json_object_get(message, "tool_calls"), k, call) {
            json_t *function = json_object_get(call, "function");
            const json_t *arguments = json_object_get(function, "arguments");
            char *text = json_is_object(arguments) ? json_dumps(arguments, 0) : NULL;
            if (!json_is_object(arguments))
                continue;
            *any = true;
            bool good = text && json_object_set_new(function, "arguments", json_string(text)) == 0;
            free(text);
            if (!good)
                return false;
        }
    }
    return true;
}

typedef struct rendering {
    const api *api;
    tn_render_options options;
    char *text;
    size_t length;
} rendering;

static tn_status render(rendering *r, const json_t *messages, tn_error *err)
{
    char *json = json_dumps(messages, JSON_COMPACT);
    tn_status status =
        json ? tn_template_render(r->api->chat_template, json, strlen(json), &r->options, &r->text, &r->length, err)
             : tn_fail(err, TN_E_MEMORY, "messages", "out of memory");
    free(json);
    return status;
}

/* Templates want an assistant's missing content as null or as an empty text, and arguments as objects or as texts. The
 * first way in which they take them is right; else what they say of the first is told. */
static bool render_any(rendering *r, const json_t *messages, request_error *e)
{
    tn_error first = TN_ERROR_INIT;
    if (render(r, messages, &first) == TN_OK)
        return true;
    for (int way = 1; way < 4; way++) {
        json_t *others = json_deep_copy(messages);
        bool contents = false, arguments = false;
        bool good = others && (!(way & 1) || fill_contents(others, &contents)) &&
                    (!(way & 2) || write_arguments(others, &arguments));
        bool made =
            good && contents == (bool)(way & 1) && arguments == (bool)(way & 2) && render(r, others, NULL) == TN_OK;
        json_decref(others);
        if (made)
            return true;
    }
    return request_failed(e, "messages", &first);
}

bool messages_render(const api *a, const json_t *body, const json_t *messages, const json_t *tools, char **text,
                     size_t *length, request_error *e)
{
    if (!a->chat_template)
        return request_refuse(e, 400, "messages", "this model has no chat template; use /v1/completions");
    rendering r = {.api = a, .options = {.size = sizeof r.options}};
    if (!read_ending(&r.options, body, messages, e))
        return false;
    json_t *variables = variables_of(body, e);
    char *said = variables ? json_dumps(variables, JSON_COMPACT) : NULL;
    char *listed = tools ? json_dumps(tools, JSON_COMPACT) : NULL;
    r.options.variables = said;
    r.options.tools = listed;
    bool good = variables && ((said && (listed || !tools)) || request_no_memory(e)) && render_any(&r, messages, e);
    json_decref(variables);
    free(said);
    free(listed);
    *text = r.text;
    *length = r.length;
    return good;
}
