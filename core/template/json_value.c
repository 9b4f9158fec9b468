/* The filter tojson: what Python's json.dumps writes. */
#include "template/chars.h"
#include "template/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_unicode(sandbox *s, piece_text *to, int32_t code)
{
    char text[32];
    sandbox_step(s, REPR_NUMBER_STEPS);
    if (code >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((code - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((code - 0x10000) & 0x3ff)));
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
    repr_add_text(s, to, text);
}

static void add_string(sandbox *s, piece_text *to, const string *text, bool ascii)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    repr_add_text(s, to, "\"");
    for (size_t i = 0, from = 0; i < text->size; from = i) {
        int32_t code = chars_next(s, text->data, text->size, &i);
        const char *found = code > 0 && code < 0x80 ? strchr(plain, (char)code) : NULL;
        if (found)
            repr_add(s, to, (char[]){'\\', letters[found - plain]}, 2);
        else if (code < 0x20 || (ascii && code > 0x7e))
            add_unicode(s, to, code);
        else
            repr_add(s, to, text->data + from, i - from);
    }
    repr_add_text(s, to, "\"");
}

static void add_scalar(sandbox *s, piece_text *to, value v)
{
    if (v.kind == VALUE_NONE)
        repr_add_text(s, to, "null");
    else if (v.kind == VALUE_BOOL)
        repr_add_text(s, to, v.as.boolean ? "true" : "false");
    else if (v.kind == VALUE_INT || (v.kind == VALUE_FLOAT && isfinite(v.as.real)))
        repr_add_repr(s, to, v);
    else if (v.kind == VALUE_FLOAT)
        repr_add_text(s, to, isnan(v.as.real) ? "NaN" : v.as.real < 0 ? "-Infinity" : "Infinity");
    else
        sandbox_fail(s, "object of type %s is not JSON serializable; make a list or a text of it", value_type(v));
}

static void new_line(sandbox *s, piece_text *to, const json_style *style, int level)
{
    if (!style->indent)
        return;
    repr_add_text(s, to, "\n");
    for (int i = 0; i < level; i++)
        repr_add_text(s, to, style->indent);
}

static void add_value(sandbox *s, piece_text *to, value v, const json_style *style, int level);

static void add_list(sandbox *s, piece_text *to, const list *items, const json_style *style, int level)
{
    repr_add_text(s, to, "[");
    for (size_t i = 0; i < items->count; i++) {
        if (i)
            repr_add_text(s, to, style->comma);
        new_line(s, to, style, level + 1);
        add_value(s, to, items->items[i], style, level + 1);
    }
    if (items->count)
        new_line(s, to, style, level);
    repr_add_text(s, to, "]");
}

/* Positions of the keys in their order; qsort gets values beside their positions. */
typedef struct place {
    const string *key;
    size_t at;
} place;

static int by_key(const void *a, const void *b)
{
    const place *x = a, *y = b;
    size_t n = x->key->size < y->key->size ? x->key->size : y->key->size;
    int sign = memcmp(x->key->data, y->key->data, n);
    return sign ? sign : (x->key->size > y->key->size) - (x->key->size < y->key->size);
}

/* Sorting compares each key with some log2(count) others. */
static void charge_sorting(sandbox *s, const place *places, size_t count)
{
    size_t rounds = 1;
    for (size_t n = count; n > 1; n /= 2)
        rounds++;
    for (size_t i = 0; i < count; i++)
        sandbox_step(s, rounds * (1 + places[i].key->size / 64));
}

static size_t *order_of(sandbox *s, const mapping *m, bool sort)
{
    size_t *order = sandbox_array(s, m->count + 1, sizeof *order);
    place *places = sort ? sandbox_array(s, m->count + 1, sizeof *places) : NULL;
    for (size_t i = 0; i < m->count; i++) {
        order[i] = i;
        if (sort && m->keys[i].kind != VALUE_STRING)
            sandbox_fail(s, "sort_keys is not supported for keys of type '%s'; use texts", value_type(m->keys[i]));
        if (sort)
            places[i] = (place){m->keys[i].as.string, i};
    }
    if (sort)
        charge_sorting(s, places, m->count);
    if (sort && m->count)
        qsort(places, m->count, sizeof *places, by_key);
    for (size_t i = 0; sort && i < m->count; i++)
        order[i] = places[i].at;
    return order;
}

static void add_key(sandbox *s, piece_text *to, value key, const json_style *style)
{
    if (key.kind == VALUE_STRING) {
        add_string(s, to, key.as.string, style->ascii);
        return;
    }
    if (key.kind != VALUE_NONE && !value_is_number(key))
        sandbox_fail(s, "keys must be str, int, float, bool or None, not %s", value_type(key));
    repr_add_text(s, to, "\"");
    add_scalar(s, to, key);
    repr_add_text(s, to, "\"");
}

static void add_mapping(sandbox *s, piece_text *to, const mapping *m, const json_style *style, int level)
{
    const size_t *order = order_of(s, m, style->sort);
    repr_add_text(s, to, "{");
    for (size_t i = 0; i < m->count; i++) {
        if (i)
            repr_add_text(s, to, style->comma);
        new_line(s, to, style, level + 1);
        add_key(s, to, m->keys[order[i]], style);
        repr_add_text(s, to, style->colon);
        add_value(s, to, m->values[order[i]], style, level + 1);
    }
    if (m->count)
        new_line(s, to, style, level);
    repr_add_text(s, to, "}");
}

static void add_value(sandbox *s, piece_text *to, value v, const json_style *style, int level)
{
    sandbox_enter(s);
    if (v.kind == VALUE_STRING)
        add_string(s, to, v.as.string, style->ascii);
    else if (value_is_list(v, LIST_LIST) || value_is_tuple(v))
        add_list(s, to, v.as.list, style, level);
    else if (v.kind == VALUE_DICT)
        add_mapping(s, to, v.as.mapping, style, level);
    else
        add_scalar(s, to, v);
    sandbox_leave(s);
}

void json_value_add(sandbox *s, piece_text *to, value v, const json_style *style)
{
    add_value(s, to, v, style, 0);
}
