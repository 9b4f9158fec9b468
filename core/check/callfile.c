/* One call of a kernel in a safetensors file. Texts are tensors of bytes that end in NUL; numbers of the site are
 * tensors whose elements are counted as the interface counts them, which never changes within an ABI. */
#include "check/callfile.h"

#include "base/tensor.h"
#include "op/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 32, TEXTS = 6, NUMBERS = 5, FEW = TEXTS + NUMBERS + 3 * TN_CALL_TENSORS, MOST_THREADS = 1024 };

/* A tensor without elements may still have rows, which take their time. */
static const int64_t MOST_EMPTY = INT64_C(1) << 26;

/* The tensors of a file that is being made, with the memory of those that had to be copied. */
typedef struct maker {
    tn_named_tensor *tensors;
    char (*names)[NAME];
    void **copies;
    size_t count;
    bool failed;
} maker;

static void add(maker *m, const char *name, const tn_tensor *t)
{
    snprintf(m->names[m->count], NAME, "%s", name);
    m->tensors[m->count] = (tn_named_tensor){m->names[m->count], *t};
    m->count++;
}

static void add_numbers(maker *m, const char *name, const void *data, tn_dtype dtype, int64_t count)
{
    tn_tensor t = tn_tensor_dense((void *)(uintptr_t)data, dtype, 1, &count);
    add(m, name, &t);
}

static void add_text(maker *m, const char *name, const char *text)
{
    add_numbers(m, name, text ? text : "", TN_U8, (int64_t)strlen(text ? text : "") + 1);
}

static bool is_dense(const tn_tensor *t)
{
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != stride)
            return false;
        stride *= t->shape[i];
    }
    return true;
}

/* A tensor as a dense one. */
static void add_tensor(maker *m, const char *name, const tn_tensor *t)
{
    size_t size = tn_dtype_size(t->dtype);
    int64_t width = t->ndim > 0 ? t->shape[t->ndim - 1] : 1, rows = width > 0 ? tn_tensor_count(t) / width : 0;
    if (!t->data || is_dense(t)) {
        if (t->data)
            add(m, name, t);
        return;
    }
    char *copy = malloc((size_t)tn_tensor_count(t) * size + 1);
    if (!copy) {
        m->failed = true;
        return;
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t offset = 0, rest = row;
        for (int32_t i = t->ndim - 2; i >= 0; rest /= t->shape[i--])
            offset += rest % t->shape[i] * t->stride[i];
        memcpy(copy + (size_t)(row * width) * size, (const char *)t->data + offset * (int64_t)size,
               (size_t)width * size);
    }
    tn_tensor dense = tn_tensor_dense(copy, t->dtype, t->ndim, t->shape);
    m->copies[m->count] = copy;
    add(m, name, &dense);
}

static void add_calls(maker *m, const tn_call *call, const tn_call *eager)
{
    char name[NAME];
    for (int i = 0; i < call->in_count; i++) {
        snprintf(name, sizeof name, "in.%d", i);
        add_tensor(m, name, &call->in[i]);
    }
    for (int i = 0; i < call->out_count; i++) {
        snprintf(name, sizeof name, "kernel.%d", i);
        add_tensor(m, name, &call->out[i]);
        snprintf(name, sizeof name, "eager.%d", i);
        add_tensor(m, name, &eager->out[i]);
    }
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < call->site->param[role].count; i++) {
            snprintf(name, sizeof name, "param.%d.%lld", role, (long long)i);
            add_tensor(m, name, &call->site->param[role].tensors[i]);
        }
}

static bool maker_open(maker *m, const tn_site *site)
{
    size_t most = FEW;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        most += (size_t)site->param[role].count;
    *m = (maker){.tensors = calloc(most, sizeof *m->tensors),
                 .names = calloc(most, sizeof *m->names),
                 .copies = calloc(most, sizeof *m->copies)};
    return m->tensors && m->names && m->copies;
}

static void maker_close(maker *m)
{
    for (size_t i = 0; m->copies && i < m->count; i++)
        free(m->copies[i]);
    free(m->copies);
    free(m->names);
    free(m->tensors);
}

tn_status callfile_write(const char *path, const callfile_facts *facts, const tn_call *call, const tn_call *eager,
                         tn_error *err)
{
    const tn_site *site = call->site;
    int32_t numbers[2] = {(int32_t)call->op, facts->threads};
    int64_t features = (int64_t)site->features;
    maker m;
    tn_status status = TN_OK;
    if (maker_open(&m, site)) {
        add_text(&m, "text.kernel", facts->kernel);
        add_text(&m, "text.plugin", facts->plugin);
        add_text(&m, "text.detail", facts->detail);
        add_text(&m, "text.path", site->path);
        add_text(&m, "text.class", site->class_name);
        add_text(&m, "text.model", site->model_type);
        add_numbers(&m, "call", numbers, TN_I32, 2);
        add_numbers(&m, "worst", &facts->worst, TN_F64, 1);
        add_numbers(&m, "site.meaning", site->meaning, TN_I32, TN_AXIS_MAX);
        add_numbers(&m, "site.features", &features, TN_I64, 1);
        add_numbers(&m, "site.dim", site->dim, TN_I64, TN_DIM_MAX);
        add_numbers(&m, "site.num", site->num, TN_F64, TN_NUM_MAX);
        add_calls(&m, call, eager);
        if (!m.failed)
            status = tn_safetensors_write(path, m.tensors, m.count, err);
    } else {
        m.failed = true;
    }
    bool failed = m.failed;
    maker_close(&m);
    return failed ? tn_fail(err, TN_E_MEMORY, path, "out of memory for the call") : status;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static tn_status not_one(const char *name, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, name, "is missing or not as it should be; is this a file that --shadow wrote?");
}

/* Up to count elements; the rest of to stays as it is. */
static bool read_numbers(const callfile *c, const char *name, tn_dtype dtype, void *to, int64_t count, tn_error *err)
{
    tn_tensor t;
    if (!tn_safetensors_get(c->file, name, &t) || t.dtype != dtype || t.ndim != 1) {
        not_one(name, err);
        return false;
    }
    memcpy(to, t.data, (size_t)(t.shape[0] < count ? t.shape[0] : count) * tn_dtype_size(dtype));
    return true;
}

static bool read_text(const callfile *c, const char *name, const char **text, tn_error *err)
{
    tn_tensor t;
    if (!tn_safetensors_get(c->file, name, &t) || t.dtype != TN_U8 || t.ndim != 1 || t.shape[0] < 1 ||
        ((const char *)t.data)[t.shape[0] - 1]) {
        not_one(name, err);
        return false;
    }
    *text = t.data;
    return true;
}

static tn_status read_site(callfile *c, tn_error *err)
{
    int32_t numbers[2] = {0};
    int64_t features = 0;
    c->site.size = sizeof c->site;
    bool whole =
        read_text(c, "text.kernel", &c->facts.kernel, err) && read_text(c, "text.plugin", &c->facts.plugin, err) &&
        read_text(c, "text.detail", &c->facts.detail, err) && read_text(c, "text.path", &c->site.path, err) &&
        read_text(c, "text.class", &c->site.class_name, err) && read_text(c, "text.model", &c->site.model_type, err) &&
        read_numbers(c, "call", TN_I32, numbers, 2, err) && read_numbers(c, "worst", TN_F64, &c->facts.worst, 1, err) &&
        read_numbers(c, "site.meaning", TN_I32, c->site.meaning, TN_AXIS_MAX, err) &&
        read_numbers(c, "site.features", TN_I64, &features, 1, err) &&
        read_numbers(c, "site.dim", TN_I64, c->site.dim, TN_DIM_MAX, err) &&
        read_numbers(c, "site.num", TN_F64, c->site.num, TN_NUM_MAX, err);
    c->site.op = (tn_op)numbers[0];
    c->site.features = (uint64_t)features;
    c->facts.threads = numbers[1] < 1 ? 1 : numbers[1] > MOST_THREADS ? MOST_THREADS : numbers[1];
    return whole ? TN_OK : TN_E_INPUT;
}

/* Eager computes with floats alone, so no call of anything else was compared with it. */
static tn_status check_types(const callfile *c, tn_error *err)
{
    int32_t dtype = c->site.meaning[TN_AXIS_DTYPE], weight = c->site.meaning[TN_AXIS_WEIGHT];
    if (!tensor_is_float((tn_dtype)dtype) || (weight && !tensor_is_float((tn_dtype)weight)) ||
        (c->site.features & (TN_HAS_SCALES | TN_HAS_ZERO_POINTS)))
        return not_one("site.meaning", err);
    return TN_OK;
}

/* A tensor of the file, at an address that its type may have: other programs write headers of any length. */
static tn_status read_tensor(callfile *c, const char *name, tn_tensor *t, bool *there, tn_error *err)
{
    *there = tn_safetensors_get(c->file, name, t);
    if (!*there)
        return TN_OK;
    int64_t size = (int64_t)tn_dtype_size(t->dtype), rows = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        rows *= t->shape[i] ? t->shape[i] : 1; /* which the reader has found to fit */
    if (tn_tensor_count(t) == 0 && rows > MOST_EMPTY)
        return not_one(name, err);
    if ((uintptr_t)t->data % (uintptr_t)size == 0)
        return TN_OK;
    size_t bytes = (size_t)(tn_tensor_count(t) * size);
    void **copies = realloc(c->copies, (c->copy_count + 1) * sizeof *copies), *copy = malloc(bytes + 1);
    c->copies = copies ? copies : c->copies;
    if (!copies || !copy) {
        free(copy);
        return tn_fail(err, TN_E_MEMORY, name, "out of memory");
    }
    c->copies[c->copy_count++] = copy;
    if (bytes)
        memcpy(copy, t->data, bytes);
    t->data = copy;
    return TN_OK;
}

static tn_status read_params(callfile *c, tn_error *err)
{
    char name[NAME];
    size_t used = 0;
    c->params = calloc(tn_safetensors_count(c->file) + 1, sizeof *c->params);
    if (!c->params)
        return tn_fail(err, TN_E_MEMORY, "replay", "out of memory");
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &c->site.param[role];
        p->tensors = c->params + used;
        for (bool there = true; there && used < tn_safetensors_count(c->file);) {
            snprintf(name, sizeof name, "param.%d.%lld", role, (long long)p->count);
            tn_status status = read_tensor(c, name, &c->params[used], &there, err);
            if (status != TN_OK)
                return status;
            used += there;
            p->count += there;
        }
    }
    tn_status status = op_check_site(&c->site, err) == TN_OK ? TN_OK : TN_E_INPUT;
    return status == TN_OK ? check_types(c, err) : status;
}

static tn_status read_tensors(callfile *c, const char *kind, tn_tensor *to, int32_t *count, tn_error *err)
{
    char name[NAME];
    tn_status status = TN_OK;
    bool there = true;
    for (*count = 0; *count < TN_CALL_TENSORS && status == TN_OK && there; *count += there) {
        snprintf(name, sizeof name, "%s.%d", kind, (int)*count);
        status = read_tensor(c, name, &to[*count], &there, err);
    }
    return status;
}

static tn_status read_calls(callfile *c, tn_error *err)
{
    c->call = (tn_call){.size = sizeof c->call, .op = c->site.op, .site = &c->site};
    tn_status status = read_tensors(c, "in", c->call.in, &c->call.in_count, err);
    c->eager = c->call;
    if (status == TN_OK)
        status = read_tensors(c, "kernel", c->call.out, &c->call.out_count, err);
    if (status == TN_OK)
        status = read_tensors(c, "eager", c->eager.out, &c->eager.out_count, err);
    if (status == TN_OK && c->call.out_count != c->eager.out_count)
        status = not_one("kernel.0", err);
    if (status != TN_OK)
        return status;
    status = op_check_call(&c->call, err);
    return status == TN_OK && op_check_call(&c->eager, err) == TN_OK ? TN_OK : TN_E_INPUT;
}

tn_status callfile_open(callfile *c, const char *path, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    *c = (callfile){.file = tn_safetensors_open(path, &why)};
    tn_status status = c->file ? read_site(c, &why) : why.code;
    const op_row *row = status == TN_OK ? op_find(c->site.op) : NULL;
    if (status == TN_OK && (!row || row->kind != OP_CONTRACT))
        status = not_one("call", &why);
    if (status == TN_OK)
        status = read_params(c, &why);
    if (status == TN_OK)
        status = read_calls(c, &why);
    if (status == TN_OK)
        return TN_OK;
    return c->file ? tn_fail(err, status, path, "%s%s%s", why.where, why.where[0] ? ": " : "", why.message)
                   : tn_fail(err, status, why.where, "%s", why.message);
}

void callfile_close(callfile *c)
{
    tn_safetensors_close(c->file);
    for (size_t i = 0; i < c->copy_count; i++)
        free(c->copies[i]);
    free(c->copies);
    free(c->params);
    *c = (callfile){0};
}
