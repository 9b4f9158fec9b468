/* The look that each call of a site begins with: is what computes still what was bound? */
#include "bridge.h"

#include <stdio.h>
#include <string.h>

PyObject *bridge_names[NAME_COUNT];

/* module.__dict__, which the module keeps alive; NULL with an exception. */
static PyObject *dict_of(PyObject *module)
{
    PyObject *dict = PyObject_GenericGetDict(module, NULL);
    Py_XDECREF(dict);
    return dict;
}

static const char *text_of(PyObject *object, const char *otherwise)
{
    const char *text = object ? PyUnicode_AsUTF8AndSize(object, NULL) : NULL;
    if (!text)
        PyErr_Clear();
    return text ? text : otherwise;
}

static const char *name_of(const bridge_watch *w)
{
    return text_of(w->name, "the module");
}

static bool fail(bridge_site *s, const bridge_watch *w, const char *what, const char *name)
{
    PyErr_Clear();
    snprintf(s->why, sizeof s->why, "%.80s: %.80s%s%.80s", name_of(w), name ? name : "", name ? " " : "", what);
    return false;
}

static bool has_hooks(PyObject *dict)
{
    for (int i = NAME_FORWARD_HOOKS; i <= NAME_BACKWARD_PRE_HOOKS; i++) {
        PyObject *hooks = PyDict_GetItem(dict, bridge_names[i]);
        if (hooks && PyDict_Size(hooks) > 0)
            return true;
    }
    return false;
}

static bool same_attributes(bridge_site *s, const bridge_watch *w, PyObject *dict)
{
    Py_ssize_t count = w->names ? PyTuple_Size(w->names) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GetItem(w->names, i), *was = PyTuple_GetItem(w->values, i);
        PyObject *is = PyDict_GetItem(dict, name);
        if (is == was)
            continue;
        if (!is || Py_TYPE(is) != Py_TYPE(was) || PyObject_RichCompareBool(is, was, Py_EQ) != 1)
            return fail(s, w, "has another value", text_of(name, "an attribute"));
    }
    return true;
}

static bool look_at_module(bridge_site *s, bridge_watch *w, PyObject *dict)
{
    if (Py_TYPE(w->module) != w->type)
        return fail(s, w, "is of another class", NULL);
    PyObject *forward = PyObject_GetAttr((PyObject *)w->type, bridge_names[NAME_FORWARD]);
    Py_XDECREF(forward);
    if (forward != w->forward)
        return fail(s, w, "has another forward in its class", NULL);
    if (w->parent >= 0 && PyDict_GetItem(dict, bridge_names[NAME_FORWARD]))
        return fail(s, w, "has a forward of its own", NULL);
    if (w->parent >= 0 && has_hooks(dict))
        return fail(s, w, "has hooks", NULL);
    PyObject *parameters = PyDict_GetItem(dict, bridge_names[NAME_PARAMETERS]);
    if (!parameters || PyDict_Size(parameters) != w->parameters)
        return fail(s, w, "has other parameters", NULL);
    return same_attributes(s, w, dict);
}

bool bridge_point(bridge_site *s, Py_ssize_t param, const tn_tensor *view, tn_error *err)
{
    s->params[param].seen.data = view->data;
    for (Py_ssize_t i = 0; i < s->role_count; i++) {
        bridge_role *r = &s->roles[i];
        bool moved = false;
        for (int64_t j = 0; j < r->count; j++)
            if (r->param[j] == param) {
                r->tensors[j].data = (char *)view->data + r->offset[j];
                moved = true;
            }
        if (moved && tn_bound_point(s->bound, r->role, r->tensors, r->count, err) != TN_OK)
            return false;
    }
    return true;
}

static bool same_form(const tn_tensor *a, const tn_tensor *b)
{
    size_t bytes = (size_t)a->ndim * sizeof *a->shape;
    return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, bytes) &&
           !memcmp(a->stride, b->stride, bytes);
}

static bool look_at_param(bridge_site *s, Py_ssize_t number)
{
    bridge_param *p = &s->params[number];
    const bridge_watch *w = &s->watches[p->watch];
    const char *name = text_of(p->name, "a parameter"), *why;
    PyObject *dict = dict_of(w->module);
    PyObject *all = dict ? PyDict_GetItem(dict, bridge_names[p->buffer ? NAME_BUFFERS : NAME_PARAMETERS]) : NULL;
    tn_tensor view;
    p->tensor = all ? PyDict_GetItem(all, p->name) : NULL;
    if (!p->tensor)
        return fail(s, w, "is gone", name);
    if (!bridge_view(p->tensor, &view, &why))
        return why && fail(s, w, why, name);
    if (!same_form(&view, &p->seen))
        return fail(s, w, view.dtype != p->seen.dtype ? "has another type" : "has another shape or other strides",
                    name);
    if (view.data == p->seen.data)
        return true;
    tn_error err = TN_ERROR_INIT;
    if (bridge_point(s, number, &view, &err))
        return true;
    p->seen.data = NULL; /* so that the next look tries again                                           */
    return fail(s, w, err.message, name);
}

bool bridge_look(bridge_site *s, PyObject *module)
{
    for (Py_ssize_t i = 0; i < s->watch_count; i++) {
        bridge_watch *w = &s->watches[i];
        w->module = module;
        if (w->parent >= 0) {
            PyObject *around = dict_of(s->watches[w->parent].module);
            PyObject *inner = around ? PyDict_GetItem(around, bridge_names[NAME_MODULES]) : NULL;
            w->module = inner ? PyDict_GetItem(inner, w->name) : NULL;
            if (!w->module || w->module == Py_None)
                return fail(s, w, "is gone", NULL);
        }
        PyObject *dict = dict_of(w->module);
        if (!dict)
            return fail(s, w, "is no module", NULL);
        if (!look_at_module(s, w, dict))
            return false;
    }
    for (Py_ssize_t i = 0; i < s->param_count; i++)
        if (!look_at_param(s, i))
            return false;
    return true;
}
