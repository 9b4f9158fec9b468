/* Conversations: reading, changing, writing, and turning into tokens. */
#include "conversation.h"

#include <stdlib.h>
#include <string.h>

static tn_status no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "conversation", "out of memory; close other programs");
}

tn_status conversation_open(conversation *c, const char *folder, tn_error *err)
{
    *c = (conversation){.messages = json_array()};
    if (!c->messages)
        return no_memory(err);
    c->chat_template = tn_template_open(folder, err);
    return c->chat_template ? TN_OK : err->code;
}

/* The text is what a terminal shows: messages are lines, with the answers behind them. */
static const char plain_template[] =
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] or m.content is not string %}"
    "{{ raise_exception('the model has no chat template: only texts of user and assistant can be continued') }}"
    "{% endif %}{{ '\\n' if m.role == 'user' and not loop.first else '' }}{{ m.content }}{% endfor %}";

tn_status conversation_open_any(conversation *c, const char *folder, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    tn_status status = conversation_open(c, folder, &why);
    if (status != TN_E_INPUT || strcmp(why.where, folder) != 0)
        return status == TN_OK ? TN_OK : tn_fail(err, status, why.where, "%s", why.message);
    c->plain = true;
    c->chat_template = tn_template_parse(plain_template, strlen(plain_template), "plain text", err);
    return c->chat_template ? TN_OK : err->code;
}

void conversation_close(conversation *c)
{
    tn_template_free(c->chat_template);
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->variables);
    attached_close(&c->files);
    *c = (conversation){0};
}

/* ---- files ---------------------------------------------------------------------------------- */

/* What is no text of a content in parts goes another way than through the tokens. */
static tn_status check_parts(const json_t *message, size_t number, const char *where, tn_error *err)
{
    size_t i;
    json_t *part;
    json_array_foreach (json_object_get(message, "content"), i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && strcmp(type, "text") != 0)
            return tn_fail(
                err, TN_E_INPUT, where,
                "message %zu has a part of type '%.40s', and messages hold texts only; leave it out, give "
                "--image or --audio, or what it becomes (pixel_values, input_features) to tenon logits --input",
                number, type);
    }
    return TN_OK;
}

static tn_status check_messages(const json_t *messages, const char *where, tn_error *err)
{
    size_t i;
    json_t *message;
    tn_status status = TN_OK;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return tn_fail(err, TN_E_INPUT, where,
                       "holds no messages; give a list of {\"role\": ..., \"content\": ...}, or an object with such a "
                       "list as \"messages\"");
    json_array_foreach (messages, i, message) {
        if (!json_is_string(json_object_get(message, "role")))
            return tn_fail(err, TN_E_INPUT, where, "message %zu has no role; give {\"role\": ..., \"content\": ...}",
                           i + 1);
        if ((status = check_parts(message, i + 1, where, err)) != TN_OK)
            return status;
    }
    return TN_OK;
}

/* root is borrowed. */
static tn_status take_object(conversation *c, json_t *root, const char *where, tn_error *err)
{
    const char *key;
    json_t *value, *messages = json_is_object(root) ? json_object_get(root, "messages") : root;
    tn_status status = check_messages(messages, where, err);
    if (status)
        return status;
    json_decref(c->messages);
    c->messages = json_incref(messages);
    if (!json_is_object(root))
        return TN_OK;
    json_t *tools = json_object_get(root, "tools");
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return tn_fail(err, TN_E_INPUT, where, "key 'tools' must be a list");
    if (json_is_array(tools))
        c->tools = json_incref(tools);
    if (!(c->variables = json_object()))
        return no_memory(err);
    json_object_foreach (root, key, value) {
        if (strcmp(key, "messages") != 0 && strcmp(key, "tools") != 0 && json_object_set(c->variables, key, value))
            return no_memory(err);
    }
    return TN_OK;
}

/* What a file holds; NULL after an error. Owned. */
static json_t *read_json(const char *path, const char *where, tn_error *err)
{
    char *text = NULL;
    size_t length = 0;
    if (read_prompt_text(path, &text, &length, err))
        return NULL;
    json_error_t at;
    json_t *root = json_loadb(text, length, JSON_ALLOW_NUL, &at);
    free(text);
    if (json_lost()) {
        json_decref(root);
        no_memory(err);
        return NULL;
    }
    if (!root)
        tn_fail(err, TN_E_INPUT, where, "is not valid JSON: line %d, column %d: %s", at.line, at.column, at.text);
    return root;
}

/* A list of messages, or an object whose "messages" is one, whose "tools" are tools, and whose other keys are variables
 * of the template. */
static tn_status read_messages(conversation *c, const char *path, tn_error *err)
{
    const char *where = strcmp(path, "-") ? path : "standard input";
    json_t *root = read_json(path, where, err);
    if (!root)
        return err->code;
    tn_status status = take_object(c, root, where, err);
    json_decref(root);
    return status;
}

static tn_status read_tools(conversation *c, const char *path, tn_error *err)
{
    json_t *tools = read_json(path, path, err);
    if (!tools)
        return err->code;
    json_decref(c->tools);
    c->tools = tools;
    if (!json_is_array(tools))
        return tn_fail(err, TN_E_INPUT, path,
                       "holds no list of tools; give [{\"type\": \"function\", \"function\": {\"name\": ...}}, ...]");
    return TN_OK;
}

/* NAME=VALUE, where the value is JSON, or else a text as it stands. */
static tn_status set_variable(conversation *c, const char *text, tn_error *err)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt"};
    size_t length = strcspn(text, "=");
    if (length == 0 || !text[length])
        return tn_fail(err, TN_E_USAGE, "--template-var", "'%s' is no NAME=VALUE; give one, as enable_thinking=false",
                       text);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == length && strncmp(own[i], text, length) == 0)
            return tn_fail(err, TN_E_USAGE, "--template-var",
                           "%s is set by the conversation itself; see --messages and --tools", own[i]);
    char *name = strndup(text, length);
    json_t *value = json_loads(text + length + 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!value && !json_lost())
        value = json_string(text + length + 1);
    if (!c->variables)
        c->variables = json_object();
    bool set = name && c->variables && value && json_object_set(c->variables, name, value) == 0;
    bool lost = json_lost() || !name || !c->variables;
    json_decref(value);
    free(name);
    return set    ? TN_OK
           : lost ? no_memory(err)
                  : tn_fail(err, TN_E_USAGE, "--template-var", "is not UTF-8; give it in that encoding");
}

tn_status conversation_start(conversation *c, const options *o, tn_error *err)
{
    tn_status status = TN_OK;
    if (option_given(o, OPT_MESSAGES))
        status = read_messages(c, o->text[OPT_MESSAGES], err);
    if (status == TN_OK && option_given(o, OPT_SYSTEM))
        status = conversation_system(c, o->text[OPT_SYSTEM], err);
    if (status == TN_OK && option_given(o, OPT_TOOLS))
        status = read_tools(c, o->text[OPT_TOOLS], err);
    for (size_t i = 0; i < o->variable_count && status == TN_OK; i++)
        status = set_variable(c, o->variables[i], err);
    return status;
}

tn_status conversation_save(const conversation *c, const char *path, tn_error *err)
{
    char *text = json_dumps(c->messages, JSON_INDENT(2));
    if (!text || json_lost()) {
        free(text);
        return no_memory(err);
    }
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the NUL */
    tn_status status = replace_file(path, text, length + 1, err);
    free(text);
    return status;
}

/* ---- messages ------------------------------------------------------------------------------- */

static json_t *make_text(const char *text, size_t length, tn_error *err)
{
    json_t *made = json_stringn(text, length);
    if (!made && json_lost())
        no_memory(err);
    else if (!made)
        tn_fail(err, TN_E_INPUT, "message", "is not UTF-8; give it in that encoding");
    return made;
}

static json_t *make_message(const char *role, const char *text, size_t length, tn_error *err)
{
    json_t *content = make_text(text, length, err);
    json_t *message = content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    if (content && !message)
        no_memory(err);
    return message;
}

tn_status conversation_add(conversation *c, const char *role, const char *text, size_t length, tn_error *err)
{
    json_t *message = make_message(role, text, length, err);
    if (!message)
        return err->code;
    return json_array_append_new(c->messages, message) ? no_memory(err) : TN_OK;
}

/* ---- messages with files ---------------------------------------------------------------------- */

static tn_status add_text(json_t *parts, const char *text, size_t length, tn_error *err)
{
    json_t *said = length > 0 ? make_text(text, length, err) : NULL;
    if (!said)
        return length > 0 ? err->code : TN_OK;
    return json_array_append_new(parts, json_pack("{s:s, s:o}", "type", "text", "text", said)) ? no_memory(err) : TN_OK;
}

static tn_status add_file(conversation *c, json_t *parts, const char *name, size_t length, bool sound, tn_error *err)
{
    if (json_array_append_new(parts, json_pack("{s:s}", "type", sound ? "audio" : "image")) != 0)
        return no_memory(err);
    tn_status status = attached_add(&c->files, name, length, sound, err);
    if (status)
        json_array_remove(parts, json_array_size(parts) - 1);
    return status;
}

/* How many parts are of that type. */
static size_t count_parts(const json_t *parts, const char *type)
{
    size_t i, count = 0;
    json_t *part;
    json_array_foreach (parts, i, part) {
        const char *own = json_string_value(json_object_get(part, "type"));
        count += own && strcmp(own, type) == 0;
    }
    return count;
}

static void drop_files(conversation *c, const json_t *parts)
{
    attached_drop(&c->files, count_parts(parts, "image"), count_parts(parts, "audio"));
}

static tn_status add_parts(conversation *c, json_t *parts, const char *text, size_t length, bool words, tn_error *err)
{
    attached_word word;
    tn_status status = TN_OK;
    size_t at = 0;
    while (status == TN_OK && words && attached_find(text, length, at, &word)) {
        status = add_text(parts, text + at, word.at - at, err);
        if (status == TN_OK)
            status = add_file(c, parts, text + word.at + 1, word.length, word.sound, err);
        at = word.at + 1 + word.length;
    }
    return status == TN_OK ? add_text(parts, text + at, length - at, err) : status;
}

tn_status conversation_ask(conversation *c, const media_file *files, size_t count, bool words, const char *text,
                           size_t length, tn_error *err)
{
    attached_word word;
    if (count == 0 && !(words && attached_find(text, length, 0, &word)))
        return conversation_add(c, "user", text, length, err);
    json_t *parts = json_array();
    tn_status status = parts ? TN_OK : no_memory(err);
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = add_file(c, parts, files[i].name, strlen(files[i].name), files[i].sound, err);
    if (status == TN_OK)
        status = add_parts(c, parts, text, length, words, err);
    json_t *message = status == TN_OK ? json_pack("{s:s, s:O}", "role", "user", "content", parts) : NULL;
    if (status == TN_OK && json_array_append_new(c->messages, message))
        status = no_memory(err);
    if (status)
        drop_files(c, parts);
    json_decref(parts);
    return status;
}

void conversation_take_back(conversation *c)
{
    size_t count = json_array_size(c->messages);
    if (count == 0)
        return;
    drop_files(c, json_object_get(json_array_get(c->messages, count - 1), "content"));
    json_array_remove(c->messages, count - 1);
}

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool has_system(const conversation *c)
{
    return strcmp(role_of(json_array_get(c->messages, 0)), "system") == 0;
}

tn_status conversation_system(conversation *c, const char *text, tn_error *err)
{
    if (text && c->plain)
        return tn_fail(err, TN_E_USAGE, "system", "the model has no chat template, and so no place for this message");
    json_t *message = text ? make_message("system", text, strlen(text), err) : NULL;
    if (text && !message)
        return err->code;
    if (has_system(c))
        json_array_remove(c->messages, 0);
    return message && json_array_insert_new(c->messages, 0, message) ? no_memory(err) : TN_OK;
}

void conversation_reset(conversation *c)
{
    while (json_array_size(c->messages) > has_system(c))
        conversation_take_back(c);
}

/* ---- tokens --------------------------------------------------------------------------------- */

static tn_status render(const conversation *c, char **text, size_t *length, tn_error *err)
{
    size_t count = json_array_size(c->messages);
    bool answered = count > 0 && strcmp(role_of(json_array_get(c->messages, count - 1)), "assistant") == 0;
    char *messages = json_dumps(c->messages, JSON_COMPACT);
    char *tools = c->tools ? json_dumps(c->tools, JSON_COMPACT) : NULL;
    char *variables = c->variables ? json_dumps(c->variables, JSON_COMPACT) : NULL;
    bool good = messages && (tools || !c->tools) && (variables || !c->variables) && !json_lost();
    tn_render_options o = {.size = sizeof o,
                           .add_generation_prompt = !answered,
                           .continue_final_message = answered,
                           .tools = tools,
                           .variables = variables};
    tn_status status =
        good ? tn_template_render(c->chat_template, messages, strlen(messages), &o, text, length, err) : no_memory(err);
    free(messages);
    free(tools);
    free(variables);
    return status;
}

tn_status conversation_ids(const conversation *c, const tn_tokenizer *tokenizer, int64_t **ids, size_t *count,
                           tn_error *err)
{
    char *text = NULL;
    size_t length = 0;
    tn_status status = render(c, &text, &length, err);
    if (status == TN_OK && c->files.media) {
        char *said = text;
        status = tn_media_expand(c->files.media, tokenizer, said, length, &text, &length, err);
        free(said);
    }
    if (status == TN_OK) /* special tokens are in the text of the model's own template already */
        status = tn_tokenizer_encode(tokenizer, text, length, c->plain, ids, count, err);
    free(text);
    return status;
}
