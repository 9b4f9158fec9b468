/* torch's tensors and modes, without linking torch. */
#include "bridge.h"

#include <string.h>
#include <tenon/dlpack.h>

/* DLPack's table of functions (1.2): what of it is used. */
typedef struct exchange {
    uint32_t major, minor;
    const struct exchange *former;
    void *allocate, *take, *give;
    int (*view)(void *object, DLTensor *out); /* borrows; may be NULL                                   */
} exchange;

bridge_torch torch;
static const exchange *api;

/* module.a.b, or NULL without an exception where optional. */
static PyObject *find(const char *path, bool optional)
{
    char name[64];
    PyObject *at = PyImport_ImportModule("torch");
    for (const char *p = path; at && *p;) {
        size_t length = strcspn(p, ".");
        memcpy(name, p, length);
        name[length] = '\0';
        p += length + (p[length] == '.');
        PyObject *next = PyObject_GetAttrString(at, name);
        Py_DECREF(at);
        at = next;
    }
    if (!at && optional)
        PyErr_Clear();
    return at;
}

static void find_exchange(void)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)torch.tensor, "__dlpack_c_exchange_api__");
    const exchange *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    while (found && found->major > 1)
        found = found->former;
    api = found && found->major == 1 && found->view ? found : NULL;
    PyErr_Clear();
    Py_XDECREF(capsule);
}

bool bridge_torch_load(void)
{
    static const struct {
        const char *path, *what;
    } modes[] = {{"_C._is_any_autocast_enabled", "autocast is on"},
                 {"_C._functorch.peek_interpreter_stack", "inside a transform of torch.func"},
                 {"_C._len_torch_dispatch_stack", "inside a dispatch mode of torch"},
                 {"_C._len_torch_function_stack", "inside a function mode of torch"},
                 {"_C._get_tracing_state", "torch.jit traces"}};
    if (torch.tensor)
        return true;
    bridge_torch t = {.empty = find("empty", false), .empty_like = find("empty_like", false)};
    t.grad_enabled = find("is_grad_enabled", false);
    t.parameter = (PyTypeObject *)find("nn.Parameter", false);
    size_t count = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if ((t.modes[count].ask = find(modes[i].path, true)))
            t.modes[count++].what = modes[i].what;
    t.tensor = (PyTypeObject *)find("Tensor", false);
    if (!t.empty || !t.empty_like || !t.grad_enabled || !t.parameter || !t.tensor)
        return false;
    torch = t;
    find_exchange();
    return true;
}

const char *bridge_torch_mode(void)
{
    for (size_t i = 0; torch.modes[i].ask; i++) {
        PyObject *says = PyObject_CallNoArgs(torch.modes[i].ask);
        int special = says && says != Py_None ? PyObject_IsTrue(says) : says ? 0 : -1;
        Py_XDECREF(says);
        if (special != 0) {
            PyErr_Clear();
            return torch.modes[i].what;
        }
    }
    return NULL;
}

static tn_dtype dtype_of(DLDataType type)
{
    if (type.lanes != 1)
        return TN_DTYPE_NONE;
    switch (type.code) {
    case kDLFloat:
        return type.bits == 32 ? TN_F32 : type.bits == 16 ? TN_F16 : type.bits == 64 ? TN_F64 : TN_DTYPE_NONE;
    case kDLBfloat:
        return type.bits == 16 ? TN_BF16 : TN_DTYPE_NONE;
    case kDLBool:
        return type.bits == 8 ? TN_BOOL : TN_DTYPE_NONE;
    case kDLInt:
        return type.bits == 64   ? TN_I64
               : type.bits == 32 ? TN_I32
               : type.bits == 16 ? TN_I16
               : type.bits == 8  ? TN_I8
                                 : TN_DTYPE_NONE;
    case kDLUInt:
        return type.bits == 8 ? TN_U8 : TN_DTYPE_NONE;
    default:
        return TN_DTYPE_NONE;
    }
}

static bool view_exchange(PyObject *tensor, tn_tensor *view, const char **why)
{
    DLTensor t;
    if (api->view(tensor, &t) != 0) {
        PyErr_Clear();
        *why = "is no plain tensor in memory (meta, sparse, or of a transform)";
        return false;
    }
    if (t.device.device_type != kDLCPU) {
        *why = "is not in the host's memory";
        return false;
    }
    if (t.ndim > TN_MAX_DIMS) {
        *why = "has more than 6 dimensions";
        return false;
    }
    view->data = (char *)t.data + t.byte_offset;
    view->dtype = dtype_of(t.dtype);
    view->ndim = t.ndim;
    for (int i = 0; i < t.ndim; i++) {
        view->shape[i] = t.shape[i];
        view->stride[i] = t.strides ? t.strides[i] : 0;
    }
    if (!t.strides)
        *view = tn_tensor_dense(view->data, view->dtype, view->ndim, view->shape);
    return true;
}

static bool sizes(PyObject *tensor, const char *method, int64_t *out, int32_t *ndim)
{
    PyObject *tuple = PyObject_CallMethod(tensor, method, NULL);
    Py_ssize_t count = tuple ? PyTuple_Size(tuple) : -1;
    for (Py_ssize_t i = 0; i < count && i < TN_MAX_DIMS; i++)
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    Py_XDECREF(tuple);
    *ndim = (int32_t)count;
    return count >= 0 && count <= TN_MAX_DIMS && !PyErr_Occurred();
}

/* Where torch has no exchange functions. */
static bool view_attributes(PyObject *tensor, tn_tensor *view, const char **why)
{
    PyObject *cpu = PyObject_GetAttrString(tensor, "is_cpu"), *address = NULL, *type = NULL, *text = NULL;
    bool good = cpu == Py_True && sizes(tensor, "size", view->shape, &view->ndim) &&
                sizes(tensor, "stride", view->stride, &view->ndim) &&
                (address = PyObject_CallMethod(tensor, "data_ptr", NULL)) &&
                (type = PyObject_GetAttrString(tensor, "dtype")) && (text = PyObject_Str(type));
    if (good) {
        view->data = PyLong_AsVoidPtr(address);
        const char *name = PyUnicode_AsUTF8AndSize(text, NULL);
        view->dtype = name && !strcmp(name, "torch.bool")    ? TN_BOOL
                      : name && !strcmp(name, "torch.int64") ? TN_I64
                      : name && !strcmp(name, "torch.int32") ? TN_I32
                                                             : tn_dtype_parse(name ? name : "");
    }
    *why = "is no plain tensor in the host's memory of at most 6 dimensions";
    PyErr_Clear();
    Py_XDECREF(cpu);
    Py_XDECREF(address);
    Py_XDECREF(type);
    Py_XDECREF(text);
    return good;
}

bool bridge_view(PyObject *tensor, tn_tensor *view, const char **why)
{
    *why = NULL;
    if (Py_TYPE(tensor) != torch.tensor && Py_TYPE(tensor) != torch.parameter) {
        *why = "is of a class of its own";
        return false;
    }
    return api ? view_exchange(tensor, view, why) : view_attributes(tensor, view, why);
}
