/* From a template's text to tokens, as Jinja's lexer finds them. */
#include "template/tokens.h"
#include "template/chars.h"
#include "template/literals.h"

#include <stdio.h>
#include <string.h>

typedef struct lexer {
    sandbox *s;
    const char *text;
    size_t size, at;
    bool line_starting; /* what was read last ended a line */
    token_list *tokens;
} lexer;

static token *add(lexer *l, token_kind kind)
{
    token_list *list = l->tokens;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 256;
        token *items = sandbox_array(l->s, capacity, sizeof *items);
        if (list->count)
            memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    token *t = &list->items[list->count++];
    t->kind = kind;
    t->line = l->s->line;
    return t;
}

static bool here(const lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at + n <= l->size && memcmp(l->text + at, what, n) == 0;
}

static size_t space_end(const lexer *l, size_t at)
{
    for (size_t next = at; at < l->size; at = next)
        if (!chars_is_space(chars_next(l->s, l->text, l->size, &next)))
            break;
    return at;
}

/* Goes on to a place, counting lines. */
static void go(lexer *l, size_t to)
{
    for (size_t i = l->at; i < to; i++)
        l->s->line += l->text[i] == '\n';
    if (to > l->at)
        l->line_starting = l->text[to - 1] == '\n';
    l->at = to;
}

static size_t stripped_end(const lexer *l, size_t from, size_t to)
{
    for (size_t before = to; to > from; to = before)
        if (!chars_is_space(chars_before(l->s, l->text, &before)))
            break;
    return to;
}

/* Text from here up to a tag: without the white space that its sign takes, or with lstrip_blocks that between it and
 * the line's beginning. */
static void add_data(lexer *l, size_t to, char sign, bool strips)
{
    size_t end = to;
    if (sign == '-') {
        end = stripped_end(l, l->at, to);
    } else if (sign != '+' && strips) {
        size_t line = to;
        while (line > l->at && l->text[line - 1] != '\n')
            line--;
        if ((line > l->at || l->line_starting) && space_end(l, line) >= to)
            end = line;
    }
    if (end > l->at)
        add(l, TOKEN_DATA)->content = value_string(l->s, l->text + l->at, end - l->at);
    go(l, to);
}

/* The end of a tag at `at`, with what it takes of the text behind: its end, or 0 when there is none. */
static size_t tag_end(const lexer *l, size_t at, const char *close)
{
    bool print = close[0] == '}';
    if (here(l, at, "-") && here(l, at + 1, close))
        return space_end(l, at + 1 + 2);
    if (here(l, at, "+") && !print && here(l, at + 1, close))
        return at + 1 + 2;
    if (!here(l, at, close))
        return 0;
    return at + 2 + (!print && here(l, at + 2, "\n"));
}

static void skip_comment(lexer *l)
{
    for (size_t at = l->at; at < l->size; at++) {
        size_t end = tag_end(l, at, "#}");
        if (end) {
            go(l, end);
            return;
        }
    }
    sandbox_fail(l->s, "missing end of comment tag; close it with #}");
}

/* The end of "{%- raw %}" at `at`, or 0. */
static size_t raw_tag(const lexer *l, size_t at, const char *word, char *sign)
{
    if (!here(l, at, "{%"))
        return 0;
    at += 2;
    *sign = here(l, at, "-") || here(l, at, "+") ? l->text[at] : ' ';
    at = space_end(l, at + (*sign != ' '));
    if (!here(l, at, word))
        return 0;
    return space_end(l, at + strlen(word));
}

static size_t raw_begin(const lexer *l, char *sign)
{
    size_t at = raw_tag(l, l->at, "raw", sign);
    if (at && here(l, at, "-%}"))
        return space_end(l, at + 3);
    return at && here(l, at, "%}") ? at + 2 : 0;
}

static void read_raw(lexer *l)
{
    for (size_t at = l->at; at < l->size; at++) {
        char sign;
        size_t word = raw_tag(l, at, "endraw", &sign), end = word ? tag_end(l, word, "%}") : 0;
        if (end) {
            add_data(l, at, sign, true);
            go(l, end);
            return;
        }
    }
    sandbox_fail(l->s, "missing end of raw directive; close it with {%% endraw %%}");
}

static void read_name(lexer *l)
{
    size_t first = l->at, to = first;
    for (size_t next = to; to < l->size; to = next)
        if (!chars_is_word(chars_next(l->s, l->text, l->size, &next)))
            break;
    if (chars_is_numeric(chars_next(l->s, l->text, l->size, &first)))
        sandbox_fail(l->s, "invalid character in identifier '%.*s'", (int)(to - l->at), l->text + l->at);
    add(l, TOKEN_NAME)->content = value_string(l->s, l->text + l->at, to - l->at);
    go(l, to);
}

static void read_string(lexer *l)
{
    char quote = l->text[l->at];
    size_t to = l->at + 1;
    while (to < l->size && l->text[to] != quote)
        to += l->text[to] == '\\' ? 2 : 1;
    if (to >= l->size)
        sandbox_fail(l->s, "a text in quotes does not end; close it with %c", quote);
    add(l, TOKEN_STRING)->content = literals_string(l->s, l->text + l->at + 1, to - l->at - 1);
    go(l, to + 1);
}

static void read_operator(lexer *l, char *open, size_t *opened, size_t deepest)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    token *t = add(l, TOKEN_OPERATOR);
    char c = l->text[l->at];
    t->symbol[0] = c;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (here(l, l->at, pairs[i]))
            t->symbol[1] = pairs[i][1];
    if (!strchr("+-/*%~[](){}><=.:|,;!", c) || c == '\0' || (c == '!' && !t->symbol[1])) {
        size_t end = l->at;
        chars_next(l->s, l->text, l->size, &end);
        sandbox_fail(l->s, "unexpected char '%.*s' in a tag", (int)(end - l->at), l->text + l->at);
    }
    if (strchr("([{", c)) {
        if (*opened == deepest)
            sandbox_fail(l->s, "more than %zu brackets are open; simplify the template", deepest);
        open[(*opened)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (*opened == 0)
            sandbox_fail(l->s, "unexpected '%c'", c);
        if (open[--*opened] != c)
            sandbox_fail(l->s, "unexpected '%c', expected '%c'", c, open[*opened]);
    }
    go(l, l->at + (t->symbol[1] ? 2 : 1));
}

/* What stands between {{ and }} or {% and %}. */
static void read_tag(lexer *l, const char *close, token_kind ends)
{
    char open[200];
    size_t opened = 0;
    for (;;) {
        size_t end = opened ? 0 : tag_end(l, l->at, close);
        if (end) {
            add(l, ends);
            go(l, end);
            return;
        }
        size_t to = space_end(l, l->at);
        if (to > l->at) {
            go(l, to);
            continue;
        }
        if (l->at >= l->size)
            sandbox_fail(l->s, "unexpected end of template in a tag; close it with %s", close);
        char c = l->text[l->at];
        size_t next = l->at;
        bool behind_dot = l->at > 0 && l->text[l->at - 1] == '.';
        if (c >= '0' && c <= '9') {
            size_t used;
            value number = literals_number(l->s, l->text + l->at, l->size - l->at, behind_dot, &used);
            add(l, TOKEN_NUMBER)->content = number;
            go(l, l->at + used);
        } else if (chars_is_word(chars_next(l->s, l->text, l->size, &next))) {
            read_name(l);
        } else if (c == '"' || c == '\'') {
            read_string(l);
        } else {
            read_operator(l, open, &opened, sizeof open);
        }
    }
}

/* The next tag: data up to it, and what it is. */
static void read_next(lexer *l)
{
    size_t to = l->at;
    while (to < l->size &&
           !(l->text[to] == '{' && to + 1 < l->size && strchr("{%#", l->text[to + 1]) && l->text[to + 1]))
        to++;
    if (to >= l->size) {
        add_data(l, l->size, '+', false);
        return;
    }
    char kind = l->text[to + 1];
    char sign = here(l, to + 2, "-") || here(l, to + 2, "+") ? l->text[to + 2] : ' ';
    add_data(l, to, sign, kind != '{');
    size_t raw = raw_begin(l, &sign);
    if (raw) {
        go(l, raw);
        read_raw(l);
        return;
    }
    token_kind begins = kind == '{' ? TOKEN_PRINT : TOKEN_BLOCK;
    if (kind != '#')
        add(l, begins);
    go(l, to + 2 + (sign != ' '));
    if (kind == '#')
        skip_comment(l);
    else
        read_tag(l, kind == '{' ? "}}" : "%}", kind == '{' ? TOKEN_PRINT_END : TOKEN_BLOCK_END);
}

/* Ends of lines become \n, and the last one is dropped. */
static char *normal_lines(sandbox *s, const char *source, size_t *size)
{
    char *text = sandbox_alloc(s, *size + 1);
    size_t n = 0;
    for (size_t i = 0; i < *size; i++) {
        text[n++] = source[i] == '\r' ? '\n' : source[i];
        i += source[i] == '\r' && i + 1 < *size && source[i + 1] == '\n';
    }
    *size = n - (n > 0 && text[n - 1] == '\n');
    return text;
}

void tokens_read(sandbox *s, const char *source, size_t size, token_list *tokens)
{
    lexer l = {.s = s, .line_starting = true, .tokens = tokens};
    l.text = normal_lines(s, source, &size);
    l.size = size;
    while (l.at < l.size)
        read_next(&l);
    add(&l, TOKEN_END);
}

const char *tokens_show(sandbox *s, const token *t)
{
    static const char *const names[] = {
        [TOKEN_END] = "end of template", [TOKEN_DATA] = "template data", [TOKEN_PRINT] = "{{",
        [TOKEN_PRINT_END] = "}}",        [TOKEN_BLOCK] = "{%",           [TOKEN_BLOCK_END] = "%}"};
    if (t->kind == TOKEN_OPERATOR)
        return t->symbol;
    if (t->kind < sizeof names / sizeof *names)
        return names[t->kind];
    char *text = sandbox_alloc(s, 64);
    snprintf(text, 64, "%.60s", repr_str(s, t->content)->data);
    return text;
}
