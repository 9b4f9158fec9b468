/* Distinct shapes of sites: what is asked once and checked once. */
#include "select/alike.h"

#include "base/hash.h"
#include "select/plan.h"

#include <stdlib.h>
#include <string.h>

static bool same_layout(const tn_tensor *a, const tn_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) &&
           !memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof a->stride[0]);
}

static bool same_params(const tn_site *a, const tn_site *b)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        if (a->param[role].count != b->param[role].count)
            return false;
        for (int64_t i = 0; i < a->param[role].count; i++)
            if (!same_layout(&a->param[role].tensors[i], &b->param[role].tensors[i]))
                return false;
    }
    return true;
}

/* Everything but the path and the weights' values. */
bool plan_same_shape(const tn_site *a, const tn_site *b)
{
    return a->op == b->op && a->features == b->features && !memcmp(a->meaning, b->meaning, sizeof a->meaning) &&
           !memcmp(a->dim, b->dim, sizeof a->dim) &&
           // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): of these numbers the bits count, as in the hash
           !memcmp(a->num, b->num, sizeof a->num) && !strcmp(a->class_name, b->class_name) && same_params(a, b);
}

uint64_t plan_shape_hash(const tn_site *site)
{
    uint64_t hash = hash_bytes(HASH_START, &site->op, sizeof site->op);
    hash = hash_bytes(hash, site->meaning, sizeof site->meaning);
    hash = hash_bytes(hash, &site->features, sizeof site->features);
    hash = hash_bytes(hash, site->dim, sizeof site->dim);
    hash = hash_bytes(hash, site->num, sizeof site->num);
    hash = hash_bytes(hash, site->class_name, strlen(site->class_name));
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            const tn_tensor *t = &site->param[role].tensors[i];
            hash = hash_bytes(hash, &t->dtype, sizeof t->dtype);
            hash = hash_bytes(hash, t->shape, (size_t)t->ndim * sizeof *t->shape);
            hash = hash_bytes(hash, t->stride, (size_t)t->ndim * sizeof *t->stride);
        }
    return hash;
}

static bool same_bytes(const tn_tensor *a, const tn_tensor *b, bool host_memory)
{
    if (a->data == b->data)
        return true;
    if (!host_memory)
        return false;
    tn_tensor dense = tn_tensor_dense(NULL, a->dtype, a->ndim, a->shape);
    if (memcmp(dense.stride, a->stride, (size_t)a->ndim * sizeof *a->stride) != 0)
        return false; /* no checkpoint has such weights */
    return !memcmp(a->data, b->data, tn_dtype_bytes(a->dtype, tn_tensor_count(a)));
}

bool plan_same_weights(const tn_site *a, const tn_site *b, bool host_memory)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < a->param[role].count; i++)
            if (!same_bytes(&a->param[role].tensors[i], &b->param[role].tensors[i], host_memory))
                return false;
    return true;
}

const tn_site *plan_other_weights(const apply_target *target, size_t site)
{
    const graph *g = target->graph;
    const tn_site *own = &g->sites[site]->site;
    for (size_t i = 0; i < g->site_count; i++)
        if (i != site && !g->sites[i]->lacking && plan_same_shape(&g->sites[i]->site, own) &&
            !plan_same_weights(&g->sites[i]->site, own, target->device->ops->host_memory))
            return &g->sites[i]->site;
    return NULL;
}

/* Sites that no kernel may have are apart: nothing is tried there. */
static bool is_alike(const graph_site *a, const graph_site *b)
{
    bool free = !a->declined && !b->declined, both = a->declined && b->declined;
    return (free || (both && !strcmp(a->declined, b->declined))) && plan_same_shape(&a->site, &b->site);
}

tn_status plan_find_shapes(plan *p, tn_error *err)
{
    const graph *g = p->target->graph;
    p->shape_count = 0;
    p->shapes = calloc(g->site_count + 1, sizeof *p->shapes);
    p->shape_of = calloc(g->site_count + 1, sizeof *p->shape_of);
    if (!p->shapes || !p->shape_of)
        return plan_no_memory(err);
    for (size_t i = 0; i < g->site_count; i++) {
        size_t shape = 0;
        while (shape < p->shape_count && !is_alike(p->shapes[shape], g->sites[i]))
            shape++;
        if (shape == p->shape_count)
            p->shapes[p->shape_count++] = g->sites[i];
        p->shape_of[i] = shape;
    }
    return TN_OK;
}
