/* The module tree as a picture for Graphviz: equal layers once, modules with kernels filled. */
#include "report/describe.h"

#include <stdlib.h>
#include <string.h>

/* Colours that stay apart in grey and for the colour-blind. */
#define COLOR_KERNEL "#f6b26b"
#define COLOR_COVERED "#fde9d0"
#define COLOR_EAGER "#e3ecf5"
#define COLOR_PLAIN "#ffffff"

static void add_html(text *out, const char *string)
{
    static const char marks[] = "&<>\"", *const written[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    for (const char *s = string; *s; s++) {
        const char *mark = strchr(marks, *s), *as = mark ? written[mark - marks] : s;
        text_add_n(out, as, mark ? strlen(as) : 1);
    }
}

static void add_note(text *out, const char *color, const char *string)
{
    text_add(out, "<br align=\"left\"/><font point-size=\"9\" color=\"%s\">", color);
    add_html(out, string);
    text_add(out, "</font>");
}

static void add_verdict_notes(const tn_site_report *site, text *out)
{
    for (size_t i = 0; i < site->verdict_count; i++)
        if (!site->verdicts[i]->taken && strncmp(site->verdicts[i]->reason, "op:", 3) != 0) {
            text note = {0};
            text_add(&note, "not %s: %s", site->verdicts[i]->kernel, site->verdicts[i]->reason);
            add_note(out, "#7f3f00", note.data ? note.data : "");
            free(note.data);
        }
}

static void add_node(const describe_view *view, text *out, size_t id, const graph_module *m, const char *prefix,
                     const describe_group *g)
{
    const tn_site_report *own = describe_site(view, m), *outer = describe_shown_outer(view, m);
    const tn_site_report *site = outer && outer->kernel ? outer : own;
    const char *covering = site ? describe_covering(view, site) : NULL;
    const char *color = !site ? COLOR_PLAIN : covering ? COLOR_COVERED : site->kernel ? COLOR_KERNEL : COLOR_EAGER;
    bool has_kernel = site && site->kernel;
    text_add(out, "  n%zu [fillcolor=\"%s\", penwidth=%s, label=<<b>", id, color, has_kernel ? "1.6" : "0.6");
    add_html(out, prefix);
    add_html(out, g->name.data ? g->name.data : m->name);
    text_add(out, "</b>");
    if (g->count > 1)
        text_add(out, "  (%zu alike)", g->count);
    add_note(out, "#555555", m->class_name);
    if (site) {
        text_add(out, "<br align=\"left\"/><font point-size=\"9\">%s: </font>", tn_op_name(site->site->op));
        text_add(out, "<font point-size=\"%s\">%s", has_kernel ? "10" : "9", has_kernel ? "<b>" : "");
        add_html(out, covering ? "part of " : "");
        add_html(out, covering ? covering : site->kernel ? site->kernel : "eager");
        text_add(out, "%s</font>", has_kernel ? "</b>" : "");
        if (view->explain && outer)
            add_verdict_notes(outer, out);
        if (view->explain)
            add_verdict_notes(own, out);
    }
    text_add(out, "<br align=\"left\"/>>];\n");
}

/* Lists are drawn as part of their members' names. */
static void walk(const describe_view *view, text *out, const graph_module *parent, const char *prefix, size_t parent_id,
                 size_t *next_id)
{
    size_t count;
    describe_group *groups = describe_fold(view, parent, &count);
    for (size_t i = 0; groups && i < count; i++) {
        const graph_module *m = groups[i].first;
        if (!strcmp(m->class_name, "ModuleList") && !m->site && m->first_child) {
            text longer = {0};
            text_add(&longer, "%s%s.", prefix, m->name);
            out->failed |= longer.failed;
            walk(view, out, m, longer.data ? longer.data : prefix, parent_id, next_id);
            free(longer.data);
            continue;
        }
        size_t id = (*next_id)++;
        add_node(view, out, id, m, prefix, &groups[i]);
        text_add(out, "  n%zu -> n%zu;\n", parent_id, id);
        walk(view, out, m, "", id, next_id);
    }
    out->failed |= !groups;
    describe_groups_free(groups, count);
}

static void add_root(text *out, size_t id, const char *title, const char *line)
{
    text_add(out, "  n%zu [fillcolor=\"" COLOR_PLAIN "\", penwidth=0.6, label=<<b>", id);
    add_html(out, title);
    text_add(out, "</b>");
    add_note(out, "#555555", line);
    text_add(out, "<br align=\"left\"/>>];\n");
}

static void add_legend(text *out)
{
    text_add(out, "  legend [shape=plain, style=\"\", label=<<table border=\"0\" cellborder=\"1\" cellspacing=\"4\" "
                  "cellpadding=\"4\" color=\"#999999\"><tr><td bgcolor=\"" COLOR_KERNEL
                  "\">has a kernel</td><td bgcolor=\"" COLOR_COVERED
                  "\">part of what a kernel does</td><td bgcolor=\"" COLOR_EAGER
                  "\">eager</td><td bgcolor=\"" COLOR_PLAIN "\">no operation of its own</td></tr></table>>];\n");
}

void describe_dot(const describe_view *view, text *out)
{
    const graph *g = view->target->graph;
    size_t next_id = 1;
    text line = {0};
    text_add(&line, "%s, %s on %s", g->model_type, tn_dtype_name(g->dtype), view->target->device->ops->name);
    text_add(out, "digraph model {\n"
                  "  graph [rankdir=LR, ordering=out, fontname=\"Helvetica\", fontsize=11, labelloc=t, nodesep=0.12, "
                  "ranksep=0.45, label=");
    text_add_quoted(out, view->report->summary);
    text_add(out,
             "];\n  node [shape=box, style=\"filled,rounded\", fontname=\"Helvetica\", fontsize=11, color=\"#666666\", "
             "height=0.2, margin=\"0.1,0.04\"];\n"
             "  edge [arrowhead=none, tailport=e, headport=w, color=\"#999999\"];\n");
    add_legend(out);
    out->failed |= line.failed;
    add_root(out, 0, g->root->class_name, line.data ? line.data : "");
    walk(view, out, g->root, "", 0, &next_id);
    walk(view, out, g->scopes, "", 0, &next_id);
    text_add(out, "}\n");
    free(line.data);
}
