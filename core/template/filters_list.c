/* Filters of lists and dictionaries. */
#include "template/chars.h"
#include "template/runtime.h"

#include <string.h>

static value lowered(sandbox *s, value v)
{
    return v.kind == VALUE_STRING ? text_methods_case(s, v.as.string, CHARS_LOWER) : v;
}

/* What an item is compared by. */
static value key_of(sandbox *s, value item, value attribute, bool case_sensitive)
{
    value key = attribute_path(s, item, attribute, (value){0});
    return case_sensitive ? key : lowered(s, key);
}

static value filter_length(sandbox *s, const invocation *c)
{
    return value_int((int64_t)value_need_length(s, c->self));
}

/* Items of which only the first or last is read: messages|last stands in loops over messages, and costs no more in long
 * ones. */
static const list *ends_of(sandbox *s, value v)
{
    return v.kind == VALUE_LIST && v.as.list->kind != LIST_GENERATOR ? v.as.list : value_items(s, v);
}

static value filter_first(sandbox *s, const invocation *c)
{
    if (value_is_list(c->self, LIST_GENERATOR) && c->self.as.list->taken < c->self.as.list->count)
        return c->self.as.list->items[c->self.as.list->taken++];
    const list *items = ends_of(s, c->self);
    return items->count ? items->items[0] : value_unknown(s, "No first item, sequence was empty");
}

static void need_reversible(sandbox *s, value self)
{
    if (value_is_list(self, LIST_GENERATOR))
        sandbox_fail(s, "'generator' object is not reversible; use the filter 'list' before");
    value_need_length(s, self);
}

static value filter_last(sandbox *s, const invocation *c)
{
    need_reversible(s, c->self);
    const list *items = ends_of(s, c->self);
    return items->count ? items->items[items->count - 1] : value_unknown(s, "No last item, sequence was empty");
}

static value filter_list(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    list *copy = value_list_new(s, LIST_LIST, items->count);
    for (size_t i = 0; i < items->count; i++)
        value_list_add(s, copy, items->items[i]);
    return value_list(copy);
}

static value filter_reverse(sandbox *s, const invocation *c)
{
    if (c->self.kind == VALUE_STRING)
        return attribute_slice(s, c->self, (value){0}, (value){0}, value_int(-1));
    const list *items = value_items(s, c->self);
    list *back = value_list_new(s, LIST_GENERATOR, items->count);
    for (size_t i = items->count; i-- > 0;)
        value_list_add(s, back, items->items[i]);
    return value_list(back);
}

static value filter_join(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    value between = c->arg[0].kind == VALUE_MISSING ? value_string(s, "", 0) : value_of(repr_str(s, c->arg[0]));
    piece_text text = {0};
    for (size_t i = 0; i < items->count; i++) {
        if (i)
            repr_add_str(s, &text, between);
        repr_add_str(s, &text, attribute_path(s, items->items[i], c->arg[1], (value){0}));
    }
    return repr_done(s, &text);
}

static value filter_sum(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    value sum = c->arg[1].kind == VALUE_MISSING ? value_int(0) : c->arg[1];
    if (sum.kind == VALUE_STRING)
        sandbox_fail(s, "sum() can't sum strings; use the filter 'join'");
    for (size_t i = 0; i < items->count; i++)
        sum = operators_binary(s, "+", sum, attribute_path(s, items->items[i], c->arg[0], (value){0}));
    return sum;
}

typedef enum extreme { EXTREME_LEAST, EXTREME_MOST } extreme;

static value filter_extreme(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    if (items->count == 0)
        return value_unknown(s, "No aggregated item, sequence was empty");
    bool sensitive = value_truth(c->arg[0]);
    size_t best = 0;
    value key = key_of(s, items->items[0], c->arg[1], sensitive);
    for (size_t i = 1; i < items->count; i++) {
        value other = key_of(s, items->items[i], c->arg[1], sensitive);
        if (operators_compare(s, c->how == EXTREME_MOST ? ">" : "<", other, key)) {
            key = other;
            best = i;
        }
    }
    return items->items[best];
}

/* ---- in order ---- */

typedef struct entry {
    value key, item;
} entry;

/* Merges sorted halves; stable, and reversed orders keep equals as they were, as Python's do. */
static void merge_sort(sandbox *s, entry *list, entry *spare, size_t count, bool reverse)
{
    if (count < 2)
        return;
    size_t half = count / 2, a = 0, b = half, n = 0;
    merge_sort(s, list, spare, half, reverse);
    merge_sort(s, list + half, spare, count - half, reverse);
    while (a < half && b < count) {
        bool second = reverse ? operators_compare(s, "<", list[a].key, list[b].key)
                              : operators_compare(s, "<", list[b].key, list[a].key);
        spare[n++] = second ? list[b++] : list[a++];
    }
    while (a < half)
        spare[n++] = list[a++];
    memcpy(list, spare, n * sizeof *list);
}

static list *sorted(sandbox *s, entry *entries, size_t count, bool reverse)
{
    merge_sort(s, entries, sandbox_array(s, count, sizeof *entries), count, reverse);
    list *items = value_list_new(s, LIST_LIST, count);
    for (size_t i = 0; i < count; i++)
        value_list_add(s, items, entries[i].item);
    return items;
}

/* A list of keys, of one where there is one attribute or none: in lists, what is equal needs no order. */
static value sort_key(sandbox *s, value item, value attribute, bool case_sensitive)
{
    list *keys = value_list_new(s, LIST_LIST, 1);
    const char *rest = attribute.kind == VALUE_STRING ? attribute.as.string->data : "";
    if (!strchr(rest, ',')) {
        value_list_add(s, keys, key_of(s, item, attribute, case_sensitive));
        return value_list(keys);
    }
    for (bool more = true; more;) {
        size_t n = strcspn(rest, ",");
        value_list_add(s, keys, key_of(s, item, value_string(s, rest, n), case_sensitive));
        more = rest[n] == ',';
        rest += n + more;
    }
    return value_list(keys);
}

static value filter_sort(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    entry *entries = sandbox_array(s, items->count, sizeof *entries);
    for (size_t i = 0; i < items->count; i++)
        entries[i] = (entry){sort_key(s, items->items[i], c->arg[2], value_truth(c->arg[1])), items->items[i]};
    return value_list(sorted(s, entries, items->count, value_truth(c->arg[0])));
}

static value filter_dictsort(sandbox *s, const invocation *c)
{
    value_need(s, c->self);
    if (c->self.kind != VALUE_DICT)
        sandbox_fail(s, "'%s' object has no items to sort; give a dict", value_type(c->self));
    const char *by = c->arg[1].kind == VALUE_STRING ? c->arg[1].as.string->data : "key";
    if (strcmp(by, "key") != 0 && strcmp(by, "value") != 0)
        sandbox_fail(s, "you can only sort by either 'key' or 'value', not '%s'", by);
    const mapping *m = c->self.as.mapping;
    entry *entries = sandbox_array(s, m->count, sizeof *entries);
    for (size_t i = 0; i < m->count; i++) {
        value key = by[0] == 'k' ? m->keys[i] : m->values[i];
        entries[i].key = value_truth(c->arg[0]) ? key : lowered(s, key);
        entries[i].item = value_pair(s, m->keys[i], m->values[i]);
    }
    return value_list(sorted(s, entries, m->count, value_truth(c->arg[2])));
}

static value filter_unique(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    list *once = value_list_new(s, LIST_GENERATOR, 0);
    mapping *seen = mapping_new(s);
    for (size_t i = 0; i < items->count; i++) {
        value key = key_of(s, items->items[i], c->arg[1], value_truth(c->arg[0]));
        size_t before = seen->count;
        mapping_set(s, seen, key, value_none());
        if (seen->count > before)
            value_list_add(s, once, items->items[i]);
    }
    return value_list(once);
}

static value filter_groupby(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    bool sensitive = value_truth(c->arg[2]);
    value otherwise = c->arg[1].kind == VALUE_NONE ? (value){0} : c->arg[1];
    entry *entries = sandbox_array(s, items->count, sizeof *entries);
    for (size_t i = 0; i < items->count; i++) {
        value key = attribute_path(s, items->items[i], c->arg[0], otherwise);
        entries[i] = (entry){sensitive ? key : lowered(s, key), items->items[i]};
    }
    const list *order = sorted(s, entries, items->count, false);
    list *groups = value_list_new(s, LIST_LIST, 0), *members = NULL;
    for (size_t i = 0; i < order->count; i++) {
        if (i == 0 || !value_equal(s, entries[i].key, entries[i - 1].key)) {
            members = value_list_new(s, LIST_LIST, 0);
            value group = value_pair(s, attribute_path(s, order->items[i], c->arg[0], otherwise), value_list(members));
            group.as.list->kind = LIST_GROUP;
            value_list_add(s, groups, group);
        }
        value_list_add(s, members, order->items[i]);
    }
    return value_list(groups);
}

/* ---- some, and each changed ---- */

/* The arguments behind the first `skip`. */
static arguments behind(const arguments *raw, size_t skip)
{
    arguments rest = *raw;
    size_t before = raw->count < skip ? raw->count : skip;
    if (before > 0) /* none are at no place */
        rest.items += before;
    rest.count -= before;
    return rest;
}

static const string *name_of(sandbox *s, value v)
{
    if (v.kind != VALUE_STRING)
        sandbox_fail(s, "the name of a filter or test is a text, not '%s'", value_type(v));
    return v.as.string;
}

/* Of what is empty, zero or none there are no items, though it may be no list. */
static const list *items_if_any(sandbox *s, value self)
{
    return value_truth(self) ? value_items(s, self) : value_list_new(s, LIST_LIST, 0);
}

/* Which items are kept: those that pass or fail the test, of themselves or of an attribute. */
enum { CHOOSE_PASSING = 1, CHOOSE_BY_ATTRIBUTE = 2 };

static value filter_choose(sandbox *s, const invocation *c)
{
    const arguments *raw = c->raw;
    bool by_attribute = c->how & CHOOSE_BY_ATTRIBUTE, wanted = c->how & CHOOSE_PASSING;
    const list *items = items_if_any(s, c->self);
    list *some = value_list_new(s, LIST_GENERATOR, 0);
    if (by_attribute && raw->count == 0)
        sandbox_fail(s, "missing parameter for attribute name; write selectattr('name')");
    arguments rest = behind(raw, by_attribute);
    for (size_t i = 0; i < items->count; i++) {
        value of = by_attribute ? attribute_path(s, items->items[i], raw->items[0], (value){0}) : items->items[i];
        arguments passed = behind(&rest, 1);
        bool is = rest.count ? call_test(s, name_of(s, rest.items[0]), of, &passed) : value_truth(of);
        if (is == wanted)
            value_list_add(s, some, items->items[i]);
    }
    return value_list(some);
}

static value filter_map(sandbox *s, const invocation *c)
{
    value attribute = {0}, otherwise = {0};
    for (size_t i = 0; c->raw->count == 0 && i < c->raw->named_count; i++) {
        bool is_attribute = strcmp(c->raw->names[i]->data, "attribute") == 0;
        if (!is_attribute && strcmp(c->raw->names[i]->data, "default") != 0)
            sandbox_fail(s, "unexpected keyword argument '%s'; map has 'attribute default'", c->raw->names[i]->data);
        *(is_attribute ? &attribute : &otherwise) = c->raw->named[i];
    }
    if (c->raw->count == 0 && attribute.kind == VALUE_MISSING)
        sandbox_fail(s, "map requires a filter argument; write map('name') or map(attribute='name')");
    const list *items = items_if_any(s, c->self);
    list *each = value_list_new(s, LIST_GENERATOR, items->count);
    arguments rest = behind(c->raw, 1);
    if (otherwise.kind == VALUE_NONE)
        otherwise = (value){0};
    for (size_t i = 0; i < items->count; i++)
        value_list_add(s, each,
                       c->raw->count ? call_filter(s, name_of(s, c->raw->items[0]), items->items[i], &rest)
                                     : attribute_path(s, items->items[i], attribute, otherwise));
    return value_list(each);
}

static value filter_items(sandbox *s, const invocation *c)
{
    list *pairs = value_list_new(s, LIST_GENERATOR, 0);
    if (c->self.kind != VALUE_DICT && c->self.kind != VALUE_UNDEFINED)
        sandbox_fail(s, "can only get item pairs from a mapping, not from '%s'", value_type(c->self));
    for (size_t i = 0; c->self.kind == VALUE_DICT && i < c->self.as.mapping->count; i++)
        value_list_add(s, pairs, value_pair(s, c->self.as.mapping->keys[i], c->self.as.mapping->values[i]));
    return value_list(pairs);
}

static value filter_batch(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    int64_t size = value_need_whole(s, c->arg[0], "linecount");
    list *rows = value_list_new(s, LIST_GENERATOR, 0), *row = value_list_new(s, LIST_LIST, 0);
    for (size_t i = 0; i < items->count; i++) {
        if ((int64_t)row->count == size) {
            value_list_add(s, rows, value_list(row));
            row = value_list_new(s, LIST_LIST, 0);
        }
        value_list_add(s, row, items->items[i]);
    }
    while (row->count && c->arg[1].kind != VALUE_MISSING && c->arg[1].kind != VALUE_NONE && (int64_t)row->count < size)
        value_list_add(s, row, c->arg[1]);
    if (row->count)
        value_list_add(s, rows, value_list(row));
    return value_list(rows);
}

static value filter_slice(sandbox *s, const invocation *c)
{
    const list *items = value_items(s, c->self);
    int64_t slices = value_need_whole(s, c->arg[0], "slices");
    if (slices == 0)
        sandbox_fail(s, "division by zero; slice into at least one part");
    int64_t each = (int64_t)items->count / (slices > 0 ? slices : 1);
    int64_t more = slices > 0 ? (int64_t)items->count % slices : 0;
    list *parts = value_list_new(s, LIST_GENERATOR, 0);
    size_t at = 0;
    for (int64_t i = 0; i < slices; i++) {
        list *part = value_list_new(s, LIST_LIST, 0);
        for (int64_t k = 0; k < each + (i < more); k++)
            value_list_add(s, part, items->items[at++]);
        if (c->arg[1].kind != VALUE_MISSING && c->arg[1].kind != VALUE_NONE && i >= more)
            value_list_add(s, part, c->arg[1]);
        value_list_add(s, parts, value_list(part));
    }
    return value_list(parts);
}

const builtin filters_list_table[] = {
    {"length", "", 0, filter_length, 0},
    {"count", "", 0, filter_length, 0},
    {"first", "", 0, filter_first, 0},
    {"last", "", 0, filter_last, 0},
    {"list", "", 0, filter_list, 0},
    {"reverse", "", 0, filter_reverse, 0},
    {"join", "d attribute", 0, filter_join, 0},
    {"sum", "attribute start", 0, filter_sum, 0},
    {"min", "case_sensitive attribute", 0, filter_extreme, EXTREME_LEAST},
    {"max", "case_sensitive attribute", 0, filter_extreme, EXTREME_MOST},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, 0},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, 0},
    {"unique", "case_sensitive attribute", 0, filter_unique, 0},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby, 0},
    {"select", "*", 0, filter_choose, CHOOSE_PASSING},
    {"reject", "*", 0, filter_choose, 0},
    {"selectattr", "*", 0, filter_choose, CHOOSE_BY_ATTRIBUTE | CHOOSE_PASSING},
    {"rejectattr", "*", 0, filter_choose, CHOOSE_BY_ATTRIBUTE},
    {"map", "*", 0, filter_map, 0},
    {"items", "", 0, filter_items, 0},
    {"batch", "linecount fill_with", 1, filter_batch, 0},
    {"slice", "slices fill_with", 1, filter_slice, 0},
    {0},
};
