/* The module tree and its sites. */
#include "graph/graph.h"

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
    for (size_t i = 0; i < g->site_count; i++) {
        for (int role = 0; role < TN_ROLE_MAX; role++)
            free((void *)g->sites[i]->site.param[role].tensors);
        free(g->sites[i]);
    }
    free(g->sites);
    free_module(g->root);
    free_module(g->scopes);
    free(g);
}

graph_site *graph_add_site(graph *g, graph_module *module, tn_op op, graph_site *outer, tn_error *err)
{
    if (g->site_count == g->site_capacity) {
        size_t capacity = g->site_capacity ? 2 * g->site_capacity : 64;
        graph_site **sites = realloc(g->sites, capacity * sizeof *sites);
        if (!sites) {
            no_memory(err);
            return NULL;
        }
        g->sites = sites;
        g->site_capacity = capacity;
    }
    graph_site *s = calloc(1, sizeof *s);
    if (!s) {
        no_memory(err);
        return NULL;
    }
    s->site = (tn_site){.size = sizeof(tn_site),
                        .op = op,
                        .path = module->path,
                        .class_name = module->class_name,
                        .model_type = g->model_type};
    s->site.meaning[TN_AXIS_DTYPE] = (int32_t)g->dtype;
    s->index = g->site_count;
    s->module = module;
    s->outer = outer;
    module->site = s;
    g->sites[g->site_count++] = s;
    return s;
}

tn_status graph_set_param(graph *g, graph_site *site, tn_role role, const tn_tensor *tensors, int64_t count,
                          tn_error *err)
{
    (void)g;
    tn_tensor *copy = malloc((size_t)(count > 0 ? count : 1) * sizeof *copy);
    if (!copy)
        return no_memory(err);
    memcpy(copy, tensors, (size_t)count * sizeof *copy);
    free((void *)site->site.param[role].tensors);
    site->site.param[role] = (tn_param){copy, count};
    return TN_OK;
}

graph_site *graph_find_site(const graph *g, const char *path)
{
    for (size_t i = 0; i < g->site_count; i++)
        if (!strcmp(g->sites[i]->site.path, path))
            return g->sites[i];
    return NULL;
}
