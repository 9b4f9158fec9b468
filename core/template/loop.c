/* For loops as their bodies see them: the items one by one, and what `loop` has. */
#include "template/runtime.h"

#include <string.h>

/* The next item that passes the loop's filter. */
bool loop_fetch(sandbox *s, loop *l, value *item)
{
    while (l->at < l->source->count) {
        *item = l->source->items[l->at++];
        if (!l->passes || l->passes(s, l, *item))
            return true;
    }
    return false;
}

/* Finds all that is still to come. */
static void find_rest(sandbox *s, loop *l)
{
    value item;
    list *rest = value_list_new(s, LIST_LIST, 0);
    while (loop_fetch(s, l, &item))
        value_list_add(s, rest, item);
    l->source = rest;
    l->at = 0;
    l->passes = NULL;
}

value loop_attribute(sandbox *s, loop *l, const string *name)
{
    const char *n = name->data;
    if (strcmp(n, "index") == 0)
        return value_int(l->index0 + 1);
    if (strcmp(n, "index0") == 0)
        return value_int(l->index0);
    if (strcmp(n, "first") == 0)
        return value_bool(l->index0 == 0);
    if (strcmp(n, "depth") == 0)
        return value_int(l->depth0 + 1);
    if (strcmp(n, "depth0") == 0)
        return value_int(l->depth0);
    if (strcmp(n, "previtem") == 0)
        return l->index0 == 0 ? value_unknown(s, "there is no previous item") : l->before;
    if (strcmp(n, "last") == 0 || strcmp(n, "nextitem") == 0) {
        if (!l->has_after)
            l->has_after = loop_fetch(s, l, &l->after);
        if (n[0] == 'l')
            return value_bool(!l->has_after);
        return l->has_after ? l->after : value_unknown(s, "there is no next item");
    }
    bool reverse = strcmp(n, "revindex") == 0, reverse0 = strcmp(n, "revindex0") == 0;
    if (reverse || reverse0 || strcmp(n, "length") == 0) {
        if (l->passes)
            find_rest(s, l);
        int64_t rest = (int64_t)(l->source->count - l->at) + l->has_after;
        return value_int(reverse ? rest + 1 : reverse0 ? rest : rest + l->index0 + 1);
    }
    return (value){0};
}
