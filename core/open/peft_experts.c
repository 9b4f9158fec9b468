/* Adapters beside experts, in both of peft's layouts: one pair of factors for each expert and projection, or one for
 * each of the module's stacked parameters, in which those of all experts lie. In memory all lie as in the second. */
#include "open/peft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUFFIX = 64 };

/* Whether a role of the site has factors; they are put there. */
static bool set_factors(attaching *t, graph_site *s, tn_role role, const tn_tensor f[2], peft_scale scale)
{
    bool down = role == TN_ROLE_DOWN;
    tn_dim dim = down ? TN_DIM_RANK_DOWN : TN_DIM_RANK;
    tn_num num = down ? TN_NUM_SCALE_DOWN : TN_NUM_SCALE;
    if (s->site.dim[dim] != 0 && (s->site.dim[dim] != scale.rank || s->site.num[num] != scale.scale)) {
        build_fail(t->b, TN_E_INPUT, s->site.path,
                   "its gate and up have different ranks or factors, which is not supported");
        return false;
    }
    s->site.dim[dim] = scale.rank;
    s->site.num[num] = scale.scale;
    if (t->a->config.dropout > 0 && t->training) {
        build_fail(t->b, TN_E_INPUT, s->site.path, "lora_dropout is %g; experts' adapters have none",
                   t->a->config.dropout);
        return false;
    }
    t->b->status = graph_set_site_param(&s->site, TN_ROLE_A_OF(role), &f[0], 1, t->b->err);
    if (t->b->status == TN_OK)
        t->b->status = graph_set_site_param(&s->site, TN_ROLE_B_OF(role), &f[1], 1, t->b->err);
    if (!(s->site.features & TN_HAS_ADAPTER))
        t->sites++;
    s->site.features |= TN_HAS_ADAPTER;
    peft_tell_outer(s);
    return t->b->status == TN_OK;
}

static int64_t width_of(const graph_site *s, tn_role role, bool out)
{
    int64_t hidden = s->site.dim[TN_DIM_HIDDEN], inter = s->site.dim[TN_DIM_INTER];
    if (role == TN_ROLE_DOWN)
        return out ? hidden : inter;
    return !out ? hidden : role == TN_ROLE_GATE_UP ? 2 * inter : inter;
}

/* ---- one pair for a stack --------------------------------------------------------------------------------- */

/* Which stack a pair belongs to: its shape says that, since the order in which peft wraps them need not be ours. */
static void stacked(attaching *t, graph_site *s, const char *prefix)
{
    static const tn_role roles[] = {TN_ROLE_GATE_UP, TN_ROLE_DOWN};
    static const char *const parameters[] = {"gate_up_proj", "down_proj"};
    char what[2][SUFFIX], names[2][PEFT_NAME], path[PEFT_NAME + SUFFIX];
    int64_t shape[2][2], experts = s->site.dim[TN_DIM_EXPERTS];
    bool has[2];
    for (int i = 0; i < 2; i++) {
        snprintf(what[i], SUFFIX, "%slora_%c.weight", prefix, "AB"[i]);
        has[i] = peft_has(t, s->module, what[i], -1, -1, names[i], shape[i]);
    }
    if (t->b->status != TN_OK || (!has[0] && !has[1]))
        return;
    if (!has[0] || !has[1]) {
        build_fail(t->b, TN_E_INPUT, names[has[0]], "is not in the adapter, which has %s", names[!has[0]]);
        return;
    }
    for (int i = 0; i < 2; i++) {
        tn_tensor f[2];
        peft_scale scale;
        int64_t in = width_of(s, roles[i], false), out = width_of(s, roles[i], true), rank = shape[0][0] / experts;
        if (shape[0][1] != in || shape[1][0] != out || shape[0][0] != shape[1][1] || rank * experts != shape[0][0] ||
            rank < 1 || s->site.param[TN_ROLE_A_OF(roles[i])].count > 0)
            continue;
        snprintf(path, sizeof path, "%.*s.%s", (int)(strlen(names[0]) - strlen(what[0]) - 1), names[0], parameters[i]);
        if (peft_agrees(t, path, names[0], rank, &scale) && peft_new_tensor(t, shape[0][0], in, &f[0]) &&
            peft_new_tensor(t, out, shape[1][1], &f[1]) && peft_fill(t, names[0], PEFT_A, &f[0]) &&
            peft_fill(t, names[1], PEFT_B, &f[1]))
            set_factors(t, s, roles[i], f, scale);
        return;
    }
    build_fail(t->b, TN_E_INPUT, names[0],
               "has shape [%lld, %lld], and that of B is [%lld, %lld]; %s has %lld experts of [%lld, %lld]",
               (long long)shape[0][0], (long long)shape[0][1], (long long)shape[1][0], (long long)shape[1][1],
               s->site.path, (long long)experts, (long long)s->site.dim[TN_DIM_HIDDEN],
               (long long)s->site.dim[TN_DIM_INTER]);
}

/* A new pair, where target_parameters names the stack. */
static void make_stacked(attaching *t, graph_site *s, const char *prefix, tn_role role, const char *parameter)
{
    config_reader c = config_root(t->a->config.file, &t->b->status, t->b->err);
    int64_t experts = s->site.dim[TN_DIM_EXPERTS], named = 0;
    char module[PEFT_NAME / 2], path[PEFT_NAME], names[2][PEFT_NAME];
    for (int64_t i = 0, n = config_list(&c, "target_parameters"); i < n && t->b->status == TN_OK; i++)
        named += !strcmp(config_list_str(&c, "target_parameters", i), parameter);
    if (t->b->status != TN_OK || named == 0)
        return;
    build_published(t->b, s->module->path, module, sizeof module);
    snprintf(path, sizeof path, "%s.%s", module, parameter);
    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof names[i], "%s.%slora_%c.weight", module, prefix, "AB"[i]);
    peft_scale scale = peft_scale_of(&t->a->config, path, &t->b->status, t->b->err);
    tn_tensor f[2];
    if (t->b->status == TN_OK && peft_new_tensor(t, scale.rank * experts, width_of(s, role, false), &f[0]) &&
        peft_new_tensor(t, width_of(s, role, true), scale.rank * experts, &f[1]) &&
        peft_fill(t, names[0], PEFT_A, &f[0]) && peft_fill(t, names[1], PEFT_B, &f[1]))
        set_factors(t, s, role, f, scale);
}

/* ---- a pair for each expert ------------------------------------------------------------------------------- */

typedef struct one {
    char names[2][PEFT_NAME], path[PEFT_NAME];
    int64_t rank;
} one;

/* What the file has of an expert's projection; rank 0: nothing. */
static one look(attaching *t, const graph_site *s, int64_t expert, const char *projection, tn_role role)
{
    one o = {.rank = 0};
    int64_t shape[2][2], in = width_of(s, role, false), out = width_of(s, role, true);
    char what[2][SUFFIX];
    bool has[2];
    for (int i = 0; i < 2; i++) {
        snprintf(what[i], SUFFIX, "%lld.%s.lora_%c.weight", (long long)expert, projection, "AB"[i]);
        has[i] = peft_has(t, s->module, what[i], i ? out : -1, i ? -1 : in, o.names[i], shape[i]);
    }
    if (t->b->status != TN_OK || (!has[0] && !has[1]))
        return o;
    if (!has[0] || !has[1] || shape[0][0] != shape[1][1] || shape[0][0] < 1)
        build_fail(t->b, TN_E_INPUT, o.names[has[0]], "is not in the adapter, or has another rank than %s",
                   o.names[!has[0]]);
    snprintf(o.path, sizeof o.path, "%.*s", (int)(strlen(o.names[0]) - strlen(".lora_A.weight")), o.names[0]);
    o.rank = shape[0][0];
    return o;
}

/* The rows and columns of an expert in what all of them share. */
static void parts_of(const tn_tensor f[2], int64_t experts, int64_t expert, tn_tensor part[2])
{
    int64_t rank = f[0].shape[0] / experts;
    part[0] = f[0];
    part[0].shape[0] = rank;
    part[0].data = (float *)f[0].data + expert * rank * f[0].stride[0];
    part[1] = f[1];
    part[1].shape[1] = rank;
    part[1].stride[1] = experts;
    part[1].data = (float *)f[1].data + expert;
}

static bool one_fits(attaching *t, const graph_site *s, int64_t expert, const one *o, const one *first,
                     peft_scale *scale)
{
    peft_scale own;
    if (t->b->status == TN_OK && o->rank == 0)
        build_fail(t->b, TN_E_INPUT, first->names[0], "is in the adapter, expert %lld of %s has no such factor",
                   (long long)expert, s->site.path);
    if (t->b->status != TN_OK || !peft_agrees(t, o->path, o->names[0], o->rank, &own))
        return false;
    if (!peft_targets(&t->a->config, o->path, true, &t->b->status, t->b->err) && t->b->status == TN_OK)
        build_fail(t->b, TN_E_INPUT, o->names[0],
                   "belongs to no module that target_modules of adapter_config.json names");
    *scale = expert == 0 ? own : *scale;
    if (t->b->status == TN_OK && (own.rank != scale->rank || own.scale != scale->scale))
        build_fail(t->b, TN_E_INPUT, o->names[0], "has another rank or factor than expert 0, which is not supported");
    return t->b->status == TN_OK;
}

static void per_expert(attaching *t, graph_site *s, const char *projection, tn_role role)
{
    int64_t experts = s->site.dim[TN_DIM_EXPERTS];
    const one first = look(t, s, 0, projection, role);
    peft_scale scale = {0};
    tn_tensor f[2], part[2];
    if (t->b->status != TN_OK || first.rank == 0)
        return;
    if (s->site.meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_PAIRS_IO && role != TN_ROLE_DOWN) {
        build_fail(t->b, TN_E_INPUT, first.names[0],
                   "its gate and up take turns in one parameter, which has one pair of factors");
        return;
    }
    if (!peft_new_tensor(t, experts * first.rank, width_of(s, role, false), &f[0]) ||
        !peft_new_tensor(t, width_of(s, role, true), experts * first.rank, &f[1]))
        return;
    for (int64_t e = 0; e < experts && t->b->status == TN_OK; e++) {
        const one o = e ? look(t, s, e, projection, role) : first;
        parts_of(f, experts, e, part);
        if (one_fits(t, s, e, &o, &first, &scale) && peft_fill(t, o.names[0], PEFT_A, &part[0]))
            peft_fill(t, o.names[1], PEFT_B, &part[1]);
    }
    if (t->b->status == TN_OK)
        set_factors(t, s, role, f, scale);
}

void peft_experts(attaching *t, graph_site *s)
{
    static const char *const names[][3] = {{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}};
    static const tn_role roles[] = {TN_ROLE_GATE, TN_ROLE_UP, TN_ROLE_DOWN};
    if (t->fresh) {
        make_stacked(t, s, "base_layer.", TN_ROLE_GATE_UP, "gate_up_proj");
        make_stacked(t, s, "", TN_ROLE_DOWN, "down_proj");
        return;
    }
    stacked(t, s, "base_layer.");
    stacked(t, s, "");
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 3; k++)
            per_expert(t, s, names[i][k], roles[k]);
}
