/* Calls of a site with any tensors: of several inputs, of gradients, and for comparing. */
#include "bridge.h"

#include <stdlib.h>

/* Views of a tuple of tensors, None for those that are not there. */
static bool take_all(PyObject *tuple, tn_tensor *views, int32_t *count)
{
    Py_ssize_t size = PyTuple_Size(tuple);
    const char *why;
    if (size < 0 || size > TN_CALL_TENSORS) {
        PyErr_SetString(PyExc_ValueError, "a call has a tuple of at most 8 tensors");
        return false;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        views[i] = (tn_tensor){0};
        if (item != Py_None && !bridge_view(item, &views[i], &why)) {
            errors_fail(TN_E_USAGE, "a tensor", "%s", why ? why : "is none");
            return false;
        }
    }
    *count = (int32_t)size;
    return true;
}

PyObject *bridge_forward(PyObject *self, PyObject *arguments)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *ins, *outs;
    tn_tensor in[TN_CALL_TENSORS], out[TN_CALL_TENSORS];
    int32_t in_count, out_count;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &ins, &PyTuple_Type, &outs) ||
        !take_all(ins, in, &in_count) || !take_all(outs, out, &out_count))
        return NULL;
    tn_error err = TN_ERROR_INIT;
    tn_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = tn_bound_forward(s->bound, in, in_count, out, out_count, &err);
    Py_END_ALLOW_THREADS;
    if (status != TN_OK)
        return errors_raise(&err);
    return Py_NewRef(Py_None);
}

/* Gradients of a call, with what is in Python's hands for each of the site's params: a tensor like it, or None. */
typedef struct gradients {
    tn_grads grads;
    tn_tensor *views; /* of roles' gradients, one behind the other                                       */
} gradients;

static bool take_gradients(const bridge_site *s, PyObject *outs, PyObject *ins, PyObject *params, gradients *g)
{
    int32_t count;
    int64_t total = 0, at = 0;
    for (Py_ssize_t i = 0; i < s->role_count; i++)
        total += s->roles[i].count;
    *g = (gradients){.grads.size = sizeof g->grads, .views = calloc((size_t)total + 1, sizeof *g->views)};
    if (!g->views)
        return PyErr_NoMemory();
    if (!take_all(outs, g->grads.out, &count) || !take_all(ins, g->grads.in, &count))
        return false;
    if (PyTuple_Size(params) != s->param_count) {
        PyErr_SetString(PyExc_ValueError, "one gradient or None for each parameter");
        return false;
    }
    for (Py_ssize_t i = 0; i < s->role_count; i++) {
        const bridge_role *r = &s->roles[i];
        tn_tensor *views = &g->views[at];
        bool wanted = true;
        at += r->count;
        for (int64_t j = 0; wanted && j < r->count; j++) {
            PyObject *gradient = PyTuple_GetItem(params, r->param[j]);
            tn_tensor whole;
            const char *why;
            wanted = gradient != Py_None;
            if (wanted && !bridge_view(gradient, &whole, &why)) {
                errors_fail(TN_E_USAGE, "a gradient", "%s", why ? why : "is none");
                return false;
            }
            views[j] = r->tensors[j];
            views[j].data = wanted ? (char *)whole.data + r->offset[j] : NULL;
        }
        if (wanted)
            g->grads.param[r->role] = (tn_param){.tensors = views, .count = r->count};
    }
    return true;
}

/* backward(ins, gradients of outs, of ins, of params) */
PyObject *bridge_backward(PyObject *self, PyObject *arguments)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *ins, *gouts, *gins, *gparams;
    tn_tensor in[TN_CALL_TENSORS];
    int32_t in_count;
    gradients g = {0};
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!", &PyTuple_Type, &ins, &PyTuple_Type, &gouts, &PyTuple_Type, &gins,
                          &PyTuple_Type, &gparams) ||
        !take_all(ins, in, &in_count))
        return NULL;
    bool good = take_gradients(s, gouts, gins, gparams, &g);
    if (good) {
        tn_error err = TN_ERROR_INIT;
        tn_status status;
        Py_BEGIN_ALLOW_THREADS;
        status = tn_bound_backward(s->bound, in, in_count, &g.grads, &err);
        Py_END_ALLOW_THREADS;
        good = status == TN_OK || errors_raise(&err);
    }
    free(g.views);
    return good ? Py_NewRef(Py_None) : NULL;
}

/* point(params): at the memory of these, as they were when a call was recorded. */
PyObject *bridge_point_at(PyObject *self, PyObject *params)
{
    bridge_site *s = (bridge_site *)self;
    if (PyTuple_Size(params) != s->param_count)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "as many tensors as the site has");
    for (Py_ssize_t i = 0; i < s->param_count; i++) {
        tn_tensor view;
        const char *why;
        tn_error err = TN_ERROR_INIT;
        if (!bridge_view(PyTuple_GetItem(params, i), &view, &why))
            return errors_fail(TN_E_USAGE, "a parameter", "%s", why ? why : "is none");
        if (view.data != s->params[i].seen.data && !bridge_point(s, i, &view, &err))
            return errors_raise(&err);
    }
    return Py_NewRef(Py_None);
}

/* ---- comparing ----------------------------------------------------------------------------------- */

/* compare(ins, outs, references): in units of the kernel's tolerance. */
PyObject *bridge_compare(PyObject *self, PyObject *arguments)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *ins, *outs, *wants;
    tn_tensor in[TN_CALL_TENSORS], out[TN_CALL_TENSORS], want[TN_CALL_TENSORS];
    int32_t in_count, out_count, want_count;
    double units = 0;
    tn_error err = TN_ERROR_INIT;
    if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyTuple_Type, &ins, &PyTuple_Type, &outs, &PyTuple_Type, &wants) ||
        !take_all(ins, in, &in_count) || !take_all(outs, out, &out_count) || !take_all(wants, want, &want_count))
        return NULL;
    if (out_count != want_count)
        return PyErr_Format(PyExc_ValueError, "one reference for each result");
    if (tn_bound_compare(s->bound, in, in_count, out, want, out_count, &units, &err) != TN_OK)
        return errors_raise(&err);
    return PyFloat_FromDouble(units);
}

/* compare_gradients(ins, (outs, ins, params), (outs, ins, params)) */
PyObject *bridge_compare_gradients(PyObject *self, PyObject *arguments)
{
    bridge_site *s = (bridge_site *)self;
    PyObject *ins, *out[2], *in[2], *params[2];
    tn_tensor inputs[TN_CALL_TENSORS];
    int32_t in_count;
    gradients got = {0}, want = {0};
    double units = 0;
    tn_error err = TN_ERROR_INIT;
    if (!PyArg_ParseTuple(arguments, "O!(O!O!O!)(O!O!O!)", &PyTuple_Type, &ins, &PyTuple_Type, &out[0], &PyTuple_Type,
                          &in[0], &PyTuple_Type, &params[0], &PyTuple_Type, &out[1], &PyTuple_Type, &in[1],
                          &PyTuple_Type, &params[1]) ||
        !take_all(ins, inputs, &in_count))
        return NULL;
    bool good = take_gradients(s, out[0], in[0], params[0], &got) && take_gradients(s, out[1], in[1], params[1], &want);
    if (good && tn_bound_compare_grads(s->bound, inputs, in_count, &got.grads, &want.grads, &units, &err) != TN_OK)
        good = errors_raise(&err);
    free(got.views);
    free(want.views);
    return good ? PyFloat_FromDouble(units) : NULL;
}

/* unclear(ins): numbers of the rows of ins[0] that cannot be compared. */
PyObject *bridge_unclear(PyObject *self, PyObject *ins)
{
    bridge_site *s = (bridge_site *)self;
    tn_tensor in[TN_CALL_TENSORS] = {0};
    int32_t in_count;
    if (!PyTuple_Check(ins) || !take_all(ins, in, &in_count))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a tuple of tensors");
    int64_t width = in[0].ndim > 0 ? in[0].shape[in[0].ndim - 1] : 0;
    int64_t rows = width > 0 ? tn_tensor_count(&in[0]) / width : 0;
    bool *unclear = calloc((size_t)rows + 1, sizeof *unclear);
    tn_error err = TN_ERROR_INIT;
    tn_status status;
    if (!unclear)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS;
    status = tn_bound_unclear(s->bound, in, in_count, unclear, rows, &err);
    Py_END_ALLOW_THREADS;
    PyObject *list = status == TN_OK ? PyList_New(0) : errors_raise(&err);
    for (int64_t i = 0; list && i < rows; i++) {
        PyObject *number = unclear[i] ? PyLong_FromLongLong(i) : NULL;
        if (unclear[i] && (!number || PyList_Append(list, number) != 0))
            Py_CLEAR(list);
        Py_XDECREF(number);
    }
    free(unclear);
    return list;
}

/* ---- what callers know of it ------------------------------------------------------------------------ */

/* For each of the params: does the site use all of it? */
PyObject *bridge_whole(PyObject *self, void *closure)
{
    const bridge_site *s = (bridge_site *)self;
    PyObject *all = PyTuple_New(s->param_count);
    (void)closure;
    for (Py_ssize_t i = 0; all && i < s->param_count; i++) {
        int64_t used = 0;
        for (Py_ssize_t r = 0; r < s->role_count; r++)
            for (int64_t j = 0; j < s->roles[r].count; j++)
                if (s->roles[r].param[j] == i)
                    used += tn_tensor_count(&s->roles[r].tensors[j]);
        PyTuple_SetItem(all, i, PyBool_FromLong(used == tn_tensor_count(&s->params[i].seen)));
    }
    return all;
}

/* Which of the params the scores of experts are made of: a number, or None. */
static PyObject *find_router(const bridge_site *s)
{
    for (Py_ssize_t i = 0; i < s->role_count; i++)
        if (s->roles[i].role == TN_ROLE_ROUTER)
            return PyLong_FromSsize_t(s->roles[i].param[0]);
    return Py_NewRef(Py_None);
}

/* What the site means, as far as calls are compared with it. */
PyObject *bridge_facts(PyObject *self, PyObject *none)
{
    const bridge_site *s = (bridge_site *)self;
    const tn_site *site = tn_bound_site(s->bound);
    (void)none;
    return Py_BuildValue("{s:d, s:d, s:L, s:L, s:O, s:s, s:N}", "scale", site->num[TN_NUM_SCALE], "softcap",
                         site->num[TN_NUM_SOFTCAP], "window", (long long)site->dim[TN_DIM_WINDOW], "chunk",
                         (long long)site->dim[TN_DIM_CHUNK], "sinks",
                         site->param[TN_ROLE_SINKS].count > 0 ? Py_True : Py_False, "rope",
                         tn_axis_value_name(TN_AXIS_ROPE, site->meaning[TN_AXIS_ROPE]), "router", find_router(s));
}
