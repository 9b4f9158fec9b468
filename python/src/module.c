/* The extension module tenon._tenon: the public C interface for the package, whose Python files give it its form. */
#include "binding.h"

/* What the library put right by itself, from the given line on. */
static PyObject *notices(PyObject *module, PyObject *first)
{
    (void)module;
    size_t from = PyLong_AsSize_t(first), count = tn_notice_count();
    PyObject *list = PyErr_Occurred() ? NULL : PyList_New(0);
    for (size_t i = from; i < count && list; i++) {
        PyObject *line = PyUnicode_FromString(tn_notice_get(i));
        if (!line || PyList_Append(list, line) != 0)
            Py_CLEAR(list);
        Py_XDECREF(line);
    }
    return list;
}

static PyMethodDef functions[] = {
    {"integers", ids_list, METH_O, "A tensor of int32 or int64 as nested lists."},
    {"notices", notices, METH_O, "Lines from the given one on."},
    {"borrow", bridge_borrow, METH_VARARGS, "A Borrowed over torch's tensors."},
    {"plugins", bridge_plugins, METH_NOARGS, "(file, name, version, state, sha256) each."},
    {"mask_indices", bridge_mask_indices, METH_VARARGS, "(mask, window, zeros, q, k): whether they say it."},
    {"use_threads", bridge_use_threads, METH_O, "torch's pool; 0: our own."},
    {"kernels", bridge_kernels, METH_NOARGS, "(id, version, file) each."},
    {0}};

static int fill(PyObject *module)
{
    bool good = tensor_add(module) && model_add(module) && stream_add(module) && bridge_add(module) &&
                PyModule_AddStringConstant(module, "version", tn_version()) == 0;
    return good ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "tenon._tenon", .m_methods = functions,
                                 .m_slots = slots};

PyMODINIT_FUNC PyInit__tenon(void)
{
    return PyModuleDef_Init(&definition);
}
