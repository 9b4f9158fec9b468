/* Inside the extension module: what its files share. It keeps to CPython's limited API of 3.10. */
#ifndef TENON_PYTHON_BINDING_H
#define TENON_PYTHON_BINDING_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <tenon/tenon.h>

/* ---- errors.c --------------------------------------------------------------------------------- */

/* Raises tenon.errors' class of the error's code; an exception that is there already is what counts. NULL. */
PyObject *errors_raise(const tn_error *err);
PyObject *errors_fail(tn_status code, const char *where, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The exception as an object that is not raised: new reference. */
PyObject *errors_make(const tn_error *err);

/* ---- call.c ----------------------------------------------------------------------------------- */

/* A stretch of work without the interpreter's lock. */
typedef struct call {
    PyThreadState *state;
    double looked; /* when signals were looked for                                                     */
    bool raised;   /* an exception is there: the work is to end                                        */
} call;

void call_begin(call *c);
void call_end(call *c);

/* For callbacks: takes the interpreter's lock for a while. */
void call_enter(call *c);
void call_leave(call *c);

/* Looks for Ctrl-C, a hundred times in a second at most. false: the work is to end, an exception is raised. */
bool call_goes_on(call *c);

/* ---- tensor.c --------------------------------------------------------------------------------- */

bool tensor_add(PyObject *module);

/* A dense tensor of f32, not initialised, and its values. New reference; NULL: MemoryError. */
PyObject *tensor_new(int ndim, const int64_t *shape, float **values);

/* ---- ids.c ------------------------------------------------------------------------------------ */

/* Rows of as many tokens each. Owned: ids_free. */
typedef struct ids {
    int64_t *values;
    int64_t rows, tokens;
} ids;

/* object: integers, or lists of integers, which are rows. false: an exception is raised. */
bool ids_take(PyObject *object, ids *out);
void ids_free(ids *i);

/* What has __dlpack__ and holds int32 or int64 in the host's memory, as nested lists. */
PyObject *ids_list(PyObject *module, PyObject *object);

/* ---- model.c ---------------------------------------------------------------------------------- */

/* A session that a stream has. It goes with the model, or with the stream: where the model is busy then, afterwards. */
typedef struct session_link {
    tn_session *session; /* NULL: the model was closed                                                */
    bool left;           /* the stream is gone                                                        */
    struct session_link *next;
} session_link;

typedef struct model_object {
    PyObject_HEAD tn_model *model; /* NULL: closed                                                                   */
    tn_config *config;
    tn_tokenizer *tokenizer; /* NULL: not opened                                                       */
    tn_template *chat_template;
    tn_model_info info;
    PyObject *facts; /* what of info and of opening is for Python                                        */
    session_link *sessions;
    bool taken;              /* by a thread; looked at with the interpreter's lock                      */
    PyThread_type_lock lock; /* held while it is, for others to wait at                                 */
    unsigned long thread;    /* that took it last, and the process                                       */
    long process;
    PyObject *progress; /* of the call that goes on; borrowed, or NULL                                   */
    call *call;         /* that goes on                                                               */
} model_object;

bool model_add(PyObject *module);

/* The model, open, for this thread alone. false: an exception is raised, and nothing is to be given back. */
bool model_take(model_object *m);
void model_give(model_object *m);

/* Takes back what a stream had. link is one of m->sessions, and gone then. */
void model_drop(model_object *m, session_link *link);

/* Plugins of the package, where nobody names folders or only the default of an installation does. */
tn_status model_choose_plugins(tn_config *config, const char *own, tn_error *err);

/* ---- bridge_model.c: kernels in live torch models (bridge.h) ---------------------------------------- */

bool bridge_add(PyObject *module);
PyObject *bridge_borrow(PyObject *module, PyObject *arguments);
PyObject *bridge_plugins(PyObject *module, PyObject *none);
PyObject *bridge_kernels(PyObject *module, PyObject *none);
PyObject *bridge_use_threads(PyObject *module, PyObject *width);
PyObject *bridge_mask_indices(PyObject *module, PyObject *arguments);

/* ---- run.c: whole batches ----------------------------------------------------------------------- */

PyObject *run_batch(PyObject *self, PyObject *arguments);      /* (ids, mask, hidden): a Tensor              */
PyObject *run_perplexity(PyObject *self, PyObject *arguments); /* (ids, window): (sum, count)                 */

/* ---- text.c ------------------------------------------------------------------------------------- */

PyObject *text_open_tokenizer(PyObject *self, PyObject *none);
PyObject *text_encode(PyObject *self, PyObject *arguments); /* (text, special): a list                       */
PyObject *text_decode(PyObject *self, PyObject *arguments); /* (ids, skip_special): a str                    */
PyObject *text_render(PyObject *self, PyObject *arguments); /* (messages, tools, variables, answered): a str */

/* ---- stream.c: token by token ------------------------------------------------------------------ */

bool stream_add(PyObject *module);
PyObject *stream_new(PyObject *self, PyObject *arguments, PyObject *names);

#endif
