/* Building a case. */
#include "check_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void case_init(check_case *c, const char *kernel, tn_op op, tn_dtype dtype)
{
    *c = (check_case){.kernel = kernel};
    c->site = (tn_site){.size = sizeof c->site,
                        .op = op,
                        .path = "model.check",
                        .class_name = "Check",
                        .model_type = "check",
                        .meaning = {[TN_AXIS_DTYPE] = (int32_t)dtype, [TN_AXIS_WEIGHT] = (int32_t)dtype}};
    c->call = (tn_call){.size = sizeof c->call, .op = op};
    for (int32_t i = 0; i < TN_CALL_TENSORS; i++)
        c->alias[i] = c->grad_alias[i] = -1;
}

void case_free(check_case *c)
{
    for (size_t i = 0; i < c->memory_count; i++)
        free(c->memory[i]);
    free(c->memory);
    c->memory = NULL;
    c->memory_count = 0;
}

/* A test tool that runs out of memory has nothing better to do than to say so. */
static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "check_kernels: out of memory\n");
        exit(6);
    }
    return memory;
}

void *case_alloc(check_case *c, size_t bytes)
{
    c->memory = must(realloc(c->memory, (c->memory_count + 1) * sizeof *c->memory));
    return c->memory[c->memory_count++] = must(calloc(bytes + 1, 1));
}

static tn_tensor make_tensor(check_case *c, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    tn_tensor t = tn_tensor_dense(NULL, dtype, ndim, shape);
    if (stride)
        memcpy(t.stride, stride, (size_t)ndim * sizeof *stride);
    int64_t span = 1;
    for (int32_t d = 0; d < ndim; d++)
        span += (shape[d] - 1) * t.stride[d];
    if (tn_tensor_count(&t) == 0)
        span = 0;
    t.data = case_alloc(c, (size_t)span * tn_dtype_size(dtype));
    return t;
}

tn_tensor *case_in(check_case *c, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    tn_tensor *t = &c->call.in[c->call.in_count++];
    *t = make_tensor(c, dtype, ndim, shape, stride);
    return t;
}

tn_tensor *case_out(check_case *c, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    tn_tensor *t = &c->call.out[c->call.out_count++];
    *t = make_tensor(c, dtype, ndim, shape, stride);
    return t;
}

tn_tensor *case_param(check_case *c, tn_role role, int64_t count, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor *tensors = case_alloc(c, (size_t)count * sizeof *tensors);
    for (int64_t i = 0; i < count; i++)
        tensors[i] = make_tensor(c, dtype, ndim, shape, NULL);
    c->site.param[role] = (tn_param){tensors, count};
    return tensors;
}

double *case_values(check_case *c, const tn_tensor *t)
{
    int64_t count = tn_tensor_count(t);
    double *values = case_alloc(c, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = element_get(t, element_offset(t, i));
    return values;
}

void case_want(check_case *c, int32_t out)
{
    size_t bytes = (size_t)tn_tensor_count(&c->call.out[out]) * sizeof(double);
    c->want[out] = case_alloc(c, bytes);
    c->bound[out] = case_alloc(c, bytes);
}

static bool has_gradient(const tn_tensor *t)
{
    return t->dtype == TN_F32 || t->dtype == TN_BF16 || t->dtype == TN_F16;
}

void case_grads(check_case *c, random_state *r)
{
    c->grads.size = sizeof c->grads;
    for (int32_t i = 0; i < c->call.out_count; i++) {
        const tn_tensor *out = &c->call.out[i];
        if (!has_gradient(out))
            continue;
        c->grads.out[i] = make_tensor(c, out->dtype, out->ndim, out->shape, out->stride);
        fill_normal(&c->grads.out[i], r, 0, 1);
    }
    for (int32_t i = 0; i < c->call.in_count; i++) {
        const tn_tensor *in = &c->call.in[i];
        if (has_gradient(in))
            c->grads.in[i] = make_tensor(c, in->dtype, in->ndim, in->shape, in->stride);
    }
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        const tn_param *p = &c->site.param[role];
        if (p->count && has_gradient(p->tensors)) {
            tn_tensor *tensors = case_alloc(c, (size_t)p->count * sizeof *tensors);
            for (int64_t i = 0; i < p->count; i++)
                tensors[i] = make_tensor(c, p->tensors[i].dtype, p->tensors[i].ndim, p->tensors[i].shape, NULL);
            c->grads.param[role] = (tn_param){tensors, p->count};
        }
    }
}

void case_want_in(check_case *c, int32_t in)
{
    size_t bytes = (size_t)tn_tensor_count(&c->call.in[in]) * sizeof(double);
    c->want_in[in] = case_alloc(c, bytes);
    c->bound_in[in] = case_alloc(c, bytes);
}

void case_want_param(check_case *c, tn_role role)
{
    const tn_param *p = &c->site.param[role];
    size_t bytes = (size_t)(p->count * tn_tensor_count(p->tensors)) * sizeof(double);
    c->want_param[role] = case_alloc(c, bytes);
    c->bound_param[role] = case_alloc(c, bytes);
}
