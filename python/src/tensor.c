/* Results as tensors: f32 in memory of their own, which numpy, torch and others take over without a copy (__dlpack__).
 * The memory goes with the last who uses it, whatever becomes of the model or of the interpreter. */
#include "binding.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/dlpack.h>

enum { MOST_DIMS = 3 };

typedef struct values {
    atomic_int users;
    float *data;
} values;

typedef struct tensor_object {
    PyObject_HEAD values *values;
    int ndim;
    int64_t shape[MOST_DIMS];
} tensor_object;

/* What a DLPack consumer holds. */
typedef struct lent {
    DLManagedTensor tensor;
    values *values;
    int64_t shape[MOST_DIMS], strides[MOST_DIMS];
} lent;

static PyTypeObject *tensor_type;

static void values_drop(values *v)
{
    if (!v || atomic_fetch_sub(&v->users, 1) != 1)
        return;
    free(v->data);
    free(v);
}

static values *values_new(size_t count)
{
    values *v = malloc(sizeof *v);
    float *data = count < SIZE_MAX / sizeof *data - 16 ? aligned_alloc(64, (count / 16 + 1) * 64) : NULL;
    if (v && data) {
        atomic_init(&v->users, 1);
        v->data = data;
        return v;
    }
    free(v);
    free(data);
    return NULL;
}

static size_t count_of(int ndim, const int64_t *shape)
{
    size_t count = 1;
    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(count, (size_t)shape[i], &count))
            return SIZE_MAX;
    return count;
}

PyObject *tensor_new(int ndim, const int64_t *shape, float **data)
{
    tensor_object *t = PyObject_New(tensor_object, tensor_type);
    if (!t)
        return NULL;
    t->ndim = ndim;
    memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    t->values = values_new(count_of(ndim, shape));
    if (!t->values) {
        Py_DECREF(t);
        return PyErr_NoMemory();
    }
    *data = t->values->data;
    return (PyObject *)t;
}

static void tensor_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    values_drop(((tensor_object *)self)->values);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *tensor_shape(PyObject *self, void *closure)
{
    const tensor_object *t = (tensor_object *)self;
    PyObject *shape = PyTuple_New(t->ndim);
    (void)closure;
    for (int i = 0; shape && i < t->ndim; i++) {
        PyObject *size = PyLong_FromLongLong(t->shape[i]);
        if (!size || PyTuple_SetItem(shape, i, size) != 0) {
            Py_DECREF(shape);
            return NULL;
        }
    }
    return shape;
}

static PyObject *tensor_dtype(PyObject *self, void *closure)
{
    (void)self, (void)closure;
    return PyUnicode_FromString("float32");
}

/* What numpy.asarray takes. */
static PyObject *tensor_interface(PyObject *self, void *closure)
{
    const tensor_object *t = (tensor_object *)self;
    PyObject *shape = tensor_shape(self, closure);
    return shape ? Py_BuildValue("{s:N, s:s, s:(NO), s:i}", "shape", shape, "typestr",
                                 __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "<f4" : ">f4", "data",
                                 PyLong_FromVoidPtr(t->values->data), Py_False, "version", 3)
                 : NULL;
}

static PyObject *list_of(const int64_t *shape, int ndim, const float **at)
{
    if (ndim == 0)
        return PyFloat_FromDouble((double)*(*at)++);
    PyObject *list = PyList_New((Py_ssize_t)shape[0]);
    for (Py_ssize_t i = 0; list && i < (Py_ssize_t)shape[0]; i++) {
        PyObject *item = list_of(shape + 1, ndim - 1, at);
        if (!item || PyList_SetItem(list, i, item) != 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *tensor_list(PyObject *self, PyObject *none)
{
    const tensor_object *t = (tensor_object *)self;
    const float *at = t->values->data;
    (void)none;
    return list_of(t->shape, t->ndim, &at);
}

static PyObject *tensor_repr(PyObject *self)
{
    PyObject *shape = tensor_shape(self, NULL);
    PyObject *text = shape ? PyUnicode_FromFormat("tenon.Tensor(shape=%R, dtype=float32)", shape) : NULL;
    Py_XDECREF(shape);
    return text;
}

/* ---- DLPack ------------------------------------------------------------------------------------- */

static void lent_delete(DLManagedTensor *tensor)
{
    lent *l = tensor->manager_ctx;
    values_drop(l->values);
    free(l);
}

/* Of a capsule that nobody took. */
static void capsule_delete(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor"))
        lent_delete(PyCapsule_GetPointer(capsule, "dltensor"));
}

static lent *lend(const tensor_object *t, bool copy)
{
    lent *l = calloc(1, sizeof *l);
    size_t count = count_of(t->ndim, t->shape);
    values *v = copy ? values_new(count) : t->values;
    if (!l || !v) {
        free(l);
        if (copy)
            values_drop(v);
        return NULL;
    }
    if (copy)
        memcpy(v->data, t->values->data, count * sizeof *v->data);
    else
        atomic_fetch_add(&v->users, 1);
    l->values = v;
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        l->shape[i] = t->shape[i];
        l->strides[i] = stride;
        stride *= t->shape[i];
    }
    l->tensor = (DLManagedTensor){.dl_tensor = {.data = v->data,
                                                .device = {kDLCPU, 0},
                                                .ndim = t->ndim,
                                                .dtype = {kDLFloat, 32, 1},
                                                .shape = l->shape,
                                                .strides = l->strides},
                                  .manager_ctx = l,
                                  .deleter = lent_delete};
    return l;
}

static PyObject *tensor_dlpack(PyObject *self, PyObject *arguments, PyObject *names)
{
    static char *const known[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    int type = kDLCPU, unit = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "|$OOOO", (char **)known, &stream, &version, &device, &copy))
        return NULL;
    if (stream != Py_None)
        return PyErr_Format(PyExc_BufferError, "stream is None for tensors in the host's memory");
    if (device != Py_None && !PyArg_ParseTuple(device, "ii", &type, &unit))
        return NULL;
    if (type != kDLCPU)
        return PyErr_Format(PyExc_BufferError, "the tensor is in the host's memory, and not on device (%d, %d)", type,
                            unit);
    int own = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    lent *l = own < 0 ? NULL : lend((tensor_object *)self, own != 0);
    if (!l)
        return own < 0 ? NULL : PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(&l->tensor, "dltensor", capsule_delete);
    if (!capsule)
        lent_delete(&l->tensor);
    return capsule;
}

static PyObject *tensor_device(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return Py_BuildValue("(ii)", (int)kDLCPU, 0);
}

static PyMethodDef methods[] = {
    {"tolist", tensor_list, METH_NOARGS, "Nested lists of floats."},
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", tensor_device, METH_NOARGS, NULL},
    {0}};

static PyGetSetDef members[] = {{"shape", tensor_shape, NULL, "Sizes, a tuple.", NULL},
                                {"dtype", tensor_dtype, NULL, "\"float32\".", NULL},
                                {"__array_interface__", tensor_interface, NULL, NULL, NULL},
                                {0}};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A dense tensor of float32: torch.from_dlpack, numpy.from_dlpack, numpy.asarray, tolist()."},
    {Py_tp_dealloc, tensor_free},
    {Py_tp_repr, tensor_repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0}};

static PyType_Spec spec = {"tenon.Tensor", sizeof(tensor_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

bool tensor_add(PyObject *module)
{
    tensor_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return tensor_type && PyModule_AddObjectRef(module, "Tensor", (PyObject *)tensor_type) == 0;
}
