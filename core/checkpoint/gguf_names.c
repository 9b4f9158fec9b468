/* The tensors of a .gguf, as Hugging Face's checkpoints have them: names, shapes, experts one by one. Nothing is copied
 * but what means something else here: norms that are 1 + w, biases that belong side by side. */
#include "checkpoint/checkpoint.h"

#include "base/convert.h"
#include "base/names.h"
#include "base/tensor.h"
#include "base/text.h"
#include "checkpoint/gguf_arch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 256, MAX_EXPERTS = 1 << 16 };

typedef struct reader {
    shards *set;
    const gguf *file;
    const gguf_arch *arch;
    names index; /* of the file's tensors                                                                      */
    tn_status status;
    tn_error *err;
} reader;

/* One tensor of the file. */
typedef struct source {
    const char *name, *path;
    tn_tensor tensor;
    const char *scales; /* a factor for each matrix of it; NULL: none                                          */
} source;

static bool find(const reader *r, const char *name, source *s)
{
    size_t i;
    if (!names_find(&r->index, name, &i))
        return false;
    *s = (source){0};
    s->name = gguf_tensor(r->file, i, &s->tensor, &s->path);
    return true;
}

static void fail(reader *r, const source *s, const char *what)
{
    if (r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_INPUT, s->path, "tensor '%s' %s", s->name, what);
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), n = strlen(end);
    return length >= n && !strcmp(name + length - n, end);
}

/* ---- adding --------------------------------------------------------------------------------------- */

/* The factor of matrix number of the tensor, as scales of one group that all rows share. */
static shards_parts parts_of(const source *s, int64_t number, const tn_tensor *matrix)
{
    shards_parts parts = {0};
    if (!s->scales)
        return parts;
    const int64_t shape[2] = {matrix->shape[0], 1};
    parts.scale = tn_tensor_dense((void *)(uintptr_t)(s->scales + (size_t)number * sizeof(float)), TN_F32, 2, shape);
    parts.scale.stride[0] = 0;
    return parts;
}

static void add(reader *r, const source *s, const char *name, const tn_tensor *tensor, int64_t number)
{
    shards_parts parts = parts_of(s, number, tensor);
    if (r->status == TN_OK)
        r->status = shards_add(r->set, name, s->path, tensor, &parts, r->err);
}

static void *keep(reader *r, const source *s, size_t bytes)
{
    void *memory = shards_keep(r->set, bytes);
    if (!memory && r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_MEMORY, s->path, "out of memory for tensor '%s'", s->name);
    return memory;
}

/* A norm that is stored as 1 + w: w. */
static void add_minus_one(reader *r, const source *s, const char *name)
{
    int64_t count = tn_tensor_count(&s->tensor);
    if (!tensor_is_float(s->tensor.dtype)) {
        fail(r, s, "is a norm, but neither of f32, bf16 nor f16");
        return;
    }
    float *w = keep(r, s, (size_t)count * sizeof *w);
    if (!w)
        return;
    convert_to_f32(s->tensor.data, s->tensor.dtype, w, count);
    for (int64_t i = 0; i < count; i++)
        w[i] -= 1;
    tn_tensor tensor = tn_tensor_dense(w, TN_F32, s->tensor.ndim, s->tensor.shape);
    add(r, s, name, &tensor, 0);
}

/* Rows first .. first + rows - 1 of matrix number of a stack. */
static tn_tensor part_of(const tn_tensor *stack, int64_t number, int64_t first, int64_t rows)
{
    size_t row = tn_dtype_bytes(stack->dtype, stack->shape[2]);
    return tn_tensor_dense((char *)stack->data + (size_t)(number * stack->shape[1] + first) * row, stack->dtype, 2,
                           (int64_t[]){rows, stack->shape[2]});
}

/* form with '#' replaced by a number, behind prefix and before suffix. */
static void compose(char out[NAME], const char *prefix, const char *form, int64_t number, const char *suffix)
{
    const char *mark = strchr(form, '#');
    if (mark)
        text_cut(out, NAME, "%s%.*s%lld%s%s", prefix, (int)(mark - form), form, (long long)number, mark + 1, suffix);
    else
        text_cut(out, NAME, "%s%s%s", prefix, form, suffix);
}

/* Every matrix of a stack by itself; of rows_first .. of each only. */
static void add_stack(reader *r, const source *s, const char *prefix, const char *form, int64_t first, int64_t rows)
{
    char name[NAME];
    for (int64_t i = 0; i < s->tensor.shape[0] && r->status == TN_OK; i++) {
        tn_tensor one = part_of(&s->tensor, i, first, rows);
        compose(name, prefix, form, i, ".weight");
        add(r, s, name, &one, i);
    }
}

static bool is_stack(reader *r, const source *s)
{
    bool is = s->tensor.ndim == 3 && s->tensor.shape[0] <= MAX_EXPERTS;
    if (!is)
        fail(r, s, "is no stack of matrices");
    return is;
}

/* Gates of all experts, with the ups behind each. */
static void add_gate_up(reader *r, const source *s, const char *prefix)
{
    const char *rest;
    int64_t inter = is_stack(r, s) ? s->tensor.shape[1] / 2 : 0;
    if (inter == 0 || s->tensor.shape[1] % 2)
        fail(r, s, "is no stack of gates and ups");
    if (r->status != TN_OK)
        return;
    add_stack(r, s, prefix, gguf_arch_rename(r->arch, "ffn_gate_exps", &rest)->hf, 0, inter);
    add_stack(r, s, prefix, gguf_arch_rename(r->arch, "ffn_up_exps", &rest)->hf, inter, inter);
}

/* Biases of gates, beside those of ups in another tensor: an expert's gates come first, then its ups. */
static void add_biases(reader *r, const source *gate, const char *prefix, const char *form)
{
    source up;
    char name[NAME];
    text_cut(name, sizeof name, "%.*s.ffn_up_exps.bias", (int)(strlen(gate->name) - strlen(".ffn_gate_exps.bias")),
             gate->name);
    if (!find(r, name, &up) || gate->tensor.ndim != 2 || up.tensor.ndim != 2 || up.tensor.dtype != gate->tensor.dtype ||
        up.tensor.shape[0] != gate->tensor.shape[0] || up.tensor.shape[1] != gate->tensor.shape[1]) {
        fail(r, gate, "has no like beside it in ffn_up_exps.bias");
        return;
    }
    int64_t experts = gate->tensor.shape[0], inter = gate->tensor.shape[1];
    size_t row = tn_dtype_bytes(gate->tensor.dtype, inter);
    char *both = keep(r, gate, 2 * row * (size_t)experts);
    for (int64_t i = 0; both && i < experts; i++) {
        memcpy(both + (size_t)(2 * i) * row, (const char *)gate->tensor.data + (size_t)i * row, row);
        memcpy(both + (size_t)(2 * i + 1) * row, (const char *)up.tensor.data + (size_t)i * row, row);
    }
    tn_tensor tensor = tn_tensor_dense(both, gate->tensor.dtype, 2, (int64_t[]){experts, 2 * inter});
    compose(name, prefix, form, 0, "");
    add(r, gate, name, &tensor, 0);
}

/* ---- naming ----------------------------------------------------------------------------------------- */

/* Shapes that GGUF has with a dimension less. */
static tn_tensor reshaped(const source *s, const char *name)
{
    tn_tensor t = s->tensor;
    if (!strncmp(name, "ffn_gate_inp_shexp.", 19) && t.ndim == 1)
        return tn_tensor_dense(t.data, t.dtype, 2, (int64_t[]){1, t.shape[0]});
    return t;
}

/* An expert of an old file, which has each in a tensor of its own: "ffn_gate.3.weight". */
static const char *old_expert(const reader *r, const gguf_rename *row, const char *rest, int64_t *number)
{
    char stack[64];
    char *end = NULL;
    const char *unused;
    *number = *rest == '.' && rest[1] >= '0' && rest[1] <= '9' ? strtoll(rest + 1, &end, 10) : -1;
    text_cut(stack, sizeof stack, "%s_exps", row->gguf);
    const gguf_rename *of_stack = end && !strcmp(end, ".weight") ? gguf_arch_rename(r->arch, stack, &unused) : NULL;
    return of_stack ? of_stack->hf : NULL;
}

/* Tensor "blk.N.name", or name for itself, with prefix before what it becomes. */
static void add_named(reader *r, const source *s, const char *prefix, const char *name)
{
    char full[NAME];
    const char *rest = "";
    int64_t number;
    const gguf_rename *row = gguf_arch_rename(r->arch, name, &rest);
    const char *form = row ? old_expert(r, row, rest, &number) : NULL;
    tn_tensor tensor = reshaped(s, name);
    if (!strcmp(name, "ffn_gate_up_exps.weight")) {
        add_gate_up(r, s, prefix);
    } else if (form) {
        compose(full, prefix, form, number, ".weight");
        add(r, s, full, &tensor, 0);
    } else if (row && !strcmp(row->gguf, "ffn_gate_exps.bias")) {
        add_biases(r, s, prefix, row->hf);
    } else if (row && strchr(row->hf, '#')) {
        if (is_stack(r, s))
            add_stack(r, s, prefix, row->hf, 0, s->tensor.shape[1]);
    } else {
        text_cut(full, sizeof full, "%s%s%s", prefix, row ? row->hf : name, row ? rest : "");
        if ((r->arch->traits & GGUF_PLUS_ONE) && ends_with(full, "norm.weight"))
            add_minus_one(r, s, full);
        else
            add(r, s, full, &tensor, 0);
    }
}

/* ---- all of them -------------------------------------------------------------------------------------- */

/* What other tensors or the config have taken up: factors, and biases that stand beside others. */
static bool is_taken_up(const source *s)
{
    return !strncmp(s->name, "rope_f", 6) || ends_with(s->name, ".scale") || ends_with(s->name, ".input_scale") ||
           ends_with(s->name, ".ffn_up_exps.bias");
}

static bool are_finite(const tn_tensor *t)
{
    for (int64_t i = 0; i < tn_tensor_count(t); i++) {
        float value;
        memcpy(&value, (const char *)t->data + (size_t)i * sizeof value, sizeof value);
        if (!isfinite(value))
            return false;
    }
    return true;
}

/* The factors of the matrices of NAME.weight, in NAME.scale. */
static void find_scales(reader *r, source *s)
{
    char name[NAME];
    source scale;
    if (!ends_with(s->name, ".weight"))
        return;
    text_cut(name, sizeof name, "%.*s.scale", (int)(strlen(s->name) - strlen(".weight")), s->name);
    if (!find(r, name, &scale))
        return;
    int64_t matrices = s->tensor.ndim > 2 ? s->tensor.shape[0] : 1;
    if (scale.tensor.dtype != TN_F32 || tn_tensor_count(&scale.tensor) != matrices)
        fail(r, &scale, "is no f32 for each matrix that it is the factor of");
    else if (!are_finite(&scale.tensor))
        fail(r, &scale, "has a factor that is no finite number");
    s->scales = scale.tensor.data;
}

static void add_tensor(reader *r, source *s)
{
    char prefix[64] = "", *rest = NULL;
    const char *name = s->name;
    if (is_taken_up(s))
        return;
    find_scales(r, s);
    if (!strncmp(name, "blk.", 4) && name[4] >= '0' && name[4] <= '9' && strtoll(name + 4, &rest, 10) >= 0 &&
        *rest == '.') {
        text_cut(prefix, sizeof prefix, "model.layers.%.*s", (int)(rest + 1 - name - 4), name + 4);
        name = rest + 1;
    }
    add_named(r, s, prefix, name);
}

static void add_all(reader *r)
{
    size_t count = gguf_tensor_count(r->file);
    source s;
    if (!names_init(&r->index, count)) {
        r->status = tn_fail(r->err, TN_E_MEMORY, gguf_path(r->file, 0), "out of memory for %zu tensors", count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        names_add(&r->index, gguf_tensor(r->file, i, &s.tensor, &s.path), i);
    for (size_t i = 0; i < count && r->status == TN_OK; i++) {
        s = (source){0};
        s.name = gguf_tensor(r->file, i, &s.tensor, &s.path);
        add_tensor(r, &s);
    }
    names_close(&r->index);
}

shards *gguf_names_open(gguf *file, tn_error *err)
{
    shards *set = shards_empty(gguf_path(file, 0), file, err);
    if (!set)
        return NULL;
    reader r = {.set = set, .file = file, .arch = gguf_arch_of(file, err), .err = err};
    if (r.arch)
        add_all(&r);
    if (r.arch && r.status == TN_OK)
        return set;
    shards_close(set);
    return NULL;
}
