/* The module tree as JSON, unfolded. */
#include "report/describe.h"

#include <string.h>

static void add_string(text *out, const char *key, const char *value)
{
    text_add_quoted(out, key);
    text_add(out, ": ");
    if (value)
        text_add_quoted(out, value);
    else
        text_add(out, "null");
}

static void add_meaning(const tn_site *site, text *out)
{
    int items = 0;
    text_add(out, "\"meaning\": {");
    for (int axis = 0; axis < TN_AXIS_MAX; axis++)
        if (site->meaning[axis]) {
            text_add(out, "%s", items++ ? ", " : "");
            add_string(out, tn_axis_name((tn_axis)axis), tn_axis_value_name((tn_axis)axis, site->meaning[axis]));
        }
    text_add(out, "}, \"features\": [");
    items = 0;
    for (int bit = 0; bit < 64; bit++)
        if (site->features >> bit & 1) {
            text_add(out, "%s", items++ ? ", " : "");
            text_add_quoted(out, tn_feature_name(UINT64_C(1) << bit));
        }
    text_add(out, "], \"dims\": {");
    items = 0;
    for (int dim = 0; dim < TN_DIM_MAX; dim++)
        if (site->dim[dim]) {
            text_add(out, "%s", items++ ? ", " : "");
            text_add_quoted(out, tn_dim_name((tn_dim)dim));
            text_add(out, ": %lld", (long long)site->dim[dim]);
        }
    text_add(out, "}");
}

static void add_site(const describe_view *view, const char *key, const tn_site_report *site, text *out)
{
    text_add(out, ", \"%s\": {", key);
    add_string(out, "op", tn_op_name(site->site->op));
    text_add(out, ", ");
    add_string(out, "kernel", site->kernel);
    text_add(out, ", ");
    add_string(out, "covered_by", site->covered_by);
    text_add(out, ", ");
    add_meaning(site->site, out);
    if (view->explain) {
        text_add(out, ", \"verdicts\": [");
        for (size_t i = 0; i < site->verdict_count; i++) {
            text_add(out, "%s{", i ? ", " : "");
            add_string(out, "kernel", site->verdicts[i]->kernel);
            text_add(out, ", \"taken\": %s, ", site->verdicts[i]->taken ? "true" : "false");
            add_string(out, "reason", site->verdicts[i]->reason);
            text_add(out, ", ");
            add_string(out, "measured", site->verdicts[i]->measured);
            text_add(out, "}");
        }
        text_add(out, "]");
    }
    text_add(out, "}");
}

static void add_modules(const describe_view *view, const graph_module *parent, int depth, text *out)
{
    text_add(out, "[");
    for (const graph_module *m = parent->first_child; m; m = m->next) {
        const tn_site_report *site = describe_site(view, m), *outer = describe_outer_site(view, m);
        text_add(out, "%s\n%*s{", m == parent->first_child ? "" : ",", 2 * depth, "");
        add_string(out, "name", m->name);
        text_add(out, ", ");
        add_string(out, "path", m->path);
        text_add(out, ", ");
        add_string(out, "class", m->class_name);
        text_add(out, ", \"parameters\": %lld, \"bytes\": %lld", (long long)m->parameters, (long long)m->bytes);
        if (m->dtype) {
            text_add(out, ", ");
            add_string(out, "weights", tn_dtype_name(m->dtype));
        }
        if (site)
            add_site(view, "site", site, out);
        if (outer)
            add_site(view, "outer_site", outer, out);
        if (m->first_child) {
            text_add(out, ", \"modules\": ");
            add_modules(view, m, depth + 1, out);
        }
        text_add(out, "}");
    }
    text_add(out, "]");
}

static void add_kernels(const tn_report *r, text *out)
{
    text_add(out, ",\n \"kernels\": [");
    for (size_t i = 0; i < r->kernel_count; i++) {
        text_add(out, "%s\n  {", i ? "," : "");
        add_string(out, "id", r->kernels[i]->kernel);
        text_add(out, ", \"sites\": %lld, ", (long long)r->kernels[i]->sites);
        add_string(out, "reason", r->kernels[i]->reason);
        text_add(out, "}");
    }
    text_add(out, "],\n \"overlaps\": [");
    for (size_t i = 0; i < r->overlap_count; i++) {
        text_add(out, "%s\n  {", i ? "," : "");
        add_string(out, "kernel", r->overlaps[i]->kernel);
        text_add(out, ", ");
        add_string(out, "winner", r->overlaps[i]->winner);
        text_add(out, ", \"sites\": %lld, ", (long long)r->overlaps[i]->sites);
        add_string(out, "reason", r->overlaps[i]->reason);
        text_add(out, "}");
    }
    text_add(out, "],\n \"notes\": [");
    for (size_t i = 0; i < r->note_count; i++) {
        text_add(out, "%s", i ? ", " : "");
        text_add_quoted(out, r->notes[i]);
    }
    text_add(out, "]");
}

static void add_measured(const tn_report *r, text *out)
{
    describe_measured m = {0};
    text_add(out, ",\n \"measured\": [");
    for (bool any = false; describe_measured_next(r, &m); any = true) {
        text_add(out, "%s\n  {", any ? "," : "");
        add_string(out, "kernel", m.verdict->kernel);
        text_add(out, ", ");
        add_string(out, "op", tn_op_name(m.op));
        text_add(out, ", \"sites\": %zu, \"taken\": %s, ", m.sites, m.verdict->taken ? "true" : "false");
        add_string(out, "times", m.verdict->measured);
        text_add(out, "}");
    }
    text_add(out, "]");
}

void describe_json(const describe_view *view, text *out)
{
    const graph *g = view->target->graph;
    text_add(out, "{");
    add_string(out, "model_type", g->model_type);
    text_add(out, ", ");
    add_string(out, "class", g->root->class_name);
    text_add(out, ", ");
    add_string(out, "dtype", tn_dtype_name(g->dtype));
    text_add(out, ", ");
    add_string(out, "device", view->target->device->ops->name);
    text_add(out, ",\n ");
    add_string(out, "summary", view->report->summary);
    add_kernels(view->report, out);
    add_measured(view->report, out);
    text_add(out, ",\n \"first_calls\": {\"compared\": %lld, \"now\": %lld}", (long long)view->report->first_calls,
             (long long)view->report->first_calls_now);
    text_add(out, ",\n \"modules\": ");
    add_modules(view, g->root, 1, out);
    text_add(out, ",\n \"scopes\": ");
    add_modules(view, g->scopes, 1, out);
    text_add(out, "}\n");
}
