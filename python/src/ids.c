/* Tokens from Python: lists, and tensors of others by DLPack. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>
#include <tenon/dlpack.h>

void ids_free(ids *i)
{
    free(i->values);
    *i = (ids){0};
}

/* Appends the integers of a list to out->values, which has room for them. */
static bool take_row(PyObject *list, ids *out, int64_t row)
{
    Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *number = PyNumber_Index(PyList_GetItem(list, i));
        int64_t id = number ? PyLong_AsLongLong(number) : -1;
        Py_XDECREF(number);
        if (id == -1 && PyErr_Occurred())
            return false;
        out->values[row * out->tokens + i] = id;
    }
    return true;
}

static bool take_rows(PyObject *rows, ids *out)
{
    for (int64_t r = 0; r < out->rows; r++) {
        PyObject *row = PyList_GetItem(rows, (Py_ssize_t)r);
        if (!PyList_Check(row)) {
            PyErr_SetString(PyExc_TypeError, "ids are integers, or lists of integers");
            return false;
        }
        if (PyList_Size(row) != out->tokens) {
            PyErr_Format(PyExc_ValueError,
                         "rows of %zd and %zd tokens; pad them to one length on the left, with a mask",
                         (Py_ssize_t)out->tokens, PyList_Size(row));
            return false;
        }
        if (!take_row(row, out, r))
            return false;
    }
    return true;
}

bool ids_take(PyObject *object, ids *out)
{
    *out = (ids){0};
    if (!PyList_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "ids are integers, or lists of integers");
        return false;
    }
    PyObject *first = PyList_Size(object) > 0 ? PyList_GetItem(object, 0) : NULL;
    bool nested = first && PyList_Check(first);
    out->rows = nested ? PyList_Size(object) : 1;
    out->tokens = nested ? PyList_Size(first) : PyList_Size(object);
    out->values = malloc((size_t)(out->rows * out->tokens + 1) * sizeof *out->values);
    bool good = out->values && (nested ? take_rows(object, out) : take_row(object, out, 0));
    if (!out->values)
        PyErr_NoMemory();
    if (!good)
        ids_free(out);
    return good;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

static PyObject *list_of(const DLTensor *t, const int64_t *strides, int dim, const char *at)
{
    size_t size = t->dtype.bits / 8u;
    if (dim == t->ndim) {
        int64_t wide = 0;
        int32_t narrow = 0;
        memcpy(size == 8 ? (void *)&wide : (void *)&narrow, at, size);
        return PyLong_FromLongLong(size == 8 ? wide : narrow);
    }
    PyObject *list = PyList_New((Py_ssize_t)t->shape[dim]);
    for (Py_ssize_t i = 0; list && i < (Py_ssize_t)t->shape[dim]; i++) {
        PyObject *item = list_of(t, strides, dim + 1, at + i * strides[dim] * (int64_t)size);
        if (!item || PyList_SetItem(list, i, item) != 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *read_tensor(const DLTensor *t)
{
    int64_t dense[2] = {t->ndim == 2 ? t->shape[1] : 1, 1};
    if (t->device.device_type != kDLCPU && t->device.device_type != kDLCUDAHost)
        return PyErr_Format(PyExc_ValueError, "ids are read from the host's memory; move them to the CPU");
    if (t->dtype.code != kDLInt || t->dtype.lanes != 1 || (t->dtype.bits != 32 && t->dtype.bits != 64))
        return PyErr_Format(PyExc_TypeError, "ids are tensors of int32 or int64");
    if (t->ndim < 1 || t->ndim > 2)
        return PyErr_Format(PyExc_ValueError, "ids have one dimension or two, [tokens] or [rows, tokens], and not %d",
                            (int)t->ndim);
    return list_of(t, t->strides ? t->strides : dense, 0, (const char *)t->data + t->byte_offset);
}

PyObject *ids_list(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *capsule = PyObject_CallMethod(object, "__dlpack__", NULL);
    const DLManagedTensor *tensor = capsule ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    PyObject *list = tensor ? read_tensor(&tensor->dl_tensor) : NULL; /* the capsule stays its owner */
    Py_XDECREF(capsule);
    return list;
}
