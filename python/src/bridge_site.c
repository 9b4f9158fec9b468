/* A site of a live module: its calls, by a kernel or by torch's own forward. */
#include "bridge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PyTypeObject *site_type;

bridge_site *bridge_site_new(void)
{
    bridge_site *s = PyObject_GC_New(bridge_site, site_type);
    if (!s)
        return NULL;
    memset((char *)s + sizeof s->ob_base, 0, sizeof *s - sizeof s->ob_base);
    PyObject_GC_Track(s);
    return s;
}

/* A forward that the instance had before may lead back to its module. */
static int site_traverse(PyObject *self, visitproc visit, void *arg)
{
    bridge_site *s = (bridge_site *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(s->own);
    Py_VISIT(s->record);
    return 0;
}

static int site_clear(PyObject *self)
{
    bridge_site *s = (bridge_site *)self;
    Py_CLEAR(s->own);
    Py_CLEAR(s->record);
    return 0;
}

static void site_free(PyObject *self)
{
    bridge_site *s = (bridge_site *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tn_bound_close(s->bound);
    for (Py_ssize_t i = 0; i < s->watch_count; i++) {
        bridge_watch *w = &s->watches[i];
        Py_XDECREF(w->name);
        Py_XDECREF(w->type);
        Py_XDECREF(w->forward);
        Py_XDECREF(w->names);
        Py_XDECREF(w->values);
    }
    for (Py_ssize_t i = 0; i < s->param_count; i++)
        Py_XDECREF(s->params[i].name);
    for (Py_ssize_t i = 0; i < s->role_count; i++) {
        free(s->roles[i].tensors);
        free(s->roles[i].param);
        free(s->roles[i].offset);
    }
    free(s->watches);
    free(s->params);
    free(s->roles);
    Py_XDECREF(s->module);
    Py_XDECREF(s->own);
    Py_XDECREF(s->record);
    Py_XDECREF(s->model);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- calls of one tensor that give one ---------------------------------------------------------- */

/* x as rows of width elements, in place where they lie evenly. false: they do not. */
static bool as_rows(const tn_tensor *x, int64_t width, tn_tensor *rows)
{
    int32_t last = x->ndim - 1;
    *rows = (tn_tensor){.data = x->data, .dtype = x->dtype, .ndim = 2, .shape = {1, width}, .stride = {width, 1}};
    if (width > 1 && x->stride[last] != 1)
        return false;
    int64_t next = 0; /* what a stride must be to go on from the dimension behind                       */
    for (int32_t i = last - 1; i >= 0; i--) {
        if (x->shape[i] == 1)
            continue;
        if (rows->shape[0] == 1)
            rows->stride[0] = x->stride[i];
        else if (x->stride[i] != next)
            return false;
        next = x->stride[i] * x->shape[i];
        rows->shape[0] *= x->shape[i];
    }
    return rows->stride[0] >= width || rows->shape[0] <= 1;
}

static PyObject *make_output(PyObject *x, const tn_tensor *view, const tn_tensor *rows, int64_t width)
{
    if (width == rows->shape[1] && view->stride[view->ndim - 1] == 1 && rows->stride[0] == width)
        return PyObject_CallFunctionObjArgs(torch.empty_like, x, NULL);
    PyObject *shape = PyTuple_New(view->ndim), *arguments = NULL, *names = NULL, *y = NULL;
    PyObject *dtype = PyObject_GetAttr(x, bridge_names[NAME_DTYPE]);
    bool good = shape && dtype;
    for (int32_t i = 0; good && i < view->ndim; i++) {
        PyObject *size = PyLong_FromLongLong(i + 1 < view->ndim ? view->shape[i] : width);
        good = size && PyTuple_SetItem(shape, i, size) == 0;
    }
    if (good && (arguments = PyTuple_Pack(1, shape)) && (names = PyDict_New()) &&
        PyDict_SetItem(names, bridge_names[NAME_DTYPE], dtype) == 0)
        y = PyObject_Call(torch.empty, arguments, names);
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    Py_XDECREF(arguments);
    Py_XDECREF(names);
    return y;
}

enum { ROWS_AT_ONCE = 4096 };

static tn_status forward_rows(bridge_site *s, tn_tensor in, tn_tensor out, tn_error *err)
{
    int64_t left = in.shape[0];
    tn_status status = TN_OK;
    while (left > 0 && status == TN_OK) {
        in.shape[0] = out.shape[0] = left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
        status = tn_bound_forward(s->bound, &in, 1, &out, 1, err);
        in.data = (char *)in.data + (size_t)(in.shape[0] * in.stride[0]) * tn_dtype_size(in.dtype);
        out.data = (char *)out.data + (size_t)(out.shape[0] * out.stride[0]) * tn_dtype_size(out.dtype);
        left -= in.shape[0];
    }
    return status;
}

static bool is_meta(PyObject *x)
{
    PyObject *meta = PyObject_GetAttrString(x, "is_meta");
    bool is = meta == Py_True;
    Py_XDECREF(meta);
    PyErr_Clear();
    return is;
}

/* Is x an input of the site? false: s->why says why not, or an exception is raised. */
static bool take_input(bridge_site *s, PyObject *x, tn_tensor *view)
{
    const char *why;
    bool good = bridge_view(x, view, &why);
    if (!good && is_meta(x))
        errors_fail(TN_E_USAGE, "the input", "is on the device meta and has no values, and the module has");
    else if (!good)
        snprintf(s->why, sizeof s->why, "the input %s", why);
    else if (view->dtype != s->dtype || view->ndim < 1 || view->shape[view->ndim - 1] != s->in_width)
        snprintf(s->why, sizeof s->why, "the input has another type or width than the site");
    else
        return true;
    return false;
}

/* The result of x; NULL: an exception, or, without one, s->why says why it is left to torch. */
static PyObject *compute(bridge_site *s, PyObject *x, tn_tensor view)
{
    tn_tensor in, out, whole;
    const char *why;
    PyObject *dense = NULL;
    if (!as_rows(&view, s->in_width, &in)) {
        if (!(dense = PyObject_CallMethodObjArgs(x, bridge_names[NAME_CONTIGUOUS], NULL)))
            return NULL;
        if (!bridge_view(dense, &view, &why) || !as_rows(&view, s->in_width, &in)) {
            Py_DECREF(dense);
            snprintf(s->why, sizeof s->why, "the input's strides");
            return NULL;
        }
    }
    PyObject *y = make_output(dense ? dense : x, &view, &in, s->out_width);
    if (y && bridge_view(y, &whole, &why) && as_rows(&whole, s->out_width, &out)) {
        tn_error err = TN_ERROR_INIT;
        tn_status status;
        Py_BEGIN_ALLOW_THREADS;
        status = forward_rows(s, in, out, &err);
        Py_END_ALLOW_THREADS;
        if (status != TN_OK) {
            errors_raise(&err);
            Py_CLEAR(y);
        }
    } else if (y) {
        Py_CLEAR(y);
        snprintf(s->why, sizeof s->why, "torch gave a result of its own form");
    }
    Py_XDECREF(dense);
    return y;
}

/* 1: x or a parameter wants a gradient; 0: none; -1: an exception. */
static int wants_gradients(const bridge_site *s, PyObject *x)
{
    for (Py_ssize_t i = -1; i < s->param_count; i++) {
        PyObject *wants = PyObject_GetAttr(i < 0 ? x : s->params[i].tensor, bridge_names[NAME_REQUIRES_GRAD]);
        Py_XDECREF(wants);
        if (!wants || wants == Py_True)
            return wants ? 1 : -1;
    }
    return 0;
}

/* record(site, x, *parameters) */
static PyObject *recorded(bridge_site *s, PyObject *x)
{
    PyObject *arguments = PyTuple_New(2 + s->param_count);
    if (!arguments)
        return NULL;
    Py_INCREF(s);
    Py_INCREF(x);
    PyTuple_SetItem(arguments, 0, (PyObject *)s);
    PyTuple_SetItem(arguments, 1, x);
    for (Py_ssize_t i = 0; i < s->param_count; i++) {
        Py_INCREF(s->params[i].tensor);
        PyTuple_SetItem(arguments, 2 + i, s->params[i].tensor);
    }
    PyObject *y = PyObject_Call(s->record, arguments, NULL);
    Py_DECREF(arguments);
    return y;
}

/* Are calls of so many tokens left to torch, which is faster with them? */
static bool is_slower(bridge_site *s, const tn_tensor *view)
{
    int64_t tokens = s->not_at && s->in_width > 0 ? tn_tensor_count(view) / s->in_width : 0;
    if (tokens < 1 || !(s->not_at & (tokens == 1 ? 1U : tokens < BRIDGE_MANY ? 2U : 4U)))
        return false;
    snprintf(s->why, sizeof s->why, "torch is not slower with %s",
             tokens == 1            ? "one token"
             : tokens < BRIDGE_MANY ? "few tokens"
                                    : "many tokens");
    return true;
}

/* params(): those that the last look found. */
static PyObject *site_params(PyObject *self, PyObject *none)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *all = PyTuple_New(s->param_count);
    (void)none;
    for (Py_ssize_t i = 0; all && i < s->param_count; i++)
        PyTuple_SetItem(all, i, Py_NewRef(s->params[i].tensor ? s->params[i].tensor : Py_None));
    return all;
}

static PyObject *perform(bridge_site *s, PyObject *module, PyObject *x)
{
    const char *mode = bridge_torch_mode();
    if (mode) {
        snprintf(s->why, sizeof s->why, "%s", mode);
        return NULL;
    }
    tn_tensor view;
    if (!take_input(s, x, &view) || is_slower(s, &view) || !bridge_look(s, module))
        return NULL;
    PyObject *enabled = PyObject_CallNoArgs(torch.grad_enabled);
    Py_XDECREF(enabled);
    if (!enabled)
        return NULL;
    int wants = enabled == Py_True ? wants_gradients(s, x) : 0;
    if (wants == 0) { /* another thread may put others in their place meanwhile                       */
        PyObject *held = site_params((PyObject *)s, NULL), *y = held ? compute(s, x, view) : NULL;
        Py_XDECREF(held);
        return y;
    }
    if (wants > 0 && s->record)
        return recorded(s, x);
    if (wants > 0)
        snprintf(s->why, sizeof s->why, "the call is recorded for gradients, and kernels were applied for inference");
    return NULL;
}

/* The forward that the module would have without us. */
static PyObject *to_torch(bridge_site *s, PyObject *module, PyObject *arguments, PyObject *names)
{
    if (s->own)
        return PyObject_Call(s->own, arguments, names);
    PyObject *forward = PyObject_GetAttr((PyObject *)Py_TYPE(module), bridge_names[NAME_FORWARD]);
    Py_ssize_t count = PyTuple_Size(arguments);
    PyObject *all = forward ? PyTuple_New(count + 1) : NULL, *result = NULL;
    if (all) {
        Py_INCREF(module);
        PyTuple_SetItem(all, 0, module);
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *item = PyTuple_GetItem(arguments, i);
            Py_INCREF(item);
            PyTuple_SetItem(all, i + 1, item);
        }
        result = PyObject_Call(forward, all, names);
    }
    Py_XDECREF(forward);
    Py_XDECREF(all);
    return result;
}

static PyObject *site_call(PyObject *self, PyObject *arguments, PyObject *names)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *module = PyWeakref_GetObject(s->module), *y = NULL;
    if (!module || module == Py_None)
        return module ? PyErr_Format(PyExc_ReferenceError, "the module of this forward is gone") : NULL;
    if (s->off)
        return to_torch(s, module, arguments, names);
    Py_INCREF(module);
    if (PyTuple_Size(arguments) == 1 && (!names || PyDict_Size(names) == 0))
        y = perform(s, module, PyTuple_GetItem(arguments, 0));
    else
        snprintf(s->why, sizeof s->why, "was called with other arguments than one tensor");
    if (y) {
        s->calls++;
    } else if (!PyErr_Occurred()) {
        s->eager_calls++;
        y = to_torch(s, module, arguments, names);
    }
    Py_DECREF(module);
    return y;
}

static PyObject *site_run(PyObject *self, PyObject *x)
{
    bridge_site *s = (bridge_site *)self;
    tn_tensor view;
    PyObject *y = take_input(s, x, &view) ? compute(s, x, view) : NULL;
    if (!y && !PyErr_Occurred())
        errors_fail(TN_E_USAGE, "", "%s", s->why);
    return y;
}

/* ---- what Python sees ---------------------------------------------------------------------------- */

static PyObject *site_look(PyObject *self, PyObject *none)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *module = PyWeakref_GetObject(s->module);
    (void)none;
    const char *mode = bridge_torch_mode();
    if (mode)
        return PyUnicode_FromString(mode);
    if (module && module != Py_None && bridge_look(s, module))
        return Py_NewRef(Py_None);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(s->why);
}

static PyObject *site_count(PyObject *self, PyObject *why)
{
    bridge_site *s = (bridge_site *)self;
    if (why == Py_None) {
        s->calls++;
    } else {
        const char *text = PyUnicode_AsUTF8AndSize(why, NULL);
        if (!text)
            return NULL;
        s->eager_calls++;
        snprintf(s->why, sizeof s->why, "%s", text);
    }
    return Py_NewRef(Py_None);
}

static PyObject *site_kernel(PyObject *self, PyObject *tokens)
{
    long long count = PyLong_AsLongLong(tokens);
    const char *id = PyErr_Occurred() ? NULL : tn_bound_kernel(((bridge_site *)self)->bound, count);
    return PyErr_Occurred() ? NULL : id ? PyUnicode_FromString(id) : Py_NewRef(Py_None);
}

static PyObject *get_calls(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((bridge_site *)self)->calls);
}

static PyObject *get_eager_calls(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((bridge_site *)self)->eager_calls);
}

static PyObject *get_why(PyObject *self, void *closure)
{
    (void)closure;
    return ((bridge_site *)self)->eager_calls ? PyUnicode_FromString(((bridge_site *)self)->why) : Py_NewRef(Py_None);
}

static PyObject *get_in_width(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((bridge_site *)self)->in_width);
}

static PyObject *get_dtype(PyObject *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(tn_dtype_name(((bridge_site *)self)->dtype));
}

static PyObject *get_off(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((bridge_site *)self)->off);
}

static int set_off(PyObject *self, PyObject *value, void *closure)
{
    (void)closure;
    int off = value ? PyObject_IsTrue(value) : 1;
    ((bridge_site *)self)->off = off == 1;
    return off < 0 ? -1 : 0;
}

/* A bit each for calls of one token, of few and of many. */
static int set_not_at(PyObject *self, PyObject *value, void *closure)
{
    (void)closure;
    unsigned long bits = value ? PyLong_AsUnsignedLong(value) : 0;
    if (PyErr_Occurred())
        return -1;
    ((bridge_site *)self)->not_at = (unsigned)bits;
    return 0;
}

static int set_record(PyObject *self, PyObject *value, void *closure)
{
    bridge_site *s = (bridge_site *)self;
    (void)closure;
    Py_XDECREF(s->record);
    s->record = value && value != Py_None ? Py_NewRef(value) : NULL;
    return 0;
}

static int set_own(PyObject *self, PyObject *value, void *closure)
{
    bridge_site *s = (bridge_site *)self;
    (void)closure;
    Py_XDECREF(s->own);
    s->own = value && value != Py_None ? Py_NewRef(value) : NULL;
    return 0;
}

static PyMethodDef methods[] = {
    {"run", site_run, METH_O, "The result of x, without a look."},
    {"forward", bridge_forward, METH_VARARGS, "(ins, outs): performs the operation."},
    {"backward", bridge_backward, METH_VARARGS, "(ins, gradients of outs, of ins, of params)."},
    {"point", bridge_point_at, METH_O, "Takes parameters from these tensors."},
    {"compare", bridge_compare, METH_VARARGS, "(ins, outs, references): in units of the kernel's tolerance."},
    {"compare_gradients", bridge_compare_gradients, METH_VARARGS, "The same of gradients."},
    {"look", site_look, METH_NOARGS, "Why a call would be left to torch, or None."},
    {"params", site_params, METH_NOARGS, "Parameters that the last look found."},
    {"facts", bridge_facts, METH_NOARGS, "What the site means, as far as calls are compared with it."},
    {"count", site_count, METH_O, "Counts a call: None, or why it was left to torch."},
    {"kernel", site_kernel, METH_O, "The kernel of calls of so many tokens, or None."},
    {0}};

static PyGetSetDef members[] = {{"calls", get_calls, NULL, NULL, NULL},
                                {"eager_calls", get_eager_calls, NULL, NULL, NULL},
                                {"why_eager", get_why, NULL, NULL, NULL},
                                {"in_width", get_in_width, NULL, NULL, NULL},
                                {"dtype", get_dtype, NULL, NULL, NULL},
                                {"whole", bridge_whole, NULL, NULL, NULL},
                                {"off", get_off, set_off, NULL, NULL},
                                {"not_at", NULL, set_not_at, NULL, NULL},
                                {"record", NULL, set_record, NULL, NULL},
                                {"own", NULL, set_own, NULL, NULL},
                                {0}};

static PyType_Slot slots[] = {{Py_tp_doc, "A site of a live module."},
                              {Py_tp_dealloc, site_free},
                              {Py_tp_traverse, site_traverse},
                              {Py_tp_clear, site_clear},
                              {Py_tp_call, site_call},
                              {Py_tp_methods, methods},
                              {Py_tp_getset, members},
                              {0}};

static PyType_Spec spec = {"tenon._tenon.Site", sizeof(bridge_site), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

bool bridge_site_add(PyObject *module)
{
    static const char *const words[NAME_COUNT] = {
        "_modules",        "_parameters",         "_buffers",      "forward",    "_forward_hooks", "_forward_pre_hooks",
        "_backward_hooks", "_backward_pre_hooks", "requires_grad", "contiguous", "dtype"};
    for (int i = 0; i < NAME_COUNT; i++)
        if (!bridge_names[i] && !(bridge_names[i] = PyUnicode_InternFromString(words[i])))
            return false;
    site_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return site_type != NULL;
}
