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

/* What a tool may leave out is there. false: no memory. */
static bool fill_tools(json_t *tools, bool *any)
{
    size_t i;
    json_t *tool;
    json_array_foreach (tools, i, tool) {
        json_t *function = json_object_get(tool, "function");
        bool good = true;
        if (!request_member(function, "description"))
            good = *any = json_object_set_new(function, "description", json_string("")) == 0;
        if (good && !request_member(function, "parameters"))
            good = *any = json_object_set_new(function, "parameters",
                                              json_pack("{s:s, s:{}}", "type", "object", "properties")) == 0;
        if (!good)
            return false;
    }
    return true;
}

/* In the order in which they are tried. */
static const struct {
    bool of_tools; /* else of messages                                                               */
    bool (*change)(json_t *what, bool *any);
} changes[] = {{false, fill_contents}, {false, write_arguments}, {true, fill_tools}};
enum { CHANGES = sizeof changes / sizeof *changes };

/* ---- rendering ------------------------------------------------------------------------------------ */

typedef struct rendering {
    const api *api;
    tn_render_options options;
    char *text;
    size_t length;
} rendering;

/* tools NULL: none. */
static tn_status render(rendering *r, const json_t *messages, const json_t *tools, tn_error *err)
{
    char *json = json_dumps(messages, JSON_COMPACT), *listed = tools ? json_dumps(tools, JSON_COMPACT) : NULL;
    tn_status status = TN_OK;
    r->options.tools = listed;
    if (!json || (tools && !listed))
        status = tn_fail(err, TN_E_MEMORY, "messages", "out of memory");
    else
        status = tn_template_render(r->api->chat_template, json, strlen(json), &r->options, &r->text, &r->length, err);
    free(json);
    free(listed);
    return status;
}

/* With those changes whose bits are set; each must have something to change. */
static bool render_changed(rendering *r, const json_t *messages, const json_t *tools, unsigned bits)
{
    json_t *m = json_deep_copy(messages), *t = tools ? json_deep_copy(tools) : NULL;
    bool good = m && (t || !tools);
    for (unsigned i = 0; i < CHANGES && good; i++) {
        bool any = false;
        if (bits >> i & 1)
            good = changes[i].change(changes[i].of_tools ? t : m, &any) && any;
    }
    good = good && render(r, m, t, NULL) == TN_OK;
    json_decref(m);
    json_decref(t);
    return good;
}

/* Templates want an assistant's missing content as null or as an empty text, arguments as objects or as texts, and some
 * all that a tool could say. The first way in which they take it is right; else what they say of the first is told. */
static bool render_any(rendering *r, const json_t *messages, const json_t *tools, request_error *e)
{
    tn_error first = TN_ERROR_INIT;
    if (render(r, messages, tools, &first) == TN_OK)
        return true;
    for (unsigned bits = 1; bits < 1U << CHANGES; bits++)
        if (render_changed(r, messages, tools, bits))
            return true;
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
    r.options.variables = said;
    bool good = variables && (said || request_no_memory(e)) && render_any(&r, messages, tools, e);
    json_decref(variables);
    free(said);
    *text = r.text;
    *length = r.length;
    return good;
}
