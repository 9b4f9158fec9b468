/* A model with its configuration, tokenizer and chat template: opening, closing, who may use it when, and what it says
 * of itself. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static PyTypeObject *model_type;

/* ---- one thread at a time ----------------------------------------------------------------------- */

/* Waits until nobody has the model. After a fork nobody may be left to give it back. */
static bool wait_for(model_object *m)
{
    while (m->taken) {
        call c;
        if (m->process != (long)getpid()) {
            errors_fail(TN_E_USAGE, "model", "another thread used it when the process was forked; open it again here");
            return false;
        }
        call_begin(&c);
        if (PyThread_acquire_lock_timed(m->lock, 50000, 0) == PY_LOCK_ACQUIRED)
            PyThread_release_lock(m->lock);
        call_end(&c);
        if (PyErr_CheckSignals() != 0)
            return false;
    }
    return true;
}

bool model_take(model_object *m)
{
    if (m->taken && m->thread == PyThread_get_thread_ident() && m->process == (long)getpid()) {
        errors_fail(TN_E_USAGE, "model", "this thread uses it already; a callback or handler cannot call it");
        return false;
    }
    if (!wait_for(m))
        return false;
    if (!m->model) {
        errors_fail(TN_E_USAGE, "model", "it is closed; open it again");
        return false;
    }
    if (m->process != (long)getpid()) { /* a thread that waited in the parent may have the lock             */
        PyThread_type_lock own = PyThread_allocate_lock();
        if (!own) {
            PyErr_NoMemory();
            return false;
        }
        m->lock = own;
    }
    m->taken = true;
    m->thread = PyThread_get_thread_ident();
    m->process = (long)getpid();
    PyThread_acquire_lock(m->lock, WAIT_LOCK); /* of one that waits, if at all, and gives it back at once      */
    return true;
}

/* Sessions of streams that are gone, or all. */
static void free_sessions(model_object *m, bool all)
{
    for (session_link **at = &m->sessions; *at;) {
        session_link *link = *at;
        if (link->left || all) {
            tn_session_free(link->session);
            link->session = NULL;
        }
        if (link->left || all)
            *at = link->next;
        else
            at = &link->next;
        if (link->left)
            free(link);
    }
}

void model_give(model_object *m)
{
    free_sessions(m, false);
    m->taken = false;
    PyThread_release_lock(m->lock);
}

void model_drop(model_object *m, session_link *link)
{
    link->left = true;
    if (!link->session) /* it went with the model */
        free(link);
    else if (!m->taken)
        free_sessions(m, false);
}

/* ---- opening and closing ------------------------------------------------------------------------ */

static int on_progress(void *ctx, const char *what, int64_t done, int64_t total)
{
    model_object *m = ctx;
    call *c = m->call;
    if (!c || !m->progress)
        return c && !call_goes_on(c);
    if (c->raised)
        return 1;
    call_enter(c);
    PyObject *said = PyObject_CallFunction(m->progress, "sLL", what, (long long)done, (long long)total);
    Py_XDECREF(said);
    c->raised = !said || PyErr_CheckSignals() != 0;
    call_leave(c);
    return c->raised;
}

/* As the program has it (cli/open.c). */
tn_status model_choose_plugins(tn_config *config, const char *own, tn_error *err)
{
    const char *file = tn_config_file(config);
    bool named = tn_config_says_plugins(config), installed = file && !strcmp(file, TN_SYSCONFDIR "/tenon/kernels.json");
    if (named && (tn_config_folder_count(config) == 0 || !installed))
        return TN_OK;
    return access(own, F_OK) == 0 ? tn_config_set_plugins(config, own, err) : TN_OK;
}

typedef struct opening {
    const char *path, *revision, *dtype, *device, *kernels, *plugins;
    int threads;
    tn_report *report;
} opening;

static tn_status open_model(model_object *m, opening *o, tn_error *err)
{
    m->config = tn_config_load(NULL, err);
    tn_status status = m->config ? TN_OK : err->code;
    if (status == TN_OK && o->device)
        status = tn_config_set_device(m->config, o->device, err);
    if (status == TN_OK && o->kernels)
        status = tn_config_set_kernels(m->config, o->kernels, err);
    if (status == TN_OK)
        status = model_choose_plugins(m->config, o->plugins, err);
    if (status == TN_OK)
        status = tn_scan(m->config, err);
    if (status != TN_OK)
        return status;
    const tn_model_options options = {.size = sizeof options,
                                      .dtype = o->dtype,
                                      .device = tn_config_device(m->config),
                                      .threads = o->threads,
                                      .progress = on_progress,
                                      .progress_ctx = m,
                                      .applying = on_progress};
    char *found = o->revision ? tn_hub_folder(o->path, o->revision, err) : NULL;
    if (found || !o->revision)
        m->model = tn_model_open(found ? found : o->path, &options, err);
    free(found);
    status = m->model ? tn_apply_kernels(m->model, m->config, NULL, &o->report, err) : err->code;
    m->info.size = sizeof m->info;
    return status == TN_OK ? tn_model_get_info(m->model, &m->info) : status;
}

/* What whoever opened it is to be told. */
static PyObject *remarks(const tn_report *report)
{
    PyObject *list = PyList_New(0), *text = NULL;
    tn_plugin_info info = {.size = sizeof info};
    bool good = list != NULL;
    for (size_t i = 0; i < tn_plugin_count() && good; i++)
        if (tn_plugin_get(i, &info) == TN_OK && info.state > TN_PLUGIN_SKIPPED) {
            good = (text = PyUnicode_FromFormat("%s: %s", info.file, info.reason)) && PyList_Append(list, text) == 0;
            Py_XDECREF(text);
        }
    for (size_t i = 0; i < report->note_count && good; i++) {
        good = (text = PyUnicode_FromString(report->notes[i])) && PyList_Append(list, text) == 0;
        Py_XDECREF(text);
    }
    if (!good)
        Py_CLEAR(list);
    return list;
}

static PyObject *facts(const tn_model_info *i, const tn_report *report)
{
    return Py_BuildValue("{s:N, s:N, s:s, s:s, s:s, s:s, s:L, s:L, s:L, s:L, s:L, s:O, s:s}", "remarks",
                         remarks(report), "folder", PyUnicode_DecodeFSDefault(i->folder), "model_type", i->model_type,
                         "class_name", i->class_name, "dtype", tn_dtype_name(i->dtype), "device", i->device, "vocab",
                         (long long)i->vocab, "hidden", (long long)i->hidden, "layers", (long long)i->layers,
                         "max_positions", (long long)i->max_positions, "parameters", (long long)i->parameters,
                         "unbounded", i->unbounded ? Py_True : Py_False, "kernels", report->summary);
}

static PyObject *model_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *const known[] = {"path",    "revision", "dtype",    "device", "threads",
                                  "kernels", "plugins",  "progress", NULL};
    opening o = {0};
    PyObject *progress = Py_None, *path, *plugins;
    tn_error err = TN_ERROR_INIT;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "SzzzizSO", (char **)known, &path, &o.revision, &o.dtype,
                                     &o.device, &o.threads, &o.kernels, &plugins, &progress))
        return NULL;
    o.path = PyBytes_AsString(path);
    o.plugins = PyBytes_AsString(plugins);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    model_object *m = (model_object *)alloc(type, 0);
    if (!m || !(m->lock = PyThread_allocate_lock())) {
        Py_XDECREF(m);
        return PyErr_NoMemory();
    }
    call c;
    m->progress = progress == Py_None ? NULL : progress;
    m->process = (long)getpid();
    m->call = &c;
    call_begin(&c);
    tn_status status = open_model(m, &o, &err);
    call_end(&c);
    m->call = NULL;
    m->progress = NULL;
    m->facts = status == TN_OK && !c.raised ? facts(&m->info, o.report) : errors_raise(&err);
    tn_report_free(o.report);
    if (!m->facts)
        Py_CLEAR(m);
    return (PyObject *)m;
}

static void close_all(model_object *m)
{
    free_sessions(m, true);
    tn_template_free(m->chat_template);
    tn_tokenizer_free(m->tokenizer);
    tn_model_close(m->model);
    tn_config_free(m->config);
    m->chat_template = NULL;
    m->tokenizer = NULL;
    m->model = NULL;
    m->config = NULL;
}

static void model_free(PyObject *self)
{
    model_object *m = (model_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (m->lock && !m->taken) { /* one that a thread of a parent holds is left as it lies                 */
        close_all(m);
        PyThread_free_lock(m->lock);
    }
    Py_XDECREF(m->facts);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *model_close(PyObject *self, PyObject *none)
{
    model_object *m = (model_object *)self;
    (void)none;
    if (!m->model)
        Py_RETURN_NONE;
    if (!model_take(m))
        return NULL;
    free_sessions(m, true); /* streams look at these with the interpreter's lock                            */
    call c;
    call_begin(&c);
    close_all(m);
    call_end(&c);
    model_give(m);
    Py_RETURN_NONE;
}

/* ---- what it says ------------------------------------------------------------------------------- */

static PyObject *model_facts(PyObject *self, void *closure)
{
    (void)closure;
    return Py_NewRef(((model_object *)self)->facts);
}

static PyObject *model_sampling(PyObject *self, PyObject *none)
{
    model_object *m = (model_object *)self;
    tn_sampling s = {.size = sizeof s};
    tn_error err = TN_ERROR_INIT;
    (void)none;
    if (!model_take(m))
        return NULL;
    PyObject *stops = PyList_New(0);
    bool good = stops && tn_model_sampling(m->model, &s, &err) == TN_OK;
    for (size_t i = 0; i < s.stop_count && good; i++) {
        PyObject *text = PyUnicode_FromString(s.stop_strings[i]);
        good = text && PyList_Append(stops, text) == 0;
        Py_XDECREF(text);
    }
    model_give(m);
    if (good)
        return Py_BuildValue("{s:d, s:L, s:d, s:d, s:d, s:N}", "temperature", s.temperature, "top_k",
                             (long long)s.top_k, "top_p", s.top_p, "min_p", s.min_p, "repetition_penalty",
                             s.repetition_penalty, "stop", stops);
    Py_XDECREF(stops);
    return errors_raise(&err);
}

static PyObject *model_explain(PyObject *self, PyObject *arguments)
{
    model_object *m = (model_object *)self;
    const char *spec;
    int format;
    PyObject *progress;
    tn_error err = TN_ERROR_INIT;
    call c;
    if (!PyArg_ParseTuple(arguments, "ziO", &spec, &format, &progress) || !model_take(m))
        return NULL;
    m->progress = progress == Py_None ? NULL : progress;
    m->call = &c;
    call_begin(&c);
    tn_report *report = tn_model_plan(m->model, m->config, spec, &err);
    char *text = report ? tn_model_describe(m->model, report, (tn_graph_format)format, true, &err) : NULL;
    tn_report_free(report);
    call_end(&c);
    m->call = NULL;
    m->progress = NULL;
    model_give(m);
    PyObject *result = text && !c.raised ? PyUnicode_FromString(text) : errors_raise(&err);
    free(text);
    return result;
}

static PyObject *verify_row(const tn_verify_row *r)
{
    return Py_BuildValue("{s:s, s:s, s:L, s:L, s:d, s:d, s:d, s:s, s:d, s:d, s:L, s:s, s:O, s:s, s:s}", "kernel",
                         r->kernel, "op", tn_op_name(r->op), "sites", (long long)r->sites, "applied_sites",
                         (long long)r->applied_sites, "largest_error", r->largest_error, "largest_ulps",
                         r->largest_ulps, "tolerance_ulps", r->tolerance_ulps, "worst_site", r->worst_site,
                         "eager_seconds", r->eager_seconds, "kernel_seconds", r->kernel_seconds, "tokens",
                         (long long)r->tokens, "coverage", r->coverage, "passed", r->passed ? Py_True : Py_False,
                         "reason", r->reason, "not_applied", r->not_applied);
}

/* (rows, what failed or None) */
static PyObject *model_verify(PyObject *self, PyObject *arguments)
{
    model_object *m = (model_object *)self;
    const char *spec;
    PyObject *progress;
    tn_error err = TN_ERROR_INIT;
    tn_verify_row **rows = NULL;
    size_t count = 0;
    call c;
    if (!PyArg_ParseTuple(arguments, "zO", &spec, &progress) || !model_take(m))
        return NULL;
    m->progress = progress == Py_None ? NULL : progress;
    m->call = &c;
    call_begin(&c);
    tn_status status = tn_verify_kernels(m->model, m->config, spec, NULL, &rows, &count, &err);
    call_end(&c);
    m->call = NULL;
    m->progress = NULL;
    PyObject *list = !c.raised && (status == TN_OK || status == TN_E_VERIFY) ? PyList_New(0) : errors_raise(&err);
    for (size_t i = 0; i < count && list; i++) {
        PyObject *row = verify_row(rows[i]);
        if (!row || PyList_Append(list, row) != 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    free(rows);
    model_give(m);
    PyObject *failure = !list ? NULL : status == TN_OK ? Py_NewRef(Py_None) : errors_make(&err);
    if (failure)
        return Py_BuildValue("(NN)", list, failure);
    Py_XDECREF(list);
    return NULL;
}

static PyMethodDef methods[] = {{"close", model_close, METH_NOARGS, NULL},
                                {"sampling", model_sampling, METH_NOARGS, NULL},
                                {"explain", model_explain, METH_VARARGS, NULL},
                                {"verify", model_verify, METH_VARARGS, NULL},
                                {"open_tokenizer", text_open_tokenizer, METH_NOARGS, NULL},
                                {"encode", text_encode, METH_VARARGS, NULL},
                                {"decode", text_decode, METH_VARARGS, NULL},
                                {"render", text_render, METH_VARARGS, NULL},
                                {"run", run_batch, METH_VARARGS, NULL},
                                {"perplexity", run_perplexity, METH_VARARGS, NULL},
                                {"stream", (PyCFunction)(void (*)(void))stream_new, METH_VARARGS | METH_KEYWORDS, NULL},
                                {0}};

static PyGetSetDef members[] = {{"facts", model_facts, NULL, NULL, NULL}, {0}};

static PyType_Slot slots[] = {
    {Py_tp_new, model_new}, {Py_tp_dealloc, model_free}, {Py_tp_methods, methods}, {Py_tp_getset, members}, {0}};

static PyType_Spec spec = {"tenon._tenon.Model", sizeof(model_object), 0, Py_TPFLAGS_DEFAULT, slots};

bool model_add(PyObject *module)
{
    model_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return model_type && PyModule_AddObjectRef(module, "Model", (PyObject *)model_type) == 0;
}
