/* Which tensors a .gguf has of a checkpoint, and what it calls them. */
#include "quantize/quantize.h"

#include <stdlib.h>
#include <string.h>

/* What is read of a name of the checkpoint's. */
typedef struct named {
    char name[64], form[QUANTIZE_NAME];
    const gguf_rename *row;
    int64_t number, layer; /* -1: none                                                              */
} named;

/* The file's words for modules that the tables know by the tree's: those of a type around the model, those of a block.
 */
static void untie_alias(const model_wrapper *around, const char *name, char out[QUANTIZE_NAME])
{
    static const char other[] = "block_sparse_moe.", usual[] = "mlp.";
    const char *outer = "";
    for (const build_alias *a = around ? around->aliases : NULL; a && a->tree; a++)
        if (!*outer && !strncmp(name, a->file, strlen(a->file))) {
            outer = a->tree;
            name += strlen(a->file);
        }
    const char *at = strstr(name, other);
    if (at)
        text_cut(out, QUANTIZE_NAME, "%s%.*s%s%s", outer, (int)(at - name), name, usual, at + strlen(other));
    else
        text_cut(out, QUANTIZE_NAME, "%s%s", outer, name);
}

/* The number in form becomes '#'. */
static void make_form(const char *name, const named *n, char form[QUANTIZE_NAME])
{
    char digits[32];
    text_cut(digits, sizeof digits, ".%lld.", (long long)n->number);
    const char *at = NULL;
    for (const char *next = name; n->number >= 0 && (next = strstr(next, digits)); next++)
        at = next; /* the last one: a layer may have the same number */
    if (at)
        text_cut(form, QUANTIZE_NAME, "%.*s.#.%s", (int)(at - name), name, at + strlen(digits));
    else
        text_cut(form, QUANTIZE_NAME, "%s", name);
}

/* known: the tree's name. */
static bool find_name(const quantize_plan *p, const char *name, const char *known, named *n)
{
    const char *rest;
    n->row = gguf_arch_name(p->arch, known, &rest, &n->number);
    if (!n->row)
        return false;
    if (n->layer >= 0)
        text_cut(n->name, sizeof n->name, "blk.%lld.%s%s", (long long)n->layer, n->row->gguf, rest);
    else
        text_cut(n->name, sizeof n->name, "%s%s", n->row->gguf, rest);
    make_form(name, n, n->form);
    return true;
}

static int64_t heads_of(const quantize_plan *p, const gguf_rename *row)
{
    bool pairs = (p->arch->traits & GGUF_PAIRS) && !config_bool(&p->config, "gguf_rope_pairs", false);
    if (pairs && !strcmp(row->gguf, "attn_q"))
        return config_i64(&p->config, "num_attention_heads", 1, 1, INT32_MAX);
    return pairs && !strcmp(row->gguf, "attn_k") ? p->shape->layer[0].kv_heads : 0;
}

static bool is_norm(const char *name)
{
    const char *end = strstr(name, "norm.weight");
    return end && !end[strlen("norm.weight")];
}

static void fail(quantize_plan *p, const char *name, const char *what)
{
    if (p->status == TN_OK)
        p->status = tn_fail(p->err, TN_E_INPUT, shards_file_of(p->model->weights, name), "tensor '%s' %s", name, what);
}

/* Shapes that a .gguf has with a dimension less. */
static void set_shape(quantize_tensor *t, const tn_tensor *tensor, const named *n)
{
    bool flat = tensor->ndim == 1 || !strcmp(n->row->gguf, "ffn_gate_inp_shexp");
    t->matrices = 1;
    t->columns = flat ? tn_tensor_count(tensor) : tensor->shape[1];
    t->rows = flat ? 1 : tensor->shape[0];
    t->ndim = flat ? 1 : n->number >= 0 ? 3 : 2;
}

/* Blocks, or codes and a scale for 32 of them, as gpt-oss has its experts. */
static bool is_mxfp4(const quantize_plan *p, const char *name, const tn_tensor *tensor)
{
    const shards_parts parts = shards_parts_of(p->model->weights, name);
    return tensor->dtype == TN_MXFP4 || (tensor->dtype == TN_E2M1 && parts.scale.dtype == TN_F8_E8M0 &&
                                         32 * parts.scale.shape[1] == tensor->shape[1]);
}

static void add(quantize_plan *p, const char *name, const named *n, const tn_tensor *tensor)
{
    quantize_tensor *t = &p->tensors[p->count++];
    *t = (quantize_tensor){.layer = n->layer,
                           .pairs = heads_of(p, n->row),
                           .plus_one = (p->arch->traits & GGUF_PLUS_ONE) && is_norm(name),
                           .stays = is_mxfp4(p, name, tensor),
                           .made = -1,
                           .from = tensor->dtype};
    text_cut(t->name, sizeof t->name, "%s", n->name);
    text_cut(t->form, sizeof t->form, "%s", n->form);
    if (tensor->ndim < 1 || tensor->ndim > 2)
        fail(p, name, "is neither a list nor a matrix, for which a .gguf has no name here");
    set_shape(t, tensor, n);
}

/* The first matrix of a stack makes the tensor, others count. */
static void add_to_stack(quantize_plan *p, const char *name, const named *n, const tn_tensor *tensor)
{
    for (size_t i = p->count; i-- > 0;) {
        quantize_tensor *t = &p->tensors[i];
        if (strcmp(t->name, n->name) != 0)
            continue;
        t->matrices++;
        if (tensor->ndim != 2 || tensor->shape[0] != t->rows || tensor->shape[1] != t->columns)
            fail(p, name, "has another shape than those before it");
        return;
    }
    add(p, name, n, tensor);
}

static void list_tensor(quantize_plan *p, const char *name, const tn_tensor *tensor)
{
    static const char layers[] = "model.layers.";
    char tree[QUANTIZE_NAME], *known = tree;
    named n = {.layer = -1};
    untie_alias(p->model->wrapper, name, tree);
    if (!strncmp(tree, layers, strlen(layers)))
        n.layer = strtoll(tree + strlen(layers), &known, 10);
    known += n.layer >= 0;
    if (quantize_parts_add(p, name, known, n.layer, tensor))
        return;
    if (!find_name(p, name, known, &n))
        fail(p, name, "has no name in a .gguf; this form of the model cannot be written");
    else if (n.number >= 0)
        add_to_stack(p, name, &n, tensor);
    else
        add(p, name, &n, tensor);
}

void quantize_list(quantize_plan *p)
{
    const shards *set = p->model->weights;
    size_t count = shards_count(set);
    tn_tensor tensor;
    p->tensors = calloc(2 * count + 2, sizeof *p->tensors);
    if (!p->tensors)
        p->status = tn_fail(p->err, TN_E_MEMORY, p->model->folder, "out of memory");
    for (size_t i = 0; i < count && p->status == TN_OK; i++) {
        const char *name = shards_name(set, i);
        bool beside = p->model->wrapper && p->model->wrapper->vision && models_stands_beside(name);
        if (!beside && shards_taken(set, i) && shards_get(set, name, &tensor))
            list_tensor(p, name, &tensor);
    }
}

void quantize_matrix_name(const quantize_tensor *t, int64_t number, char name[QUANTIZE_NAME])
{
    const char *mark = strchr(t->form, '#');
    if (mark)
        text_cut(name, QUANTIZE_NAME, "%.*s%lld%s", (int)(mark - t->form), t->form, (long long)number, mark + 1);
    else
        text_cut(name, QUANTIZE_NAME, "%s", t->form);
}

const void *quantize_matrix_data(const quantize_plan *p, const quantize_tensor *t, int64_t number)
{
    char name[QUANTIZE_NAME];
    tn_tensor from;
    quantize_matrix_name(t, number, name);
    const char *data = shards_used(p->model->weights, name, TN_DTYPE_NONE);
    if (!data || t->view.step == 0 || !shards_get(p->model->weights, name, &from))
        return data;
    tn_dtype dtype = from.data == data ? from.dtype : p->model->dtype; /* a copy is in the model's type     */
    int64_t row = number * t->view.per + t->view.first;
    return data + tn_dtype_bytes(dtype, row * from.shape[from.ndim - 1] + t->view.column);
}
