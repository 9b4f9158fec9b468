/* Calls of a site that take one tensor and give one: by the kernel, or by torch's own forward. */
#include "bridge.h"

#include <stdio.h>
#include <string.h>

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
PyObject *bridge_params(PyObject *self, PyObject *none)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *all = PyTuple_New(s->param_count);
    (void)none;
    for (Py_ssize_t i = 0; all && i < s->param_count; i++)
        PyTuple_SetItem(all, i, Py_NewRef(s->params[i].tensor ? s->params[i].tensor : Py_None));
    return all;
}

void bridge_refuse(bridge_site *s, PyObject *text)
{
    const char *why = PyUnicode_AsUTF8AndSize(text, NULL);
    Py_XDECREF(s->refused);
    s->refused = Py_NewRef(text);
    snprintf(s->why, sizeof s->why, "%s", why ? why : "refused");
}

/* Does the site have a kernel still? One that was wrong in a call is taken off by the library. */
bool bridge_has_kernel(bridge_site *s, int64_t tokens)
{
    if (!s->refused && !tn_bound_kernel(s->bound, tokens)) {
        PyObject *text = PyUnicode_FromString("refused: its kernel was wrong in a call, and was taken off");
        if (text)
            bridge_refuse(s, text);
        Py_XDECREF(text);
    }
    if (s->refused)
        snprintf(s->why, sizeof s->why, "%s", PyUnicode_AsUTF8AndSize(s->refused, NULL));
    return !s->refused && !PyErr_Occurred();
}

/* Was a call of so many tokens compared, with gradients where it is recorded? If not it is now: larger(site, tokens,
 * whether it is recorded) gives None or a reason. false: s->why says why not, or an exception is raised. */
static bool is_checked(bridge_site *s, int64_t tokens, bool recorded)
{
    int64_t once = tokens < ROWS_AT_ONCE ? tokens : ROWS_AT_ONCE;
    if (!s->larger || once <= s->checked[recorded])
        return true;
    PyObject *why =
        PyObject_CallFunction(s->larger, "OLO", (PyObject *)s, (long long)once, recorded ? Py_True : Py_False);
    if (why == Py_None)
        s->checked[recorded] = once;
    else if (why)
        bridge_refuse(s, why);
    Py_XDECREF(why);
    return why == Py_None;
}

PyObject *bridge_is_ready(PyObject *self, PyObject *tokens)
{
    bridge_site *s = (bridge_site *)self;
    long long count = PyLong_AsLongLong(tokens);
    bool ready = !PyErr_Occurred() && !s->off && bridge_has_kernel(s, count) && is_checked(s, count, true);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(ready);
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
    int64_t tokens = s->in_width > 0 ? tn_tensor_count(&view) / s->in_width : 0;
    if (!bridge_has_kernel(s, tokens))
        return NULL;
    PyObject *enabled = PyObject_CallNoArgs(torch.grad_enabled);
    Py_XDECREF(enabled);
    if (!enabled)
        return NULL;
    int wants = enabled == Py_True ? wants_gradients(s, x) : 0;
    if (wants >= 0 && (wants == 0 || s->record) && !is_checked(s, tokens, wants > 0))
        return NULL;
    if (wants == 0) { /* another thread may put others in their place meanwhile                       */
        PyObject *held = bridge_params((PyObject *)s, NULL), *y = held ? compute(s, x, view) : NULL;
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

PyObject *bridge_call(PyObject *self, PyObject *arguments, PyObject *names)
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

PyObject *bridge_run(PyObject *self, PyObject *x)
{
    bridge_site *s = (bridge_site *)self;
    tn_tensor view;
    PyObject *y = take_input(s, x, &view) ? compute(s, x, view) : NULL;
    if (!y && !PyErr_Occurred())
        errors_fail(TN_E_USAGE, "", "%s", s->why);
    return y;
}
