/* Layers that are equal are shown once. */
#include "report/describe.h"

#include <stdlib.h>
#include <string.h>

static bool same_string(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

/* The same reason, where each names places by the path of its own site? */
static bool same_reason(const char *a, const char *own_a, const char *b, const char *own_b)
{
    size_t n = strlen(own_a), m = strlen(own_b);
    while (*a && *b) {
        bool path = !strncmp(a, own_a, n) && !strncmp(b, own_b, m);
        if (!path && *a != *b)
            return false;
        a += path && n ? n : 1;
        b += path && m ? m : 1;
    }
    return *a == *b;
}

static bool same_verdicts(const tn_site_report *a, const tn_site_report *b)
{
    if (a->verdict_count != b->verdict_count)
        return false;
    for (size_t i = 0; i < a->verdict_count; i++)
        if (a->verdicts[i]->taken != b->verdicts[i]->taken ||
            !same_reason(a->verdicts[i]->reason, a->site->path, b->verdicts[i]->reason, b->site->path))
            return false;
    return true;
}

static bool same_site(const describe_view *view, const tn_site_report *x, const tn_site_report *y)
{
    if (!x || !y)
        return x == y;
    const tn_site *s = x->site, *t = y->site;
    return s->op == t->op && s->features == t->features && !memcmp(s->meaning, t->meaning, sizeof s->meaning) &&
           !memcmp(s->dim, t->dim, sizeof s->dim) &&
           // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): of these numbers the bits count
           !memcmp(s->num, t->num, sizeof s->num) && same_string(x->kernel, y->kernel) &&
           same_string(describe_covering(view, x), describe_covering(view, y)) &&
           (!view->explain || same_verdicts(x, y));
}

static bool same_inside(const describe_view *view, const graph_module *a, const graph_module *b)
{
    if (!same_string(a->class_name, b->class_name) || a->parameters != b->parameters || a->bytes != b->bytes ||
        a->dtype != b->dtype || !same_site(view, describe_site(view, a), describe_site(view, b)) ||
        !same_site(view, describe_shown_outer(view, a), describe_shown_outer(view, b)))
        return false;
    const graph_module *x = a->first_child, *y = b->first_child;
    for (; x && y; x = x->next, y = y->next)
        if (strcmp(x->name, y->name) != 0 || !same_inside(view, x, y))
            return false;
    return !x && !y;
}

static bool is_number(const char *name)
{
    return name[0] && strspn(name, "0123456789") == strlen(name);
}

/* "0", then "0-1", "0-2"; a gap adds ",4". */
static void add_number(describe_group *g, const graph_module *member, long last, bool in_range)
{
    long number = strtol(member->name, NULL, 10);
    if (g->count > 0 && number == last + 1) {
        if (in_range)
            while (g->name.length > 0 && g->name.data[g->name.length - 1] != '-')
                g->name.length--;
        else
            text_add(&g->name, "-");
        text_add(&g->name, "%s", member->name);
    } else {
        text_add(&g->name, "%s%s", g->count ? "," : "", member->name);
    }
    g->count++;
}

/* All later siblings equal to first join its group. */
static void gather(const describe_view *view, describe_group *g, const graph_module *first, bool *taken, size_t index)
{
    long last = -2;
    bool in_range = false;
    size_t i = index;
    g->first = first;
    for (const graph_module *m = first; m; m = m->next, i++) {
        if (taken[i] || !is_number(m->name) || (m != first && !same_inside(view, first, m)))
            continue;
        long number = strtol(m->name, NULL, 10);
        add_number(g, m, last, in_range);
        in_range = number == last + 1;
        last = number;
        taken[i] = true;
    }
}

describe_group *describe_fold(const describe_view *view, const graph_module *parent, size_t *count)
{
    size_t children = 0, index = 0;
    for (const graph_module *m = parent->first_child; m; m = m->next)
        children++;
    *count = 0;
    describe_group *groups = calloc(children + 1, sizeof *groups);
    bool *taken = calloc(children + 1, sizeof *taken);
    for (const graph_module *m = parent->first_child; groups && taken && m; m = m->next, index++) {
        if (taken[index])
            continue;
        describe_group *g = &groups[(*count)++];
        if (is_number(m->name)) {
            gather(view, g, m, taken, index);
        } else {
            *g = (describe_group){.first = m, .count = 1};
            text_add(&g->name, "%s", m->name);
        }
    }
    bool failed = !taken;
    for (size_t i = 0; groups && i < *count; i++)
        failed |= groups[i].name.failed;
    free(taken);
    if (!failed)
        return groups;
    describe_groups_free(groups, *count);
    return NULL;
}

void describe_groups_free(describe_group *groups, size_t count)
{
    for (size_t i = 0; groups && i < count; i++)
        free(groups[i].name.data);
    free(groups);
}
