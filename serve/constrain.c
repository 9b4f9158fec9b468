/* The form that an answer must have, as a grammar: a call of a tool, or what response_format says. */
#include "tools.h"

#include <stdlib.h>
#include <string.h>

/* ---- parts -------------------------------------------------------------------------------------- */

enum { PARTS_OF_A_CALL = 4 };

/* Parts of a grammar and their texts, which are owned. */
typedef struct form {
    tn_grammar_part *parts;
    char **texts;
    size_t count;
    bool lost; /* no memory                                                                        */
} form;

static bool form_start(form *f, size_t most)
{
    *f = (form){.parts = calloc(most, sizeof *f->parts), .texts = calloc(most, sizeof *f->texts)};
    f->lost = !f->parts || !f->texts;
    return !f->lost;
}

static void form_end(form *f)
{
    for (size_t i = 0; i < f->count; i++)
        free(f->texts[i]);
    free(f->texts);
    free(f->parts);
}

/* text is taken. */
static void form_add(form *f, tn_grammar_part part, char *text)
{
    f->parts[f->count] = part;
    f->texts[f->count++] = text;
    f->lost = f->lost || (!text && part != TN_GRAMMAR_OBJECT && part != TN_GRAMMAR_OR);
}

/* What a schema allows; one that says nothing, any object. */
static void form_add_schema(form *f, const json_t *schema)
{
    if (json_object_size(schema) == 0)
        form_add(f, TN_GRAMMAR_OBJECT, NULL);
    else
        form_add(f, TN_GRAMMAR_SCHEMA, json_dumps(schema, JSON_COMPACT));
}

/* what: of what the schemas are. */
static bool make_grammar(reply *g, form *f, const char *param, const char *what, request_error *e)
{
    tn_error err = TN_ERROR_INIT;
    if (f->lost)
        return request_no_memory(e);
    if (!g->api->vocabulary)
        return request_refuse(e, 400, param, "%s: this model's tokens cannot be constrained", param);
    g->grammar = tn_grammar_new(g->api->vocabulary, f->parts, (const char *const *)f->texts, f->count, &err);
    if (g->grammar)
        return true;
    return err.code == TN_E_INPUT ? request_refuse(e, 400, param, "Invalid schema for %s: %s", what, err.message)
                                  : request_failed(e, param, &err);
}

/* ---- calls -------------------------------------------------------------------------------------- */

static const json_t *function_of(const json_t *tool)
{
    return json_object_get(tool, "function");
}

/* {"name":"NAME","arguments":ARGUMENTS}, or of a tool that was named only its arguments. */
static void add_call(form *f, const char *name, const json_t *parameters, bool named)
{
    static const char before[] = "{\"name\":\"", between[] = "\",\"arguments\":";
    if (f->count > 0)
        form_add(f, TN_GRAMMAR_OR, NULL);
    if (named) {
        form_add_schema(f, parameters);
        return;
    }
    grown text = {0};
    bool good = grown_add(&text, before, sizeof before - 1) && grown_add(&text, name, strlen(name)) &&
                grown_add(&text, between, sizeof between - 1);
    f->lost = f->lost || !good;
    form_add(f, TN_GRAMMAR_LITERAL, text.at);
    form_add_schema(f, parameters);
    form_add(f, TN_GRAMMAR_LITERAL, strdup("}"));
}

static bool force_call(reply *g, const tools *t, request_error *e)
{
    form f;
    size_t i;
    const json_t *tool;
    bool named = t->choice == TOOLS_NAMED;
    if (!form_start(&f, PARTS_OF_A_CALL * json_array_size(t->list))) {
        form_end(&f);
        return request_no_memory(e);
    }
    json_array_foreach (t->list, i, tool) {
        const char *name = json_string_value(json_object_get(function_of(tool), "name"));
        if (!named || (strcmp(name, t->named) == 0 && f.count == 0))
            add_call(&f, name, request_member(function_of(tool), "parameters"), named);
    }
    bool good = make_grammar(g, &f, "tools", "the parameters of a function", e);
    form_end(&f);
    g->forced = good;
    if (good && named && !(g->forced_tool = strdup(t->named)))
        return request_no_memory(e);
    return good;
}

/* ---- response_format ---------------------------------------------------------------------------- */

static bool of_schema(reply *g, const json_t *schema, request_error *e)
{
    form f;
    bool good = form_start(&f, 1) || request_no_memory(e);
    if (good) {
        form_add_schema(&f, schema);
        good = make_grammar(g, &f, "response_format", "response_format", e);
    }
    form_end(&f);
    return good;
}

static bool wrong_format(const char *what, request_error *e)
{
    return request_refuse(e, 400, "response_format", "response_format%s", what);
}

static bool read_schema(reply *g, const json_t *format, request_error *e)
{
    const json_t *own = request_member(format, "json_schema"), *schema = json_object_get(own, "schema");
    const json_t *strict = request_member(own, "strict");
    if (!json_is_object(own))
        return wrong_format(" needs json_schema with a name and a schema", e);
    if (!tools_is_name(request_member(own, "name")))
        return wrong_format(".json_schema needs a name of 1 to 64 letters, digits, _ and -", e);
    if (strict && !json_is_boolean(strict))
        return wrong_format(".json_schema.strict must be true or false", e);
    if (!json_is_object(schema) && !json_is_true(schema))
        return wrong_format(": Invalid schema for response_format: #: a schema must be an object", e);
    if (json_object_size(schema) > 0)
        return of_schema(g, schema, e);
    /* Any JSON: what says nothing of it is not taken for an object here. */
    form f;
    bool good = form_start(&f, 1) || request_no_memory(e);
    if (good) {
        form_add(&f, TN_GRAMMAR_SCHEMA, strdup("{}"));
        good = make_grammar(g, &f, "response_format", "response_format", e);
    }
    form_end(&f);
    return good;
}

static bool read_format(reply *g, const json_t *body, request_error *e)
{
    const json_t *format = request_member(body, "response_format");
    const char *type = json_string_value(request_member(format, "type"));
    if (!format)
        return true;
    if (!json_is_object(format) || !type)
        return wrong_format(" must be an object with the type text, json_object or json_schema", e);
    if (strcmp(type, "text") == 0)
        return true;
    if (strcmp(type, "json_schema") == 0)
        return read_schema(g, format, e);
    if (strcmp(type, "json_object") != 0)
        return wrong_format(".type must be text, json_object or json_schema", e);
    const json_t *schema = request_member(format, "schema");
    if (schema && !json_is_object(schema))
        return wrong_format(".schema must be an object", e);
    return of_schema(g, schema, e);
}

bool tools_constrain(reply *g, const tools *t, const json_t *body, request_error *e)
{
    bool force = t->choice == TOOLS_REQUIRED || t->choice == TOOLS_NAMED;
    if (!read_format(g, body, e))
        return false;
    if (!force)
        return true;
    tn_grammar_free(g->grammar); /* a call is asked for, and no text that has that form                         */
    g->grammar = NULL;
    return force_call(g, t, e);
}
