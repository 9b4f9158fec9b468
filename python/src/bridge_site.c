/* A site of a live module: its calls, by a kernel or by torch's own forward. */
#include "bridge.h"

#include <limits.h>
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
    Py_VISIT(s->larger);
    return 0;
}

static int site_clear(PyObject *self)
{
    bridge_site *s = (bridge_site *)self;
    Py_CLEAR(s->own);
    Py_CLEAR(s->record);
    Py_CLEAR(s->larger);
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
    Py_XDECREF(s->larger);
    Py_XDECREF(s->refused);
    Py_XDECREF(s->model);
    PyObject_GC_Del(self);
    Py_DECREF(type);
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

static PyObject *get_out_width(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((bridge_site *)self)->out_width);
}

/* For each of the params the names that lead to it from the module: "gate_proj", "weight". */
static PyObject *get_paths(PyObject *self, void *closure)
{
    const bridge_site *s = (bridge_site *)self;
    PyObject *all = PyList_New(0);
    (void)closure;
    for (Py_ssize_t i = 0; all && i < s->param_count; i++) {
        PyObject *path = PyList_New(0);
        bool good = path && PyList_Append(path, s->params[i].name) == 0;
        for (Py_ssize_t at = s->params[i].watch; good && at > 0; at = s->watches[at].parent)
            good = PyList_Insert(path, 0, s->watches[at].name) == 0;
        if (!good || PyList_Append(all, path) != 0)
            Py_CLEAR(all);
        Py_XDECREF(path);
    }
    return all;
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

/* Tokens of the largest call whose gradients were compared, or need not be. */
static PyObject *get_checked(PyObject *self, void *closure)
{
    const bridge_site *s = (bridge_site *)self;
    (void)closure;
    return PyLong_FromLongLong(s->larger ? s->checked[1] : LLONG_MAX);
}

static PyObject *get_refused(PyObject *self, void *closure)
{
    bridge_site *s = (bridge_site *)self;
    (void)closure;
    if (!bridge_has_kernel(s, 1) && PyErr_Occurred())
        return NULL;
    return Py_NewRef(s->refused ? s->refused : Py_None);
}

static int set_refused(PyObject *self, PyObject *value, void *closure)
{
    (void)closure;
    if (value && PyUnicode_Check(value))
        bridge_refuse((bridge_site *)self, value);
    return 0;
}

/* (tokens that were compared, what compares more) */
static int set_larger(PyObject *self, PyObject *value, void *closure)
{
    bridge_site *s = (bridge_site *)self;
    long long tokens;
    PyObject *larger;
    (void)closure;
    if (!value || !PyArg_ParseTuple(value, "LO", &tokens, &larger))
        return -1;
    Py_XDECREF(s->larger);
    s->larger = Py_NewRef(larger);
    s->checked[0] = s->checked[1] = tokens;
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
    {"run", bridge_run, METH_O, "The result of x, without a look."},
    {"forward", bridge_forward, METH_VARARGS, "(ins, outs): performs the operation."},
    {"backward", bridge_backward, METH_VARARGS, "(ins, gradients of outs, of ins, of params)."},
    {"point", bridge_point_at, METH_O, "Takes parameters from these tensors."},
    {"compare", bridge_compare, METH_VARARGS, "(ins, outs, references): in units of the kernel's tolerance."},
    {"compare_gradients", bridge_compare_gradients, METH_VARARGS, "The same of gradients."},
    {"unclear", bridge_unclear, METH_O, "Numbers of the rows of a call (ins) that rounding decides."},
    {"is_ready", bridge_is_ready, METH_O, "May gradients of so many tokens be computed by the kernel?"},
    {"look", site_look, METH_NOARGS, "Why a call would be left to torch, or None."},
    {"params", bridge_params, METH_NOARGS, "Parameters that the last look found."},
    {"facts", bridge_facts, METH_NOARGS, "What the site means, as far as calls are compared with it."},
    {"count", site_count, METH_O, "Counts a call: None, or why it was left to torch."},
    {"kernel", site_kernel, METH_O, "The kernel of calls of so many tokens, or None."},
    {0}};

static PyGetSetDef members[] = {{"calls", get_calls, NULL, NULL, NULL},
                                {"eager_calls", get_eager_calls, NULL, NULL, NULL},
                                {"why_eager", get_why, NULL, NULL, NULL},
                                {"in_width", get_in_width, NULL, NULL, NULL},
                                {"out_width", get_out_width, NULL, NULL, NULL},
                                {"paths", get_paths, NULL, NULL, NULL},
                                {"dtype", get_dtype, NULL, NULL, NULL},
                                {"whole", bridge_whole, NULL, NULL, NULL},
                                {"off", get_off, set_off, NULL, NULL},
                                {"not_at", NULL, set_not_at, NULL, NULL},
                                {"record", NULL, set_record, NULL, NULL},
                                {"larger", NULL, set_larger, NULL, NULL},
                                {"checked", get_checked, NULL, NULL, NULL},
                                {"refused", get_refused, set_refused, NULL, NULL},
                                {"own", NULL, set_own, NULL, NULL},
                                {0}};

static PyType_Slot slots[] = {{Py_tp_doc, "A site of a live module."},
                              {Py_tp_dealloc, site_free},
                              {Py_tp_traverse, site_traverse},
                              {Py_tp_clear, site_clear},
                              {Py_tp_call, bridge_call},
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
