/* tenon/chat.h: templates opened and rendered. */
#include "base/hub.h"
#include "base/json_memory.h"
#include "base/structs.h"
#include "template/conversation.h"
#include "template/runtime.h"
#include "template/template_files.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>
#include <tenon/chat.h>

typedef struct parsed {
    sandbox s; /* owns the tree */
    char *source, *name;
    size_t size;
    const node *root;
} parsed;

struct tn_template {
    parsed usual, tools; /* tools: its root is NULL if calls with tools take the usual one */
    json_t *tokens;      /* special tokens by their names; NULL: none */
};

static void forget(parsed *p)
{
    sandbox_free(&p->s);
    free(p->source);
    free(p->name);
}

/* Numbers are read and written, and days are named, as in C, whatever the program has set. */
static locale_t enter_locale(locale_t *before)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain)
        *before = uselocale(plain);
    return plain;
}

static void leave_locale(locale_t plain, locale_t before)
{
    uselocale(before);
    freelocale(plain);
}

static bool is_text(const char *source, size_t size)
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)source;
    utf8proc_int32_t code = 0;
    utf8proc_ssize_t n = 1;
    for (size_t i = 0; i < size && n > 0; i += (size_t)n)
        n = utf8proc_iterate(at + i, (utf8proc_ssize_t)(size - i), &code);
    return n > 0;
}

/* The part that fails by jumping back. */
static tn_status parse_inside(parsed *p, tn_error *err)
{
    sandbox_start(&p->s, p->name, err);
    if (setjmp(p->s.out))
        return p->s.status;
    p->root = syntax_parse(&p->s, p->source, p->size);
    p->s.err = NULL;
    return TN_OK;
}

/* Takes a copy of the source. */
static tn_status parse(parsed *p, const char *source, size_t size, const char *name, tn_error *err)
{
    locale_t before, plain;
    if (size > SANDBOX_OUTPUT)
        return tn_fail(err, TN_E_INPUT, name, "larger than %zu MB; this is no chat template", SANDBOX_OUTPUT >> 20);
    p->source = malloc(size + 1);
    p->name = strdup(name);
    if (!p->source || !p->name || !(plain = enter_locale(&before)))
        return tn_fail(err, TN_E_MEMORY, name, "out of memory");
    memcpy(p->source, source, size);
    p->source[size] = '\0';
    p->size = size;
    tn_status status = TN_OK;
    if (!is_text(p->source, size))
        status = tn_fail(err, TN_E_INPUT, name, "is not UTF-8; fetch it again");
    else
        status = parse_inside(p, err);
    leave_locale(plain, before);
    return status;
}

tn_template *tn_template_parse(const char *source, size_t length, const char *name, tn_error *err)
{
    if (!source || !name) {
        structs_missing(source ? "name" : "source", err);
        return NULL;
    }
    tn_template *t = calloc(1, sizeof *t);
    if (!t) {
        tn_fail(err, TN_E_MEMORY, name, "out of memory");
        return NULL;
    }
    if (parse(&t->usual, source, length, name, err) != TN_OK) {
        tn_template_free(t);
        return NULL;
    }
    return t;
}

tn_template *tn_template_open(const char *path, tn_error *err)
{
    template_files files = {0};
    tn_template *t = NULL;
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    if (!path) {
        structs_missing("path", err);
        return NULL;
    }
    char *found = hub_find(path, err);
    if (!found)
        return NULL;
    tn_status status = template_files_read(&files, found, err);
    if (status != TN_OK)
        hub_explain(path, found, err);
    free(found);
    if (status == TN_OK)
        t = tn_template_parse(files.usual, files.usual_size, files.name, err);
    if (t && files.tools && parse(&t->tools, files.tools, files.tools_size, files.name, err) != TN_OK) {
        tn_template_free(t);
        t = NULL;
    }
    if (t)
        t->tokens = json_incref(files.tokens);
    template_files_free(&files);
    return t;
}

void tn_template_free(tn_template *t)
{
    if (!t)
        return;
    forget(&t->usual);
    forget(&t->tools);
    json_decref(t->tokens);
    free(t);
}

const char *tn_template_source(const tn_template *t, bool tools)
{
    return !t ? NULL : tools && t->tools.root ? t->tools.source : t->usual.source;
}

/* ---- rendering ---- */

typedef struct rendering {
    sandbox s;
    const tn_template *chat_template;
    const parsed *parsed;
    tn_render_options options;
    json_t *messages, *tools, *variables;
    char *text;
    size_t length;
} rendering;

static void add_variables(rendering *r, mapping *variables, const json_t *from)
{
    if (from)
        mapping_update(&r->s, variables, conversation_value(&r->s, from).as.mapping);
}

static void render_inside(rendering *r)
{
    sandbox *s = &r->s;
    mapping *variables = mapping_new(s);
    const string *last = NULL;
    piece_text out = {0};
    value messages = conversation_messages(s, r->messages, r->parsed->root->flag & SYNTAX_PARTS);
    if (r->options.continue_final_message) {
        if (!strstr(r->parsed->source, "content"))
            sandbox_fail(
                s, "the template never reads content, which is to be continued; leave continue_final_message out");
        messages = conversation_mark(s, messages, &last);
    }
    add_variables(r, variables, r->chat_template->tokens);
    mapping_put(s, variables, "documents", value_none());
    add_variables(r, variables, r->variables);
    mapping_put(s, variables, "messages", messages);
    mapping_put(s, variables, "tools", r->tools ? conversation_value(s, r->tools) : value_none());
    mapping_put(s, variables, "add_generation_prompt", value_bool(r->options.add_generation_prompt));
    scope *outermost = scope_new(s, NULL);
    outermost->variables = variables;
    execute(s, outermost, r->parsed->root, &out);
    r->length = last ? conversation_cut(s, out.data ? out.data : "", out.size, last) : out.size;
    r->text = malloc(r->length + 1);
    if (!r->text)
        sandbox_out_of_memory(s);
    if (out.data)
        memcpy(r->text, out.data, r->length);
    r->text[r->length] = '\0';
}

static tn_status render(rendering *r, tn_error *err)
{
    locale_t before, plain = enter_locale(&before);
    if (!plain)
        return tn_fail(err, TN_E_MEMORY, r->parsed->name, "out of memory");
    sandbox_start(&r->s, r->parsed->name, err);
    r->s.now = r->options.now ? r->options.now : (int64_t)time(NULL);
    r->s.builtins = builtins;
    if (setjmp(r->s.out) == 0)
        render_inside(r);
    sandbox_free(&r->s);
    leave_locale(plain, before);
    return r->s.status;
}

/* JSON of a kind; what says which argument it is. */
static tn_status read_json(json_t **to, const char *text, size_t length, bool object, const char *what, tn_error *err)
{
    json_error_t error;
    json_memory_watch();
    *to = json_loadb(text, length, JSON_ALLOW_NUL, &error);
    if (json_memory_failed())
        return tn_fail(err, TN_E_MEMORY, what, "out of memory");
    if (!*to)
        return tn_fail(err, TN_E_INPUT, what, "not valid JSON at line %d, column %d: %s; check it", error.line,
                       error.column, error.text);
    if (object ? !json_is_object(*to) : !json_is_array(*to))
        return tn_fail(err, TN_E_INPUT, what, "is no JSON %s; pass one", object ? "object" : "list");
    return TN_OK;
}

static tn_status read_arguments(rendering *r, const char *messages, size_t length, const tn_render_options *options,
                                tn_error *err)
{
    tn_status status = TN_OK;
    if (options)
        status = structs_take(&r->options, sizeof r->options, options, "tn_render_options", err);
    if (status == TN_OK && r->options.continue_final_message && r->options.add_generation_prompt)
        status = tn_fail(err, TN_E_USAGE, "continue_final_message",
                         "does not go with add_generation_prompt; set one of "
                         "them");
    if (status == TN_OK)
        status = read_json(&r->messages, messages, length, false, "messages", err);
    if (status == TN_OK && r->options.tools)
        status = read_json(&r->tools, r->options.tools, strlen(r->options.tools), false, "tools", err);
    if (status == TN_OK && r->options.variables)
        status = read_json(&r->variables, r->options.variables, strlen(r->options.variables), true, "variables", err);
    return status;
}

tn_status tn_template_render(const tn_template *t, const char *messages, size_t messages_length,
                             const tn_render_options *options, char **text, size_t *length, tn_error *err)
{
    if (!t || !messages || !text)
        return structs_missing(!t ? "chat_template" : !messages ? "messages" : "text", err);
    *text = NULL;
    rendering *r = calloc(1, sizeof *r);
    if (!r)
        return tn_fail(err, TN_E_MEMORY, t->usual.name, "out of memory");
    r->chat_template = t;
    tn_status status = read_arguments(r, messages, messages_length, options, err);
    r->parsed = r->tools && t->tools.root ? &t->tools : &t->usual;
    if (status == TN_OK)
        status = render(r, err);
    if (status == TN_OK) {
        *text = r->text;
        if (length)
            *length = r->length;
    }
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->variables);
    free(r);
    return status;
}
