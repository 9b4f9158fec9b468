/* The module tree with its sites and who has them: as indented text, and the choice among the formats. */
#include "report/describe.h"

#include "base/blocks.h"
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

/* ---- text ------------------------------------------------------------------------------------------------- */

/* Widths of the first columns; measured by a first pass that writes nothing. */
typedef struct columns {
    text *out; /* NULL: measure                                                                  */
    int name, class_name, weights;
    bool failed; /* no memory, in either pass                                                      */
} columns;

/* Stands for a module's name in the line of the site around its own. */
static const char *outer_name(const tn_site_report *outer)
{
    return outer->site->op == TN_OP_LORA_LINEAR ? "  + adapter" : "  + residual";
}

static void widen(int *width, size_t length)
{
    if ((int)length > *width)
        *width = (int)length;
}

static void add_verdicts(const describe_view *view, const tn_site_report *site, int indent, text *out)
{
    for (size_t i = 0; view->explain && i < site->verdict_count; i++) {
        const tn_verdict *v = site->verdicts[i];
        if (!describe_decides(view, site, v->kernel))
            continue;
        text_add(out, "%*s%c %s: %s\n", indent, "", v->taken ? '+' : '-', v->kernel, v->taken ? "takes it" : v->reason);
    }
}

/* The rest of a site's line, and what kernels say of it. */
static void add_site(const describe_view *view, const tn_site_report *site, int indent, text *out)
{
    const char *covering = describe_covering(view, site);
    text_add(out, "%-12s ", tn_op_name(site->site->op));
    if (covering)
        text_add(out, "  (%s)\n", covering);
    else
        text_add(out, "%s %s\n", site->kernel ? "*" : " ", site->kernel ? site->kernel : "eager");
    add_verdicts(view, site, indent, out);
}

/* The type and size of a module's own weights, where these are quantised; else nothing. Returns the length. */
static size_t weights_text(const graph_module *m, char out[static 48])
{
    if (!blocks_is_quantised(m->dtype))
        return text_cut(out, 48, "%s", "");
    return text_cut(out, 48, "%s, %.4g MiB", tn_dtype_name(m->dtype), (double)m->bytes / (1 << 20));
}

static void add_line(const describe_view *view, columns *c, const graph_module *m, const char *prefix, const char *name,
                     size_t count, int depth)
{
    size_t width = 2 * (size_t)depth + strlen(prefix) + strlen(name);
    const tn_site_report *site = describe_site(view, m), *outer = describe_shown_outer(view, m);
    char weights[48];
    size_t length = weights_text(m, weights);
    if (!c->out) {
        widen(&c->name, width);
        widen(&c->class_name, strlen(m->class_name));
        widen(&c->weights, length ? length + 2 : 0);
        if (outer)
            widen(&c->name, 2 * (size_t)depth + strlen(outer_name(outer)));
        return;
    }
    text_add(c->out, "%*s%s%s%*s", 2 * depth, "", prefix, name, c->name - (int)width + 2, "");
    if (site || count > 1 || length)
        text_add(c->out, "%-*s%-*s", c->class_name + 2, m->class_name, site || count > 1 ? c->weights : 0, weights);
    else
        text_add(c->out, "%s", m->class_name);
    if (site)
        add_site(view, site, 2 * depth + 4, c->out);
    else if (count > 1)
        text_add(c->out, "(%zu alike)\n", count);
    else
        text_add(c->out, "\n");
    if (outer) {
        text_add(c->out, "%*s%-*s%*s", 2 * depth, "", c->name + 2 - 2 * depth, outer_name(outer),
                 c->class_name + 2 + c->weights, "");
        add_site(view, outer, 2 * depth + 4, c->out);
    }
}

/* A list of modules has no line of its own: its name precedes those of its members. */
static void walk(const describe_view *view, columns *c, const graph_module *parent, const char *prefix, int depth)
{
    size_t count;
    describe_group *groups = describe_fold(view, parent, &count);
    for (size_t i = 0; groups && i < count; i++) {
        const graph_module *m = groups[i].first;
        const char *name = groups[i].name.data ? groups[i].name.data : m->name;
        bool is_list = !strcmp(m->class_name, "ModuleList") && !m->site && m->first_child;
        if (is_list) {
            text longer = {0};
            text_add(&longer, "%s%s.", prefix, name);
            c->failed |= longer.failed;
            walk(view, c, m, longer.data ? longer.data : prefix, depth);
            free(longer.data);
            continue;
        }
        add_line(view, c, m, prefix, name, groups[i].count, depth);
        walk(view, c, m, "", depth + 1);
    }
    c->failed |= !groups;
    describe_groups_free(groups, count);
}

static void add_measured(const tn_report *r, text *out)
{
    describe_measured m = {0};
    for (bool any = false; describe_measured_next(r, &m); any = true)
        text_add(out, "%s  %s %s (%zu): %s\n", any ? "" : "measured:\n", m.verdict->kernel, tn_op_name(m.op), m.sites,
                 m.verdict->measured);
}

static void add_first_calls(const tn_report *r, text *out)
{
    if (r->first_calls > 0)
        text_add(out, "compared with eager on first use: %lld call%s of new sizes\n", (long long)r->first_calls,
                 r->first_calls == 1 ? "" : "s");
}

/* Kernels that have no site, or not all that they take: each with who has them and why. */
static void add_overlaps(const describe_view *view, text *out)
{
    const tn_report *r = view->report;
    int width = 0;
    size_t lines = 0;
    for (size_t i = 0; i < r->kernel_count; i++)
        widen(&width, strlen(r->kernels[i]->kernel));
    for (size_t i = 0; i < r->kernel_count; i++) {
        const tn_kernel_report *k = r->kernels[i];
        if (k->sites == 0)
            text_add(out, "%s%-*s  0 sites: %s\n", lines++ ? "" : "\n", width, k->kernel, k->reason);
        for (size_t j = 0; k->sites > 0 && j < r->overlap_count; j++)
            if (!strcmp(r->overlaps[j]->kernel, k->kernel))
                text_add(out, "%s%-*s  lost %lld sites to %s: %s\n", lines++ ? "" : "\n", width, k->kernel,
                         (long long)r->overlaps[j]->sites, r->overlaps[j]->winner, r->overlaps[j]->reason);
    }
}

void describe_text(const describe_view *view, text *out)
{
    const graph *g = view->target->graph;
    columns c = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1)
            text_add(out, "%s (%s, %s on %s)\n", g->root->class_name, g->model_type, tn_dtype_name(g->dtype),
                     view->target->device->ops->name);
        walk(view, &c, g->root, "", 1);
        walk(view, &c, g->scopes, "", 1);
        c.out = out;
    }
    out->failed |= c.failed;
    text_add(out, "\n* has a kernel   (kernel) part of what that kernel does\n%s\n", view->report->summary);
    add_overlaps(view, out);
    add_measured(view->report, out);
    add_first_calls(view->report, out);
    if (view->explain)
        describe_undecided(view, out);
}

/* ---- choice -------------------------------------------------------------------------------------------------- */

char *describe_target(apply_target *target, const tn_report *report, tn_graph_format format, bool explain,
                      tn_error *err)
{
    tn_report *own = NULL;
    if (!report && !(report = own = report_of_target(target, err)))
        return NULL;
    describe_view view = {target, report, explain};
    text out = {0};
    if (format == TN_GRAPH_JSON)
        describe_json(&view, &out);
    else if (format == TN_GRAPH_DOT)
        describe_dot(&view, &out);
    else
        describe_text(&view, &out);
    tn_report_free(own);
    if (!out.failed && out.data)
        return out.data;
    free(out.data);
    tn_fail(err, TN_E_MEMORY, "graph", "out of memory while describing the model; free some memory");
    return NULL;
}
