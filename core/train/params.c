/* Which bytes are which parameter: sites have views of the files' tensors, or of the copies that were made of them. */
#include "train/params.h"

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
static const char *widen(const train_params *p, const char *data);

static size_t sums_bytes(const train_param *p)
{
    return (size_t)params_count(p) * sizeof(float);
}

/* Factors that experts share have the name of the first one's. */
static void name_factors(train_params *p)
{
    for (size_t i = 0; p->adapter && i < p->adapter->view_count; i++) {
        train_param *of = find(p, p->adapter->views[i].tensor.data);
        if (of && !of->name[0])
            of->name = p->adapter->views[i].name;
    }
}

static int by_narrow(const void *a, const void *b)
{
    const graph_twin *const *x = a, *const *y = b;
    return (*x)->narrow < (*y)->narrow ? -1 : (*x)->narrow > (*y)->narrow;
}

/* Twins that are read, and which parameters they are of. */
static tn_status find_twins(train_params *p, tn_error *err)
{
    const graph *g = p->graph;
    p->twins = calloc(g->twin_count + 1, sizeof *p->twins);
    if (!p->twins)
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for %zu parameters", g->twin_count);
    for (size_t i = 0; i < g->twin_count; i++) {
        const graph_twin *twin = &g->twins[i];
        train_param *of = twin->narrow ? find(p, twin->wide) : NULL;
        if (of && (of->data != twin->wide || params_count(of) != twin->count))
            return tn_fail(err, TN_E_INTERNAL, of->name, "is rounded in part; report this defect");
        if (of)
            of->twin = p->twins[p->twin_count++] = twin;
    }
    qsort(p->twins, p->twin_count, sizeof *p->twins, by_narrow);
    return TN_OK;
}

/* A product's matrix is given its gradient once in a call, and nothing is kept for it beside its sums. Whatever else
 * reads parameters may do so for each text, each token, or each piece of the rows; what is narrow is not worth a
 * thought (AltUp asks its routers twice). */
static void count_readers(const train_params *p, const tn_site *site, int64_t vocab, int *readers)
{
    bool head = graph_is_wide(site) || site->dim[TN_DIM_OUT] == vocab;
    bool narrow = site->dim[TN_DIM_OUT] < 16;
    bool once = (site->op == TN_OP_LINEAR && !head && !narrow) || site->op == TN_OP_MOE_EXPERTS;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t k = 0; k < site->param[role].count; k++) {
            const train_param *of = find(p, widen(p, site->param[role].tensors[k].data));
            if (of)
                readers[of - p->at] += once ? 1 : 2;
        }
}

static tn_status find_apart(train_params *p, int64_t vocab, tn_error *err)
{
    const graph *g = p->graph;
    int *readers = calloc(p->count + 1, sizeof *readers);
    if (!readers)
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for %zu parameters", p->count);
    for (size_t i = 0; i < g->site_count; i++)
        if (!g->sites[i]->part[0] && !g->sites[i]->part[1])
            count_readers(p, &g->sites[i]->site, vocab, readers);
    for (size_t i = 0; i < g->step_count; i++)
        count_readers(p, &g->steps[i]->site, vocab, readers);
    for (size_t i = 0; i < p->count; i++) {
        p->at[i].apart = p->group || p->adapter || readers[i] != 1;
        p->fresh_bytes += p->at[i].apart ? sums_bytes(&p->at[i]) : 0;
    }
    free(readers);
    return TN_OK;
}

static int by_number(const void *a, const void *b)
{
    train_param *const *x = a, *const *y = b;
    return (*x)->number < (*y)->number ? -1 : 1;
}

/* Where parameters lie in memory differs from process to process; their numbers do not. */
static tn_status make_blocks(train_params *p, tn_error *err)
{
    size_t most = p->count + p->bytes / sizeof(float) / TRAIN_BLOCK;
    train_param **order = calloc(p->count + 1, sizeof *order);
    p->blocks = calloc(most + 1, sizeof *p->blocks);
    for (size_t i = 0; order && i < p->count; i++)
        order[i] = &p->at[i];
    if (order)
        qsort(order, p->count, sizeof *order, by_number);
    for (size_t i = 0; order && p->blocks && i < p->count; i++)
        for (int64_t at = 0, all = params_count(order[i]); at < all; at += TRAIN_BLOCK)
            p->blocks[p->block_count++] = (train_block){order[i], at, all - at < TRAIN_BLOCK ? all - at : TRAIN_BLOCK};
    bool made = order && p->blocks;
    free(order);
    p->own_end = p->block_count;
    return made ? TN_OK : tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for %zu parameters", p->count);
}

tn_status params_open(train_params *p, const tn_model *model, tn_error *err)
{
    const peft_adapter *adapter = model->adapter;
    size_t count = adapter ? adapter->count : shards_count(model->weights), at = 0;
    *p = (train_params){.weights = model->weights,
                        .adapter = adapter,
                        .graph = model->target.graph,
                        .group = model->replicas,
                        .at = calloc(count + 1, sizeof *p->at)};
    if (!p->at)
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for %zu parameters", count);
    for (size_t i = 0; i < count; i++) {
        train_param *next = &p->at[p->count];
        p->count +=
            adapter ? param_of_adapter(&adapter->tensors[i], next) : param_of(model->weights, i, model->dtype, next);
        next->number = i;
    }
    qsort(p->at, p->count, sizeof *p->at, by_address);
    params_drop_shared(p);
    name_factors(p);
    for (size_t i = 0; i < p->count; i++)
        p->bytes += p->at[i].bytes / tn_dtype_size(p->at[i].dtype) * sizeof(float);
    p->sums = reserved_new(p->bytes + 1);
    p->fresh = reserved_new(p->bytes + 1);
    if (!p->sums || !p->fresh)
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for gradients of %zu bytes", p->bytes);
    for (size_t i = 0; i < p->count; i++) {
        p->at[i].sums = p->sums + at;
        p->at[i].fresh = p->fresh + at;
        at += (size_t)params_count(&p->at[i]);
    }
    tn_status status = find_twins(p, err);
    if (status == TN_OK)
        status = find_apart(p, model->flow->shape(model->arch_state)->vocab, err);
    return status == TN_OK ? make_blocks(p, err) : status;
}

void params_close(train_params *p)
{
    reserved_free(p->sums, p->bytes + 1);
    reserved_free(p->fresh, p->bytes + 1);
    free(p->blocks);
    free(p->twins);
    free(p->at);
    *p = (train_params){0};
}

/* Memory that was read before it is written to is given twice: a page of zeros that all have, and then one of its own,
 * of which each processor must be told. */
static void zero_bytes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    memset((char *)ctx + begin, 0, (size_t)(end - begin));
}

void params_zero(void *to, size_t bytes)
{
    tn_parallel_for((int64_t)bytes, 1 << 18, zero_bytes, to);
}

static void clear_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const train_params *p = ctx;
    (void)thread;
    for (const train_block *b = p->blocks + p->own + begin; b < p->blocks + p->own + end; b++)
        if (b->of->read)
            memset(b->of->sums + b->first, 0, (size_t)b->count * sizeof(float));
}

void params_clear(train_params *p)
{
    tn_parallel_for((int64_t)(p->own_end - p->own), 1, clear_blocks, p);
    for (size_t i = 0; i < p->count; i++)
        p->at[i].read = p->at[i].now = false;
    p->calls = 0;
}

static void add_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const train_params *p = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const train_block *b = &p->blocks[i];
        float *to = b->of->sums + b->first;
        const float *from = b->of->fresh + b->first;
        for (int64_t k = 0; b->of->now && k < b->count; k++)
            to[k] += from[k];
    }
}

void params_add(train_params *p)
{
    if (p->calls++ == 0)
        return;
    tn_parallel_for((int64_t)p->block_count, 1, add_blocks, p);
    for (size_t i = 0; i < p->count; i++)
        p->at[i].now = false;
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

/* ---- what changes ----------------------------------------------------------------------------------- */

void params_round(const train_params *all, const train_param *p)
{
    if (p->twin)
        graph_round_twin(all->graph, p->twin);
}

/* Files are mapped privately, so that what is written to a page stays in this process; pages are writable for as long
 * as their parameter changes, so that a kernel that writes to weights still faults. */
static void protect(const char *data, size_t bytes, int protection)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data & ~(page - 1);
    mprotect((void *)begin, (uintptr_t)data + bytes - begin, protection);
}

static size_t twin_bytes(const train_params *all, const graph_twin *twin)
{
    return (size_t)twin->count * tn_dtype_size(all->graph->narrow);
}

void params_unlock(const train_params *all, const train_param *p)
{
    protect(p->data, p->bytes, PROT_READ | PROT_WRITE);
    if (p->twin)
        protect(p->twin->narrow, twin_bytes(all, p->twin), PROT_READ | PROT_WRITE);
}

/* Copies are on pages that were writable before, where they have none to themselves. */
static void lock(const tn_model *model, const char *data, size_t bytes)
{
    for (size_t i = 0; i < model->copies.count; i++) {
        const pages *block = &model->copies.blocks[i];
        if (data >= block->data && data < block->data + block->bytes && !block->read_only)
            return;
    }
    protect(data, bytes, PROT_READ);
}

void params_lock(const train_params *all, const train_param *p, const tn_model *model)
{
    lock(model, p->data, p->bytes);
    if (p->twin)
        lock(model, p->twin->narrow, twin_bytes(all, p->twin));
}

/* What is wide of what products read; data itself where it is no twin's. */
static const char *widen(const train_params *p, const char *data)
{
    size_t low = 0, high = p->twin_count, element = tn_dtype_size(p->graph->narrow);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->twins[middle]->narrow <= data)
            low = middle + 1;
        else
            high = middle;
    }
    const graph_twin *twin = low > 0 ? p->twins[low - 1] : NULL;
    if (!twin || data >= twin->narrow + twin_bytes(p, twin))
        return data;
    return twin->wide + (size_t)(data - twin->narrow) / element * sizeof(float);
}

float *params_find(void *ctx, const tn_tensor *t)
{
    const train_params *all = ctx;
    const char *data = widen(all, t->data);
    train_param *p = find(all, data);
    if (!p || (p->dtype != t->dtype && data == t->data))
        return NULL;
    bool fresh = all->group || (all->calls > 0 && (p->apart || all->many));
    if (!p->met && !all->group)
        params_zero(p->sums, sums_bytes(p));
    if (fresh && !p->now)
        params_zero(p->fresh, sums_bytes(p));
    p->now |= fresh;
    p->read = p->met = true;
    return (fresh ? p->fresh : p->sums) + (data - p->data) / (ptrdiff_t)tn_dtype_size(p->dtype);
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
