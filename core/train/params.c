/* Which bytes are which parameter: sites have views of the files' tensors, or of the copies that were made of them. */
#include "train/params.h"

#include "base/convert.h"
#include "base/reserved.h"
#include "base/tensor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A component of the name that says "bias" or is a norm's. */
static bool params_decays(const char *name)
{
    for (const char *at = name, *end; *at; at = end + (*end == '.')) {
        end = at + strcspn(at, ".");
        if (!strncmp(at, "ln_", 3) || memmem(at, (size_t)(end - at), "norm", 4) ||
            memmem(at, (size_t)(end - at), "bias", 4))
            return false;
    }
    return true;
}

/* How the model has it: false where it is not read, or not as numbers. */
static bool param_of(const shards *weights, size_t index, tn_dtype otherwise, train_param *p)
{
    static const tn_dtype types[] = {TN_F32, TN_BF16, TN_F16};
    const char *name = shards_name(weights, index);
    tn_tensor file;
    *p = (train_param){0};
    if (!shards_taken(weights, index) || !shards_get(weights, name, &file) ||
        !(tensor_is_float(file.dtype) || file.dtype == TN_F64))
        return false;
    p->name = name;
    p->data = shards_used(weights, name, TN_DTYPE_NONE);
    p->dtype = otherwise;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (shards_used(weights, name, types[i]))
            p->dtype = types[i];
    p->decays = params_decays(name);
    p->bytes = (size_t)tn_tensor_count(&file) * tn_dtype_size(p->dtype);
    return p->bytes > 0;
}

/* A factor of an adapter. They decay: their names say neither bias nor norm. */
static bool param_of_adapter(const tn_tensor *t, train_param *p)
{
    *p = (train_param){.name = "", .data = t->data, .dtype = t->dtype, .decays = true};
    p->bytes = (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
    return true;
}

static int by_address(const void *a, const void *b)
{
    const train_param *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data ? 1 : strcmp(x->name, y->name);
}

static void params_drop_shared(train_params *p)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->count; i++)
        if (kept == 0 || p->at[i].data != p->at[kept - 1].data)
            p->at[kept++] = p->at[i];
    p->count = kept;
}

static train_param *find(const train_params *p, const char *address);

/* Factors that experts share have the name of the first one's. */
static void name_factors(train_params *p)
{
    for (size_t i = 0; p->adapter && i < p->adapter->view_count; i++) {
        train_param *of = find(p, p->adapter->views[i].tensor.data);
        if (of && !of->name[0])
            of->name = p->adapter->views[i].name;
    }
}

tn_status params_open(train_params *p, const tn_model *model, bool masters, tn_error *err)
{
    const peft_adapter *adapter = model->adapter;
    size_t count = adapter ? adapter->count : shards_count(model->weights);
    *p = (train_params){.weights = model->weights, .adapter = adapter, .at = calloc(count + 1, sizeof *p->at)};
    if (!p->at)
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for %zu parameters", count);
    for (size_t i = 0; i < count; i++)
        p->count += adapter ? param_of_adapter(&adapter->tensors[i], &p->at[p->count])
                            : param_of(model->weights, i, model->dtype, &p->at[p->count]);
    qsort(p->at, p->count, sizeof *p->at, by_address);
    params_drop_shared(p);
    name_factors(p);
    for (size_t i = 0; i < p->count; i++)
        p->bytes += p->at[i].bytes / tn_dtype_size(p->at[i].dtype) * sizeof(float);
    p->sums = reserved_new(p->bytes + 1);
    p->masters = p->sums && masters ? reserved_new(p->bytes + 1) : NULL;
    if (!p->sums || (masters && !p->masters))
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for gradients of %zu bytes", p->bytes);
    for (size_t i = 0, at = 0; i < p->count; i++) {
        train_param *one = &p->at[i];
        bool apart = masters && one->dtype != TN_F32;
        one->sums = p->sums + at;
        one->value = apart ? (void *)(p->masters + at) : (void *)(uintptr_t)one->data;
        one->trained = apart ? TN_F32 : one->dtype;
        at += (size_t)params_count(one);
    }
    return TN_OK;
}

void params_close(train_params *p)
{
    reserved_free(p->sums, p->bytes + 1);
    reserved_free(p->masters, p->bytes + 1);
    free(p->at);
    *p = (train_params){0};
}

void params_clear(train_params *p)
{
    reserved_clear(p->sums, p->bytes + 1);
    for (size_t i = 0; i < p->count; i++)
        p->at[i].read = false;
}

/* The parameter that an address lies in. */
static train_param *find(const train_params *p, const char *address)
{
    size_t low = 0, high = p->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->at[middle].data <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && address < p->at[low - 1].data + p->at[low - 1].bytes ? &p->at[low - 1] : NULL;
}

/* ---- masters ---------------------------------------------------------------------------------------- */

/* The file's elements in the order of the model's, whose last two dimensions may lie the other way. */
static void widen(const tn_tensor *file, bool turned, float *to)
{
    int64_t columns = file->ndim > 0 ? file->shape[file->ndim - 1] : 1, all = tn_tensor_count(file);
    int64_t rows = turned ? file->shape[file->ndim - 2] : 1;
    const char *from = file->data;
    size_t size = tn_dtype_size(file->dtype);
    if (!turned)
        convert_to_f32(from, file->dtype, to, all);
    for (int64_t i = 0; turned && i < all; i++) {
        int64_t at = i % (rows * columns);
        convert_to_f32(from + (size_t)i * size, file->dtype, to + i - at + at % columns * rows + at / columns, 1);
    }
}

/* Does what it holds round to what the model has? */
static bool rounds_to(const train_param *p, const float *masters)
{
    uint16_t rounded;
    bool same = true;
    for (int64_t i = 0; i < params_count(p) && same; i++) {
        convert_from_f32(masters + i, p->dtype, &rounded, 1);
        same = !memcmp(&rounded, p->data + (size_t)i * sizeof rounded, sizeof rounded);
    }
    return same;
}

void params_begin(const train_params *all, train_param *p)
{
    tn_tensor file;
    if (p->value == p->data)
        return;
    bool turned = !shards_used(all->weights, p->name, p->dtype);
    if (shards_get(all->weights, p->name, &file) && file.dtype == TN_F32 && (!turned || file.ndim > 1)) {
        widen(&file, turned, p->value);
        if (rounds_to(p, p->value))
            return;
    }
    convert_to_f32(p->data, p->dtype, p->value, params_count(p));
}

typedef struct rounding {
    const train_param *p;
} rounding;

static void round_elements(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const train_param *p = ((const rounding *)ctx)->p;
    (void)thread;
    convert_from_f32((const float *)p->value + begin, p->dtype,
                     (char *)(uintptr_t)p->data + (size_t)begin * tn_dtype_size(p->dtype), end - begin);
}

void params_round(const train_param *p)
{
    rounding r = {p};
    if (p->value != p->data)
        tn_parallel_for(params_count(p), 1 << 14, round_elements, &r);
}

/* Files are mapped privately, so that what is written to a page stays in this process; pages are writable for as long
 * as their parameter changes, so that a kernel that writes to weights still faults. */
static void protect(const train_param *p, int protection)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)p->data & ~(page - 1);
    mprotect((void *)begin, (uintptr_t)p->data + p->bytes - begin, protection);
}

void params_unlock(const train_param *p)
{
    protect(p, PROT_READ | PROT_WRITE);
}

/* Copies are on pages that were writable before, where they have none to themselves. */
void params_lock(const train_param *p, const tn_model *model)
{
    for (size_t i = 0; i < model->copies.count; i++) {
        const pages *block = &model->copies.blocks[i];
        if (p->data >= block->data && p->data < block->data + block->bytes && !block->read_only)
            return;
    }
    protect(p, PROT_READ);
}

float *params_find(void *ctx, const tn_tensor *t)
{
    train_param *p = find(ctx, t->data);
    if (!p || p->dtype != t->dtype)
        return NULL;
    p->read = true;
    return p->sums + ((const char *)t->data - p->data) / (ptrdiff_t)tn_dtype_size(p->dtype);
}

/* As the adapter's file calls it. */
static tn_status adapter_gradient(const train_params *p, const char *name, tn_tensor *out, tn_error *err)
{
    const peft_view *view = peft_find(p->adapter, name);
    const train_param *param = view ? find(p, view->tensor.data) : NULL;
    if (!param)
        return tn_fail(err, TN_E_USAGE, name, "the adapter has no such tensor, and nothing else is trained");
    if (!param->read)
        return tn_fail(err, TN_E_USAGE, name, "has no gradient: nothing that was computed read it");
    *out = view->tensor;
    out->data = param->sums + ((const char *)view->tensor.data - param->data) / (ptrdiff_t)sizeof(float);
    return TN_OK;
}

tn_status params_gradient(const train_params *p, const char *name, tn_tensor *out, tn_error *err)
{
    tn_tensor file;
    if (p->adapter)
        return adapter_gradient(p, name, out, err);
    const char *data = shards_used(p->weights, name, TN_DTYPE_NONE);
    const train_param *param = data ? find(p, data) : NULL;
    if (!shards_get(p->weights, name, &file))
        return tn_fail(err, TN_E_USAGE, name, "the checkpoint has no such tensor");
    if (!param || !param->read)
        return tn_fail(err, TN_E_USAGE, name, "has no gradient: %s",
                       param ? "nothing that was computed read it" : "it is no parameter in numbers of the text model");
    *out = tn_tensor_dense(param->sums, TN_F32, file.ndim, file.shape);
    if (!shards_used(p->weights, name, param->dtype)) { /* turned: the last two dimensions lie the other way */
        out->stride[file.ndim - 1] = file.shape[file.ndim - 2];
        out->stride[file.ndim - 2] = 1;
    }
    return TN_OK;
}
