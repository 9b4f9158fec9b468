/* Inside the extension module: what the files of the bridge share. torch is not linked: its tensors are read through
 * DLPack's exchange functions where it has them, else through their attributes. */
#ifndef TENON_PYTHON_BRIDGE_H
#define TENON_PYTHON_BRIDGE_H

#include "binding.h"

#include <tenon/borrow.h>

/* ---- bridge_torch.c ---------------------------------------------------------------------------- */

/* What of torch is called. Filled by bridge_torch_load; borrowed for the rest of the process. */
typedef struct bridge_torch {
    PyTypeObject *tensor, *parameter;
    PyObject *empty, *empty_like;
    PyObject *grad_enabled; /* gives whether calls are recorded                                        */
    /* Each gives None, 0 or False where nothing is special; what is special, for reasons. The list ends with NULL. */
    struct {
        PyObject *ask;
        const char *what;
    } modes[8];
} bridge_torch;
extern bridge_torch torch;

/* Imports torch, once. false: an exception is raised. */
bool bridge_torch_load(void);

/* The mode in which calls are left to torch now, in words; NULL: none. */
const char *bridge_torch_mode(void);

/* A plain tensor in the host's memory, as it lies: valid while the tensor is. false: why says why not, or, where it is
 * NULL, an exception is raised. */
bool bridge_view(PyObject *tensor, tn_tensor *view, const char **why);

/* ---- bridge_model.c ---------------------------------------------------------------------------- */

typedef struct bridge_lent {
    const char *data;
    size_t bytes;
} bridge_lent;

typedef struct bridge_model {
    PyObject_HEAD tn_model *model;
    tn_config *config;
    tn_report *report; /* of the last plan or of what is applied                                   */
    bridge_lent *lent;
    Py_ssize_t lent_count;
    bool training;
} bridge_model;

/* ---- bridge_look.c: is all as it was bound? ----------------------------------------------------- */

/* A module inside the site's, or that itself: number 0. */
typedef struct bridge_watch {
    Py_ssize_t parent; /* number of the module around it                                              */
    PyObject *name;    /* in the parent's _modules                                                    */
    PyTypeObject *type;
    PyObject *forward;        /* the class's                                                           */
    PyObject *names, *values; /* attributes, tuples                                                    */
    Py_ssize_t parameters;    /* how many it has, None counted                                         */
    PyObject *module;         /* found by the last look; borrowed, valid during it                      */
} bridge_watch;

/* A parameter or buffer of one of these. */
typedef struct bridge_param {
    Py_ssize_t watch;
    PyObject *name; /* in _parameters or _buffers; bare                                              */
    bool buffer;
    tn_tensor seen;   /* as it was bound or pointed at last                                           */
    PyObject *tensor; /* found by the last look; borrowed, valid during it                             */
} bridge_param;

/* A parameter of the site: views of those of modules. */
typedef struct bridge_role {
    tn_role role;
    int64_t count;
    tn_tensor *tensors;
    Py_ssize_t *param; /* for each tensor which of the site's params, and where in it                  */
    size_t *offset;
} bridge_role;

enum { BRIDGE_MANY = 32 };

typedef struct bridge_site {
    PyObject_HEAD bridge_model *model;
    tn_bound *bound;
    tn_op op;
    tn_dtype dtype;
    int64_t in_width, out_width;
    PyObject *module;  /* a weak reference                                              */
    PyObject *own;     /* a forward that the instance had before, or NULL               */
    PyObject *record;  /* records a call for gradients; NULL: that is left to torch     */
    PyObject *larger;  /* compares at a size; or NULL                                  */
    PyObject *refused; /* a text: why nothing is performed by the kernel any more; or NULL */
    bridge_watch *watches;
    bridge_param *params;
    bridge_role *roles;
    Py_ssize_t watch_count, param_count, role_count;
    long long calls, eager_calls;
    long long checked[2]; /* tokens of the largest call that was compared, and of one with gradients      */
    unsigned not_at;      /* a bit each for calls of one token, of fewer than BRIDGE_MANY and of more: left to torch */
    bool off;             /* taken off: torch's forward, not counted                                           */
    char why[256];        /* the last call went to torch                                                       */
} bridge_site;

extern PyObject *bridge_names[];
enum {
    NAME_MODULES,
    NAME_PARAMETERS,
    NAME_BUFFERS,
    NAME_FORWARD,
    NAME_FORWARD_HOOKS,
    NAME_FORWARD_PRE_HOOKS,
    NAME_BACKWARD_HOOKS,
    NAME_BACKWARD_PRE_HOOKS,
    NAME_REQUIRES_GRAD,
    NAME_CONTIGUOUS,
    NAME_DTYPE,
    NAME_COUNT
};

/* Looks whether the module, those inside, their hooks and forwards, attributes and parameters are those that were
 * bound; points the site at parameters that lie elsewhere. false: s->why says what is not, or an exception is raised.
 */
bool bridge_look(bridge_site *s, PyObject *module);

/* Points the site at these views of its params. false: an exception is raised. */
bool bridge_point(bridge_site *s, Py_ssize_t param, const tn_tensor *view, tn_error *err);

/* ---- bridge_call.c ------------------------------------------------------------------------------ */

PyObject *bridge_forward(PyObject *self, PyObject *arguments);           /* (ins, outs)                            */
PyObject *bridge_backward(PyObject *self, PyObject *arguments);          /* (ins, gradients of outs, ins, params)   */
PyObject *bridge_point_at(PyObject *self, PyObject *params);             /* params as they were when it was recorded */
PyObject *bridge_compare(PyObject *self, PyObject *arguments);           /* (ins, outs, references)                */
PyObject *bridge_compare_gradients(PyObject *self, PyObject *arguments); /* (ins, two of (outs, ins, params)) */
PyObject *bridge_unclear(PyObject *self, PyObject *ins);                 /* rows that cannot be compared        */

PyObject *bridge_whole(PyObject *self, void *closure);
PyObject *bridge_facts(PyObject *self, PyObject *none);

/* ---- bridge_rows.c ------------------------------------------------------------------------------ */

PyObject *bridge_call(PyObject *self, PyObject *arguments, PyObject *names);
PyObject *bridge_run(PyObject *self, PyObject *x);
PyObject *bridge_params(PyObject *self, PyObject *none);
PyObject *bridge_is_ready(PyObject *self, PyObject *tokens);

/* From now on calls are left to torch, for that reason (a text). */
void bridge_refuse(bridge_site *s, PyObject *text);

/* Does the site have a kernel still? false: s->why says why not, or an exception is raised. */
bool bridge_has_kernel(bridge_site *s, int64_t tokens);

/* ---- bridge_site.c ------------------------------------------------------------------------------ */

bool bridge_site_add(PyObject *module);
bridge_site *bridge_site_new(void);

#endif
