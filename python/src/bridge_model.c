/* A model over the parameters of a live torch model: planning, applying, and the sites that are bound to its modules.
 */
#include "bridge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PyTypeObject *borrowed_type;

/* ---- borrowing ----------------------------------------------------------------------------------- */

static size_t bytes_of(const tn_tensor *t)
{
    return (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
}

/* Names and views of what is lent, as tn_model_borrow takes them. */
static bool take_lent(PyObject *names, PyObject *tensors, const char ***names_out, tn_tensor **views)
{
    Py_ssize_t count = PyTuple_Size(names);
    const char *why;
    if (count < 0 || PyTuple_Size(tensors) != count) {
        PyErr_SetString(PyExc_ValueError, "one name for each tensor");
        return false;
    }
    *names_out = calloc((size_t)count + 1, sizeof **names_out);
    *views = calloc((size_t)count + 1, sizeof **views);
    if (!*names_out || !*views)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!((*names_out)[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), NULL)))
            return false;
        if (!bridge_view(PyTuple_GetItem(tensors, i), &(*views)[i], &why)) {
            errors_fail(TN_E_USAGE, (*names_out)[i], "%s", why ? why : "is no tensor");
            return false;
        }
    }
    return true;
}

static tn_status open_borrowed(bridge_model *b, const char *config, const char **names, const tn_tensor *views,
                               const tn_model_options *options, const char *own, const char *folder, tn_error *err)
{
    b->config = tn_config_load(NULL, err);
    tn_status status = b->config ? TN_OK : err->code;
    if (status == TN_OK)
        status = folder ? tn_config_set_plugins(b->config, folder, err) : model_choose_plugins(b->config, own, err);
    /* The plain implementation is not what a kernel replaces here: calls are timed against torch (_check.py). */
    if (status == TN_OK)
        status = tn_config_set_measure(b->config, false, err);
    if (status == TN_OK)
        status = tn_scan(b->config, err);
    if (status != TN_OK)
        return status;
    b->model = tn_model_borrow(config, names, views, (size_t)b->lent_count, options, err);
    return b->model ? TN_OK : err->code;
}

/* borrow(config, names, tensors, dtype, threads, training, plugins of the package, a folder or None) */
PyObject *bridge_borrow(PyObject *module, PyObject *arguments)
{
    const char *config, *dtype, *plugins, *folder;
    PyObject *names, *tensors;
    int threads, training;
    (void)module;
    if (!bridge_torch_load() ||
        !PyArg_ParseTuple(arguments, "sO!O!sipsz", &config, &PyTuple_Type, &names, &PyTuple_Type, &tensors, &dtype,
                          &threads, &training, &plugins, &folder))
        return NULL;
    bridge_model *b = PyObject_New(bridge_model, borrowed_type);
    if (!b)
        return NULL;
    memset((char *)b + sizeof b->ob_base, 0, sizeof *b - sizeof b->ob_base);
    b->training = training;
    const char **list = NULL;
    tn_tensor *views = NULL;
    Py_ssize_t count = PyTuple_Size(names);
    tn_error err = TN_ERROR_INIT;
    bool good = take_lent(names, tensors, &list, &views) && (b->lent = calloc((size_t)count + 1, sizeof *b->lent));
    if (good) {
        const tn_model_options options = {.size = sizeof options,
                                          .dtype = dtype,
                                          .threads = threads,
                                          .training = training,
                                          .per_module = true,
                                          .weights_change = true,
                                          .partial = true};
        tn_status status;
        b->lent_count = count;
        for (Py_ssize_t i = 0; i < count; i++)
            b->lent[i] = (bridge_lent){.data = views[i].data, .bytes = bytes_of(&views[i])};
        Py_BEGIN_ALLOW_THREADS;
        status = open_borrowed(b, config, list, views, &options, plugins, folder, &err);
        Py_END_ALLOW_THREADS;
        good = status == TN_OK || errors_raise(&err);
    }
    free(list);
    free(views);
    if (!good)
        Py_CLEAR(b);
    return (PyObject *)b;
}

static void borrowed_free(PyObject *self)
{
    bridge_model *b = (bridge_model *)self;
    PyTypeObject *type = Py_TYPE(self);
    tn_report_free(b->report);
    tn_model_close(b->model);
    tn_config_free(b->config);
    free(b->lent);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- plans ---------------------------------------------------------------------------------------- */

/* A list of what make gives; NULL: an exception. */
static PyObject *list_of(size_t count, PyObject *(*make)(const tn_report *, size_t), const tn_report *report)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < count && list; i++) {
        PyObject *item = make(report, i);
        if (!item || PyList_Append(list, item) != 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *verdict_of(const tn_verdict *v)
{
    return Py_BuildValue("(ssOO)", v->kernel, v->reason, v->taken ? Py_True : Py_False,
                         v->refused ? Py_True : Py_False);
}

static PyObject *site_of(const tn_report *report, size_t index)
{
    const tn_site_report *s = report->sites[index];
    PyObject *verdicts = PyList_New(0);
    for (size_t i = 0; i < s->verdict_count && verdicts; i++) {
        PyObject *verdict = verdict_of(s->verdicts[i]);
        if (!verdict || PyList_Append(verdicts, verdict) != 0)
            Py_CLEAR(verdicts);
        Py_XDECREF(verdict);
    }
    return verdicts ? Py_BuildValue("(sssLszN)", tn_op_name(s->site->op), s->site->path, s->site->class_name,
                                    (long long)s->site->op, s->kernel ? s->kernel : "", s->covered_by, verdicts)
                    : NULL;
}

static PyObject *note_of(const tn_report *report, size_t index)
{
    return PyUnicode_FromString(report->notes[index]);
}

static PyObject *kernel_of(const tn_report *report, size_t index)
{
    const tn_kernel_report *k = report->kernels[index];
    return Py_BuildValue("(sLs)", k->kernel, (long long)k->sites, k->reason);
}

static PyObject *told(bridge_model *b, tn_report *report)
{
    tn_report_free(b->report);
    b->report = report;
    PyObject *sites = list_of(report->site_count, site_of, report);
    PyObject *notes = sites ? list_of(report->note_count, note_of, report) : NULL;
    PyObject *kernels = notes ? list_of(report->kernel_count, kernel_of, report) : NULL;
    if (kernels)
        return Py_BuildValue("(NsNN)", sites, report->summary, notes, kernels);
    Py_XDECREF(sites);
    Py_XDECREF(notes);
    return NULL;
}

static PyObject *borrowed_plan(PyObject *self, PyObject *spec)
{
    bridge_model *b = (bridge_model *)self;
    const char *text = PyUnicode_AsUTF8AndSize(spec, NULL);
    tn_report *report;
    tn_error err = TN_ERROR_INIT;
    if (!text)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    report = tn_model_plan(b->model, b->config, text, &err);
    Py_END_ALLOW_THREADS;
    return report ? told(b, report) : errors_raise(&err);
}

static PyObject *borrowed_apply(PyObject *self, PyObject *spec)
{
    bridge_model *b = (bridge_model *)self;
    const char *text = PyUnicode_AsUTF8AndSize(spec, NULL);
    tn_report *report = NULL;
    tn_status status;
    tn_error err = TN_ERROR_INIT;
    if (!text)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = tn_apply_kernels(b->model, b->config, text, &report, &err);
    Py_END_ALLOW_THREADS;
    return status == TN_OK ? told(b, report) : errors_raise(&err);
}

/* ---- sites ----------------------------------------------------------------------------------------- */

/* watches: (parent, name, type, forward, names, values, parameters) each. */
static bool take_watches(bridge_site *s, PyObject *list)
{
    Py_ssize_t count = PyTuple_Size(list);
    s->watches = count > 0 ? calloc((size_t)count, sizeof *s->watches) : NULL;
    if (!s->watches)
        return count > 0 && PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        bridge_watch *w = &s->watches[i];
        PyObject *type;
        if (!PyArg_ParseTuple(PyTuple_GetItem(list, i), "nOOOOOn", &w->parent, &w->name, &type, &w->forward, &w->names,
                              &w->values, &w->parameters))
            return false;
        w->type = (PyTypeObject *)Py_NewRef(type);
        Py_INCREF(w->name);
        Py_INCREF(w->forward);
        Py_INCREF(w->names);
        Py_INCREF(w->values);
        s->watch_count = i + 1;
    }
    return true;
}

/* params: (number of the watch, name, whether it is a buffer, number of what was lent, tensor) each. */
static bool take_params(bridge_site *s, PyObject *list, Py_ssize_t *lent)
{
    Py_ssize_t count = PyTuple_Size(list);
    s->params = calloc((size_t)count + 1, sizeof *s->params);
    if (!s->params)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        bridge_param *p = &s->params[i];
        int buffer;
        const char *why;
        if (!PyArg_ParseTuple(PyTuple_GetItem(list, i), "nOpnO", &p->watch, &p->name, &buffer, &lent[i], &p->tensor))
            return false;
        p->buffer = buffer;
        Py_INCREF(p->name);
        s->param_count = i + 1;
        if (!bridge_view(p->tensor, &p->seen, &why)) {
            errors_fail(TN_E_USAGE, "a parameter", "%s", why ? why : "is none");
            return false;
        }
    }
    return true;
}

/* In which of the params a parameter of the site lies. */
static Py_ssize_t find_param(const bridge_site *s, const tn_tensor *t)
{
    for (Py_ssize_t i = 0; i < s->param_count; i++) {
        const char *data = s->params[i].seen.data;
        if ((const char *)t->data >= data && (const char *)t->data < data + bytes_of(&s->params[i].seen))
            return i;
    }
    return -1;
}

static bool take_role(bridge_site *s, const tn_site *site, tn_role role)
{
    const tn_param *param = &site->param[role];
    size_t count = (size_t)param->count;
    bridge_role *r = &s->roles[s->role_count++];
    *r = (bridge_role){.role = role,
                       .count = param->count,
                       .tensors = calloc(count, sizeof *r->tensors),
                       .param = calloc(count, sizeof *r->param),
                       .offset = calloc(count, sizeof *r->offset)};
    if (!r->tensors || !r->param || !r->offset)
        return PyErr_NoMemory();
    for (size_t i = 0; i < count; i++) {
        r->tensors[i] = param->tensors[i];
        r->param[i] = find_param(s, &param->tensors[i]);
        if (r->param[i] < 0) {
            errors_fail(TN_DECLINED, site->path, "its %s does not lie as the module has it", tn_role_name(role));
            return false;
        }
        r->offset[i] = (size_t)((const char *)param->tensors[i].data - (const char *)s->params[r->param[i]].seen.data);
    }
    return true;
}

static bool take_roles(bridge_site *s, const tn_site *site)
{
    s->roles = calloc(TN_ROLE_MAX, sizeof *s->roles);
    if (!s->roles)
        return PyErr_NoMemory();
    for (int role = 0; role < TN_ROLE_MAX; role++)
        if (site->param[role].count > 0 && !take_role(s, site, (tn_role)role))
            return false;
    return true;
}

static void take_widths(bridge_site *s, const tn_site *site)
{
    bool linear = site->op == TN_OP_LINEAR, norm = site->op == TN_OP_RMS_NORM || site->op == TN_OP_LAYER_NORM;
    s->in_width = site->dim[norm ? TN_DIM_WIDTH : TN_DIM_HIDDEN];
    s->out_width = linear ? site->dim[TN_DIM_OUT] : s->in_width;
    s->dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    s->op = site->op;
}

/* bind(path, op, tokens, module, watches, params) */
static PyObject *borrowed_bind(PyObject *self, PyObject *arguments)
{
    bridge_model *b = (bridge_model *)self;
    const char *path;
    long long op, tokens;
    PyObject *module, *watches, *params;
    tn_error err = TN_ERROR_INIT;
    if (!PyArg_ParseTuple(arguments, "sLLOO!O!", &path, &op, &tokens, &module, &PyTuple_Type, &watches, &PyTuple_Type,
                          &params))
        return NULL;
    Py_ssize_t *lent = calloc((size_t)PyTuple_Size(params) + 1, sizeof *lent);
    bridge_site *s = lent ? bridge_site_new() : (bridge_site *)PyErr_NoMemory();
    bool good = s && take_watches(s, watches) && take_params(s, params, lent);
    if (good) {
        s->model = (bridge_model *)Py_NewRef(b);
        s->bound = tn_site_bind(b->model, path, (tn_op)op, tokens, &err);
        good = s->bound || errors_raise(&err);
    }
    if (good) {
        const tn_site *site = tn_bound_site(s->bound);
        take_widths(s, site);
        good = take_roles(s, site) && (s->module = PyWeakref_NewRef(module, NULL));
    }
    free(lent);
    if (!good)
        Py_CLEAR(s);
    return (PyObject *)s;
}

/* ---- what Python sees ------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"plan", borrowed_plan, METH_O, "(sites, summary, notes, kernels) of a SPEC; nothing changes."},
    {"apply", borrowed_apply, METH_O, "The same, applied."},
    {"bind", borrowed_bind, METH_VARARGS, "(path, op, tokens, module, watches, params): a Site."},
    {0}};

static PyType_Slot slots[] = {{Py_tp_doc, "A model over the parameters of a live torch model."},
                              {Py_tp_dealloc, borrowed_free},
                              {Py_tp_methods, methods},
                              {0}};

static PyType_Spec spec = {"tenon._tenon.Borrowed", sizeof(bridge_model), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyObject *bridge_plugins(PyObject *module, PyObject *none)
{
    PyObject *list = PyList_New(0);
    tn_plugin_info info = {.size = sizeof info};
    (void)module, (void)none;
    for (size_t i = 0; i < tn_plugin_count() && list; i++) {
        if (tn_plugin_get(i, &info) != TN_OK)
            continue;
        PyObject *item = Py_BuildValue("(sssis)", info.file, info.name, info.version, (int)info.state, info.sha256);
        if (!item || PyList_Append(list, item) != 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

PyObject *bridge_kernels(PyObject *module, PyObject *none)
{
    tn_kernel_info **list = NULL;
    size_t count = 0;
    tn_error err = TN_ERROR_INIT;
    (void)module, (void)none;
    if (tn_kernels_available(NULL, &list, &count, &err) != TN_OK)
        return errors_raise(&err);
    PyObject *all = PyList_New(0);
    for (size_t i = 0; i < count && all; i++) {
        PyObject *item = Py_BuildValue("(sss)", list[i]->id, list[i]->version, list[i]->file);
        if (!item || PyList_Append(all, item) != 0)
            Py_CLEAR(all);
        Py_XDECREF(item);
    }
    free(list);
    return all;
}

bool bridge_add(PyObject *module)
{
    borrowed_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return borrowed_type && bridge_site_add(module);
}
