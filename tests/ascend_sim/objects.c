/* Tensors, scalars, arrays and lists: descriptions that live on the host and own no data. */
#include "sim.h"

#include <string.h>

enum { TENSOR_MAGIC = 0x7e500001, SCALAR_MAGIC, INTS_MAGIC, LIST_MAGIC };

struct aclTensor {
    uint32_t magic;
    int pending; /* executors that were made with it and did not run yet */
    bool listed; /* a list owns it */
    aclFormat format;
    sim_tensor view;
    int storage_rank;
    int64_t storage[SIM_RANK_MAX];
};

struct aclScalar {
    uint32_t magic;
    sim_scalar value;
};

struct aclIntArray {
    uint32_t magic;
    int64_t count, values[];
};

struct aclTensorList {
    uint32_t magic;
    int64_t count;
    aclTensor *tensors[];
};

/* ---- tensors --------------------------------------------------------------------------------------------------- */

static bool all_at_least_zero(const int64_t *values, uint64_t count, const char *what)
{
    for (uint64_t i = 0; i < count; i++)
        if (values[i] < 0) {
            sim_violation(0, "aclCreateTensor: %s %llu is %lld", what, (unsigned long long)i, (long long)values[i]);
            return false;
        }
    return true;
}

/* The vendor calls an address that is no multiple of 32 undefined: it has no code. */
static bool right_address(const void *address, const char *call)
{
    if ((uintptr_t)address % 32 == 0)
        return true;
    sim_violation(0, "%s: %p is no multiple of 32 bytes; put what is left into the offset", call, address);
    return false;
}

/* Elements from the storage's first to behind the view's last. */
static int64_t reach(const sim_tensor *v)
{
    int64_t last = v->offset;
    for (int i = 0; i < v->rank; i++) {
        if (!v->shape[i])
            return 0;
        last += (v->shape[i] - 1) * v->strides[i];
    }
    return last + 1;
}

static void set_strides(sim_tensor *v, const int64_t *stride)
{
    int64_t step = 1;
    for (int i = v->rank; i-- > 0;) {
        v->strides[i] = stride ? stride[i] : step;
        step *= v->shape[i];
    }
}

static bool describe(aclTensor *t, const int64_t *dims, uint64_t rank, const int64_t *stride, int64_t offset,
                     const int64_t *storage, uint64_t storage_rank)
{
    if ((!dims && rank) || (!storage && storage_rank)) {
        sim_violation(0, "aclCreateTensor: a shape is NULL");
        return false;
    }
    if (rank > SIM_RANK_MAX || storage_rank > SIM_RANK_MAX) { /* no operator's document has more */
        sim_violation(0, "aclCreateTensor: %llu dimensions",
                      (unsigned long long)(rank > storage_rank ? rank : storage_rank));
        return false;
    }
    if (!all_at_least_zero(dims, rank, "dimension") || !all_at_least_zero(storage, storage_rank, "storage dimension") ||
        (stride && !all_at_least_zero(stride, rank, "stride")) || !all_at_least_zero(&offset, 1, "offset"))
        return false;
    t->view.rank = (int)rank;
    t->view.offset = offset;
    if (rank)
        memcpy(t->view.shape, dims, rank * sizeof *dims);
    set_strides(&t->view, stride);
    t->storage_rank = (int)storage_rank;
    int64_t held = 1;
    for (uint64_t i = 0; i < storage_rank; i++)
        held *= t->storage[i] = storage[i];
    if (reach(&t->view) > held) {
        sim_violation(0, "aclCreateTensor: the view ends at element %lld of a storage of %lld",
                      (long long)reach(&t->view), (long long)held);
        return false;
    }
    return true;
}

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride,
                           int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                           void *tensorData)
{
    SIM_HOLD;
    if (sim_injected("aclCreateTensor"))
        return NULL;
    aclTensor t = {.magic = TENSOR_MAGIC, .format = format};
    t.view = (sim_tensor){.present = true, .type = dataType, .data = tensorData};
    if (!describe(&t, viewDims, viewDimsNum, stride, offset, storageDims, storageDimsNum) ||
        !right_address(tensorData, "aclCreateTensor"))
        return NULL;
    aclTensor *made = sim_allocate(sizeof *made);
    *made = t;
    made->view.source = made;
    sim_count_live(SIM_TENSORS, 1);
    sim_counted.descriptors++;
    return made;
}

bool sim_tensor_alive(const aclTensor *tensor)
{
    return tensor && tensor->magic == TENSOR_MAGIC;
}

bool sim_tensor_of(const aclTensor *tensor, sim_tensor *out)
{
    if (!sim_tensor_alive(tensor))
        return false;
    if (tensor->format != ACL_FORMAT_ND)
        sim_violation(0, "a tensor has format %d, operators are documented for ND", (int)tensor->format);
    *out = tensor->view;
    return true;
}

void sim_tensor_pending(aclTensor *tensor, int change)
{
    tensor->pending += change;
}

static int destroy_tensor(aclTensor *t)
{
    if (t->magic != TENSOR_MAGIC)
        return sim_violation(0, "aclDestroyTensor: no live tensor; was it destroyed before?");
    if (t->pending)
        sim_violation(0, "aclDestroyTensor: an executor that did not run yet needs the tensor");
    t->magic = 0;
    sim_bury(t);
    sim_count_live(SIM_TENSORS, -1);
    return 0;
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    SIM_HOLD;
    if (!tensor)
        return 0;
    aclTensor *t = (aclTensor *)(uintptr_t)tensor;
    if (t->magic == TENSOR_MAGIC && t->listed)
        return sim_violation(0, "aclDestroyTensor: a list owns the tensor");
    return destroy_tensor(t);
}

/* ---- scalars --------------------------------------------------------------------------------------------------- */

#define READ(type, from) (*(const type *)(from))

static bool read_scalar(sim_scalar *s, const void *value)
{
    switch ((int)s->type) {
    case ACL_FLOAT:
        return s->real = (double)READ(float, value), true;
    case ACL_DOUBLE:
        return s->real = READ(double, value), true;
    case ACL_FLOAT16:
        return s->real = (double)sim_from_f16(READ(uint16_t, value)), true;
    case ACL_BF16:
        return s->real = (double)sim_from_bf16(READ(uint16_t, value)), true;
    case ACL_INT64:
        return s->real = (double)READ(int64_t, value), true;
    case ACL_INT32:
        return s->real = (double)READ(int32_t, value), true;
    default:
        return false;
    }
}

aclScalar *aclCreateScalar(void *value, aclDataType dataType)
{
    SIM_HOLD;
    if (sim_injected("aclCreateScalar"))
        return NULL;
    sim_scalar s = {.type = dataType};
    if (!value || sim_is_device(value) || !read_scalar(&s, value)) {
        sim_violation(0, "aclCreateScalar: value is NULL or device memory, or %s is no type of scalars",
                      sim_type_name(dataType));
        return NULL;
    }
    aclScalar *made = sim_allocate(sizeof *made);
    *made = (aclScalar){.magic = SCALAR_MAGIC, .value = s};
    sim_count_live(SIM_SCALARS, 1);
    sim_counted.descriptors++;
    return made;
}

bool sim_scalar_of(const aclScalar *scalar, sim_scalar *out)
{
    if (!scalar || scalar->magic != SCALAR_MAGIC)
        return false;
    *out = scalar->value;
    return true;
}

aclnnStatus aclDestroyScalar(const aclScalar *scalar)
{
    SIM_HOLD;
    aclScalar *s = (aclScalar *)(uintptr_t)scalar;
    if (!s)
        return 0;
    if (s->magic != SCALAR_MAGIC)
        return sim_violation(0, "aclDestroyScalar: no live scalar; was it destroyed before?");
    s->magic = 0;
    sim_bury(s);
    sim_count_live(SIM_SCALARS, -1);
    return 0;
}

/* ---- arrays ---------------------------------------------------------------------------------------------------- */

static bool right_array(const void *value, uint64_t size, const char *call)
{
    if (sim_injected(call))
        return false;
    if ((value && !sim_is_device(value)) || !size)
        return true;
    sim_violation(0, "%s: the values are NULL or device memory", call);
    return false;
}

aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    SIM_HOLD;
    if (!right_array(value, size, "aclCreateIntArray"))
        return NULL;
    aclIntArray *made = sim_allocate(sizeof *made + size * sizeof *value);
    *made = (aclIntArray){.magic = INTS_MAGIC, .count = (int64_t)size};
    if (size)
        memcpy(made->values, value, size * sizeof *value);
    sim_count_live(SIM_ARRAYS, 1);
    sim_counted.descriptors++;
    return made;
}

bool sim_ints_of(const aclIntArray *array, const int64_t **values, int64_t *count)
{
    if (!array || array->magic != INTS_MAGIC)
        return false;
    *values = array->values;
    *count = array->count;
    return true;
}

aclnnStatus aclDestroyIntArray(const aclIntArray *array)
{
    SIM_HOLD;
    aclIntArray *a = (aclIntArray *)(uintptr_t)array;
    if (!a)
        return 0;
    if (a->magic != INTS_MAGIC)
        return sim_violation(0, "aclDestroyIntArray: no live array; was it destroyed before?");
    a->magic = 0;
    sim_bury(a);
    sim_count_live(SIM_ARRAYS, -1);
    return 0;
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

/* Takes the tensors. NULL members are kept: operators refuse them. */
aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size)
{
    SIM_HOLD;
    if (!right_array(value, size, "aclCreateTensorList"))
        return NULL;
    for (uint64_t i = 0; i < size; i++)
        if (value[i] && (!sim_tensor_alive(value[i]) || value[i]->listed)) {
            sim_violation(0, "aclCreateTensorList: member %llu is no live tensor, or in a list already",
                          (unsigned long long)i);
            return NULL;
        }
    aclTensorList *made = sim_allocate(sizeof *made + size * sizeof *made->tensors);
    *made = (aclTensorList){.magic = LIST_MAGIC, .count = (int64_t)size};
    for (uint64_t i = 0; i < size; i++) {
        made->tensors[i] = (aclTensor *)(uintptr_t)value[i];
        if (value[i])
            made->tensors[i]->listed = true;
    }
    sim_count_live(SIM_LISTS, 1);
    sim_counted.descriptors++;
    return made;
}

bool sim_list_of(const aclTensorList *list, aclTensor *const **tensors, int64_t *count)
{
    if (!list || list->magic != LIST_MAGIC)
        return false;
    *tensors = list->tensors;
    *count = list->count;
    return true;
}

aclnnStatus aclDestroyTensorList(const aclTensorList *array)
{
    SIM_HOLD;
    aclTensorList *list = (aclTensorList *)(uintptr_t)array;
    if (!list)
        return 0;
    if (list->magic != LIST_MAGIC)
        return sim_violation(0, "aclDestroyTensorList: no live list; was it destroyed before?");
    for (int64_t i = 0; i < list->count; i++)
        if (list->tensors[i])
            destroy_tensor(list->tensors[i]);
    list->magic = 0;
    sim_bury(list);
    sim_count_live(SIM_LISTS, -1);
    return 0;
}
