/* Answers through a splitter; see split.h. */
#include "split.h"

#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char split_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"zone\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"set_all\",\"parameters\":{\"type\":\"object\",\"$defs\":"
    "{\"level\":{\"enum\":[1,2,3]}},\"properties\":{\"text\":{\"type\":\"string\"},\"count\":{\"type\":\"integer\"},"
    "\"ratio\":{\"type\":\"number\"},\"on\":{\"type\":\"boolean\"},\"list\":{\"type\":\"array\"},\"map\":{\"type\":"
    "\"object\"},\"maybe\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"either\":{\"type\":[\"integer\","
    "\"string\"]},\"level\":{\"$ref\":\"#/$defs/level\"},\"any\":{}}}}}]";

static bool whole_at(const char *text, size_t place)
{
    return ((unsigned char)text[place] & 0xC0) != 0x80;
}

static void take(void *ctx, const split_event *e)
{
    split_parts *p = ctx;
    ck_assert_msg(e->length > 0, "an event without text");
    ck_assert_msg(whole_at(e->text, 0), "an event that begins within a character");
    FILE *out = e->kind == SPLIT_REASONING ? p->files[0] : e->kind == SPLIT_CONTENT ? p->files[1] : p->files[2];
    if (e->kind == SPLIT_CALL)
        ck_assert_int_eq(e->call, p->told++);
    if (e->kind == SPLIT_ARGUMENTS)
        ck_assert_int_eq(e->call, p->told - 1);
    if (e->kind == SPLIT_CALL && e->call)
        fputc(' ', out);
    if (e->kind == SPLIT_ARGUMENTS)
        fputc('(', out);
    fwrite(e->text, 1, e->length, out);
    if (e->kind == SPLIT_ARGUMENTS)
        fputc(')', out);
}

static void push(splitter *s, const char *text, size_t length)
{
    char *copy = malloc(length + 1); /* so that who reads beyond it is found                                 */
    memcpy(copy, text, length);
    ck_assert(splitter_push(s, copy, length, false));
    free(copy);
}

splitter *split_begin(const splitter_options *options, split_parts *p)
{
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_nonnull(p->files[i] = open_memstream(&p->text[i], &p->size[i]));
    splitter *s = splitter_new(options, take, p);
    ck_assert_ptr_nonnull(s);
    return s;
}

char *split_end(splitter *s, split_parts *p, bool cut)
{
    ck_assert(splitter_end(s, cut));
    ck_assert_int_eq(splitter_calls(s), p->told);
    splitter_free(s);
    for (int i = 0; i < 3; i++)
        fclose(p->files[i]);
    static const char *const names[] = {"reasoning{", "content{", ""};
    char *out = NULL;
    size_t size;
    FILE *file = open_memstream(&out, &size);
    for (int i = 0; i < 3; i++) {
        if (*p->text[i])
            fprintf(file, "%s%s%s%s", ftell(file) ? " " : "", names[i], p->text[i], *names[i] ? "}" : "");
        free(p->text[i]);
    }
    fclose(file);
    return out;
}

char *split_text(const split_case *c, size_t first, size_t step)
{
    split_parts p = {0};
    json_t *tools = c->no_tools ? NULL : json_loads(split_tools, 0, NULL);
    const splitter_options options = {.family = splitter_family_of(c->marks),
                                      .tools = tools,
                                      .one_call = c->one_call,
                                      .reasoning = !c->as_it_stands,
                                      .prompt = c->prompt,
                                      .prompt_length = c->prompt ? strlen(c->prompt) : 0};
    splitter *s = split_begin(&options, &p);
    json_decref(tools);
    size_t size = strlen(c->text);
    for (size_t at = 0, to; at < size; at = to) {
        to = !at && first ? first : step ? at + step : size;
        while (to < size && !whole_at(c->text, to))
            to++;
        to = to < size ? to : size;
        push(s, c->text + at, to - at);
    }
    return split_end(s, &p, c->cut);
}

const char *split_everywhere(const split_case *c)
{
    char *whole = split_text(c, 0, 0);
    size_t size = strlen(c->text);
    for (size_t i = 0; i < size + 4; i++) {
        char *other = i < size ? split_text(c, i, 0) : split_text(c, 0, i - size + 1);
        ck_assert_msg(strcmp(whole, other) == 0, "cut at %zu of %zu: %s\nwhole: %s", i, size, other, whole);
        free(other);
    }
    suite_keep(whole, free);
    return whole;
}
