/* An adapter's tensors, and the sites that they make: each product that has factors gets a LORA_LINEAR around it. */
#include "open/peft.h"

#include "base/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------ */

/* Every tensor of the file, without the prefix that all of them have. */
static tn_status list_file(attaching *t, const tn_safetensors *file, const char *path, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < tn_safetensors_count(file) && status == TN_OK; i++) {
        const char *name = tn_safetensors_name(file, i);
        const size_t prefix = sizeof PEFT_PREFIX - 1;
        tn_tensor tensor;
        tn_safetensors_get(file, name, &tensor);
        if (strncmp(name, PEFT_PREFIX, prefix) != 0)
            return tn_fail(err, TN_E_INPUT, name, "is in %s, where names begin with " PEFT_PREFIX, path);
        status = shards_add(t->file, name + prefix, "adapter_model.safetensors", &tensor, NULL, err);
    }
    return status;
}

/* ---- linear layers ---------------------------------------------------------------------------------- */

/* inner's place in what is composed of it is that of the site around. */
static void take_place(graph_site *inner, graph_site *s)
{
    for (int i = 0; s->outer && i < GRAPH_PARTS; i++)
        if (s->outer->part[i] == inner)
            s->outer->part[i] = s;
}

static void wrap(attaching *t, graph_site *inner, const tn_tensor factors[2], double scale)
{
    const tn_role roles[2] = {TN_ROLE_A_OF(TN_ROLE_WEIGHT), TN_ROLE_B_OF(TN_ROLE_WEIGHT)};
    graph_site *s = graph_wrap_site(t->b->graph, inner, TN_OP_LORA_LINEAR, t->b->err);
    if (!s) {
        t->b->status = TN_E_MEMORY;
        return;
    }
    s->part[GRAPH_PART_LINEAR] = inner;
    s->site.dim[TN_DIM_RANK] = factors[0].shape[0];
    s->site.num[TN_NUM_SCALE] = scale;
    for (int i = 0; i < 2 && t->b->status == TN_OK; i++)
        t->b->status = graph_set_site_param(&s->site, roles[i], &factors[i], 1, t->b->err);
    if (t->training && t->a->config.dropout > 0) {
        s->site.features |= TN_HAS_DROPOUT;
        s->site.num[TN_NUM_DROPOUT] = t->a->config.dropout;
    }
    take_place(inner, s);
    peft_tell_outer(s);
    t->sites++;
}

/* The rank of what the file has for a site; 0: nothing. Leaves names of A and B, and the module's path. */
static int64_t look(attaching *t, const graph_site *inner, char names[2][PEFT_NAME], char path[PEFT_NAME])
{
    int64_t in = inner->site.dim[TN_DIM_HIDDEN], out = inner->site.dim[TN_DIM_OUT], a[2] = {0}, b[2] = {0};
    bool has[2] = {peft_has(t, inner->module, "lora_A.weight", -1, in, names[0], a),
                   peft_has(t, inner->module, "lora_B.weight", out, -1, names[1], b)};
    if (t->b->status != TN_OK || (!has[0] && !has[1]))
        return 0;
    if (!has[0] || !has[1])
        build_fail(t->b, TN_E_INPUT, names[has[0]], "is not in the adapter, which has %s", names[!has[0]]);
    else if (a[0] != b[1] || a[0] < 1)
        build_fail(t->b, TN_E_INPUT, names[1], "has shape [%lld, %lld], that of A is [%lld, %lld]", (long long)b[0],
                   (long long)b[1], (long long)a[0], (long long)a[1]);
    snprintf(path, PEFT_NAME, "%.*s", (int)(strlen(names[0]) - strlen(".lora_A.weight")), names[0]);
    return a[0];
}

static void attach_linear(attaching *t, graph_site *inner)
{
    char names[2][PEFT_NAME] = {"", ""}, path[PEFT_NAME];
    const peft_config *config = &t->a->config;
    peft_scale scale;
    int64_t rank = t->fresh ? 0 : look(t, inner, names, path);
    if (t->b->status != TN_OK || (!t->fresh && rank == 0))
        return;
    if (t->fresh)
        build_published(t->b, inner->module->path, path, sizeof path);
    /* What cannot have one is none of "all", and an error where it is named. */
    bool target = peft_targets(config, path, !t->fresh || !inner->unadapted, &t->b->status, t->b->err);
    if (t->fresh && !target)
        return;
    if (t->fresh) {
        rank = peft_scale_of(config, path, &t->b->status, t->b->err).rank;
        for (int i = 0; i < 2; i++)
            snprintf(names[i], PEFT_NAME, "%.480s.lora_%c.weight", path, "AB"[i]);
    }
    if (t->b->status == TN_OK && !target)
        build_fail(t->b, TN_E_INPUT, names[0], "belongs to no module that target_modules of adapter_config.json names");
    if (t->b->status == TN_OK && inner->unadapted)
        build_fail(t->b, t->fresh ? TN_E_USAGE : TN_E_INPUT, names[0], "cannot be: %s; name other modules",
                   inner->unadapted);
    tn_tensor f[2];
    if (peft_agrees(t, path, names[0], rank, &scale) &&
        peft_new_tensor(t, rank, inner->site.dim[TN_DIM_HIDDEN], &f[0]) &&
        peft_new_tensor(t, inner->site.dim[TN_DIM_OUT], rank, &f[1]) && peft_fill(t, names[0], PEFT_A, &f[0]) &&
        peft_fill(t, names[1], PEFT_B, &f[1]))
        wrap(t, inner, f, scale.scale);
}

/* ---- all of them ------------------------------------------------------------------------------------ */

static bool is_apart(const graph_module *m)
{
    for (; m; m = m->parent)
        if (m->apart)
            return true;
    return false;
}

static void attach_sites(attaching *t)
{
    graph *g = t->b->graph;
    for (size_t i = 0; i < g->site_count && t->b->status == TN_OK; i++) {
        graph_site *s = g->sites[i];
        size_t before = g->site_count;
        if (s->site.op == TN_OP_MOE_EXPERTS && !is_apart(s->module))
            peft_experts(t, s);
        if (s->site.op == TN_OP_LINEAR && !is_apart(s->module))
            attach_linear(t, s);
        i += g->site_count - before;
    }
}

/* What nothing took belongs to another model, or to something that has no adapters here. */
static void refuse_rest(attaching *t)
{
    for (size_t i = 0; i < shards_count(t->file) && t->b->status == TN_OK; i++)
        if (!shards_taken(t->file, i)) {
            char shape[96];
            tn_tensor tensor;
            shards_get(t->file, shards_name(t->file, i), &tensor);
            tensor_shape_text(tensor.ndim, tensor.shape, shape, sizeof shape);
            build_fail(t->b, TN_E_INPUT, shards_name(t->file, i),
                       "of shape %s: the model has no product of that name that can have an adapter", shape);
        }
    if (t->sites == 0)
        build_fail(t->b, t->fresh ? TN_E_USAGE : TN_E_INPUT, t->fresh ? "targets" : shards_folder(t->file),
                   "no module of the model gets an adapter by that; name some, as q_proj,v_proj");
}

static bool has_experts(const graph *g)
{
    for (size_t i = 0; i < g->site_count; i++)
        if (g->sites[i]->site.op == TN_OP_MOE_EXPERTS)
            return true;
    return false;
}

static void read_and_attach(attaching *t, const char *folder, const tn_lora *lora, const char *model)
{
    graph_builder *b = t->b;
    char path[4096] = "";
    tn_safetensors *file = NULL;
    b->status = folder ? peft_config_open(&t->a->config, folder, b->err)
                       : peft_config_make(&t->a->config, lora, model, has_experts(b->graph), b->err);
    t->random.state = t->a->config.seed;
    if (b->status == TN_OK && folder) {
        if (snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder) >= (int)sizeof path)
            build_fail(b, TN_E_INPUT, folder, "the name is too long");
        else if (!(file = tn_safetensors_open(path, b->err)))
            b->status = b->err && b->err->code != TN_OK ? b->err->code : TN_E_INPUT;
        else
            b->status = list_file(t, file, path, b->err);
    }
    if (b->status == TN_OK)
        attach_sites(t);
    if (b->status == TN_OK)
        refuse_rest(t);
    tn_safetensors_close(file);
}

peft_adapter *peft_attach(graph_builder *b, const char *folder, const tn_lora *lora, const char *model, bool training)
{
    attaching t = {.a = calloc(1, sizeof *t.a), .b = b, .of = *b, .fresh = !folder, .training = training};
    t.of.weights = t.file = t.a ? shards_empty(folder ? folder : "adapter", NULL, b->err) : NULL;
    if (t.file)
        read_and_attach(&t, folder, lora, model);
    else
        build_fail(b, TN_E_MEMORY, "adapter", "out of memory");
    shards_close(t.file);
    if (b->status == TN_OK)
        return t.a;
    peft_close(t.a);
    return NULL;
}

const peft_view *peft_find(const peft_adapter *a, const char *name)
{
    const size_t prefix = sizeof PEFT_PREFIX - 1;
    name += !strncmp(name, PEFT_PREFIX, prefix) ? prefix : 0;
    for (size_t i = 0; i < a->view_count; i++)
        if (!strcmp(a->views[i].name, name))
            return &a->views[i];
    return NULL;
}

void peft_close(peft_adapter *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->view_count; i++)
        free(a->views[i].name);
    free(a->views);
    free(a->tensors);
    peft_config_close(&a->config);
    free(a);
}
