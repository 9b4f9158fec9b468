/* The module tree and its sites. */
#include "graph/graph.h"

#include "base/reserved.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_status no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "graph", "out of memory while building the model graph; free some memory");
}

static char *join_path(const graph_module *parent, const char *name)
{
    size_t size = (parent ? strlen(parent->path) + 1 : 0) + strlen(name) + 1;
    char *path = malloc(size);
    if (path && parent && parent->path[0])
        snprintf(path, size, "%s.%s", parent->path, name);
    else if (path)
        snprintf(path, size, "%s", name);
    return path;
}

graph_module *graph_add_module(graph *g, graph_module *parent, const char *name, const char *class_name, tn_error *err)
{
    (void)g;
    graph_module *m = calloc(1, sizeof *m);
    if (m) {
        m->name = strdup(name);
        m->path = join_path(parent, name);
        m->class_name = class_name;
        m->parent = parent;
    }
    if (!m || !m->name || !m->path) {
        if (m) {
            free(m->name);
            free(m->path);
            free(m);
        }
        no_memory(err);
        return NULL;
    }
    if (parent) {
        if (parent->last_child)
            parent->last_child->next = m;
        else
            parent->first_child = m;
        parent->last_child = m;
    }
    return m;
}

graph *graph_new(tn_dtype dtype, const char *model_type, tn_error *err)
{
    graph *g = calloc(1, sizeof *g);
    if (!g) {
        no_memory(err);
        return NULL;
    }
    g->dtype = dtype;
    g->model_type = model_type;
    g->root = graph_add_module(g, NULL, "", "", err);
    g->scopes = graph_add_module(g, NULL, "", "scopes", err);
    if (!g->root || !g->scopes) {
        graph_free(g);
        return NULL;
    }
    return g;
}

static void free_module(graph_module *m)
{
    if (!m)
        return;
    for (graph_module *child = m->first_child, *next; child; child = next) {
        next = child->next;
        free_module(child);
    }
    free(m->name);
    free(m->path);
    free(m);
}

void graph_free(graph *g)
{
    if (!g)
        return;
    reserved_free(g->elsewhere, g->elsewhere_bytes);
    for (size_t i = 0; i < g->site_count; i++) {
        for (int role = 0; role < TN_ROLE_MAX; role++)
            free((void *)g->sites[i]->site.param[role].tensors);
        free(g->sites[i]);
    }
    free(g->sites);
    for (size_t i = 0; i < g->step_count; i++) {
        for (int role = 0; role < TN_ROLE_MAX; role++)
            free((void *)g->steps[i]->site.param[role].tensors);
        free(g->steps[i]);
    }
    free(g->steps);
    free(g->twins);
    free_module(g->root);
    free_module(g->scopes);
    free(g);
}

/* Room for one more pointer in a list. */
static void *grow(void *list, size_t count, size_t *capacity, tn_error *err)
{
    if (count < *capacity)
        return list;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *larger = realloc(list, more * sizeof(void *));
    if (larger)
        *capacity = more;
    else
        no_memory(err);
    return larger;
}

static tn_site place_of(const graph *g, const graph_module *module, tn_op op)
{
    tn_site site = {.size = sizeof site,
                    .op = op,
                    .path = module->path,
                    .class_name = module->class_name,
                    .model_type = g->model_type};
    site.meaning[TN_AXIS_DTYPE] = (int32_t)g->dtype;
    return site;
}

graph_step *graph_add_step(graph *g, const graph_module *module, tn_op op, int64_t width, tn_error *err)
{
    graph_step **steps = grow(g->steps, g->step_count, &g->step_capacity, err);
    if (!steps)
        return NULL;
    g->steps = steps;
    graph_step *step = calloc(1, sizeof *step);
    if (!step) {
        no_memory(err);
        return NULL;
    }
    step->site = place_of(g, module, op);
    step->width = width;
    g->steps[g->step_count++] = step;
    return step;
}

/* What autocast computes in 16 bits. */
static bool is_product(tn_op op)
{
    return op == TN_OP_LINEAR || op == TN_OP_MLP || op == TN_OP_MOE_ROUTE || op == TN_OP_MOE_EXPERTS ||
           op == TN_OP_MOE_BLOCK || op == TN_OP_GROUPED_MATMUL || op == TN_OP_ATTENTION;
}

graph_site *graph_add_site(graph *g, graph_module *module, tn_op op, graph_site *outer, tn_error *err)
{
    graph_site **sites = grow(g->sites, g->site_count, &g->site_capacity, err);
    if (!sites)
        return NULL;
    g->sites = sites;
    graph_site *s = calloc(1, sizeof *s);
    if (!s) {
        no_memory(err);
        return NULL;
    }
    s->site = place_of(g, module, op);
    if (g->narrow && is_product(op))
        s->site.meaning[TN_AXIS_DTYPE] = (int32_t)g->narrow;
    s->index = g->site_count;
    s->module = module;
    s->outer = outer;
    module->site = s;
    g->sites[g->site_count++] = s;
    return s;
}

tn_status graph_set_site_param(tn_site *site, tn_role role, const tn_tensor *tensors, int64_t count, tn_error *err)
{
    tn_tensor *copy = malloc((size_t)(count > 0 ? count : 1) * sizeof *copy);
    if (!copy)
        return no_memory(err);
    memcpy(copy, tensors, (size_t)count * sizeof *copy);
    free((void *)site->param[role].tensors);
    site->param[role] = (tn_param){copy, count};
    return TN_OK;
}

graph_site *graph_wrap_site(graph *g, graph_site *inner, tn_op op, tn_error *err)
{
    graph_site *s = graph_add_site(g, inner->module, op, inner->outer, err);
    size_t at = inner->index;
    inner->module->site = inner;
    if (!s)
        return NULL;
    memcpy(s->site.meaning, inner->site.meaning, sizeof s->site.meaning);
    memcpy(s->site.dim, inner->site.dim, sizeof s->site.dim);
    memcpy(s->site.num, inner->site.num, sizeof s->site.num);
    s->site.features = inner->site.features;
    for (size_t i = g->site_count - 1; i > at; i--) {
        g->sites[i] = g->sites[i - 1];
        g->sites[i]->index = i;
    }
    s->index = at;
    g->sites[at] = s;
    inner->outer = s;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &inner->site.param[role];
        if (p->count > 0 && graph_set_site_param(&s->site, (tn_role)role, p->tensors, p->count, err) != TN_OK)
            return NULL;
    }
    return s;
}

graph_site *graph_find_site(const graph *g, const char *path)
{
    for (size_t i = 0; i < g->site_count; i++)
        if (!strcmp(g->sites[i]->site.path, path))
            return g->sites[i];
    return NULL;
}
