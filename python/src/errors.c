/* The library's errors as exceptions: tenon.errors has a class for each status. */
#include "binding.h"

#include <stdarg.h>
#include <stdio.h>

PyObject *errors_make(const tn_error *err)
{
    PyObject *module = PyImport_ImportModule("tenon.errors");
    PyObject *made = module ? PyObject_CallMethod(module, "of", "iss", (int)err->code, err->where, err->message) : NULL;
    Py_XDECREF(module);
    return made;
}

PyObject *errors_raise(const tn_error *err)
{
    PyObject *made = PyErr_Occurred() ? NULL : errors_make(err);
    if (made)
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    Py_XDECREF(made);
    return NULL;
}

PyObject *errors_fail(tn_status code, const char *where, const char *format, ...)
{
    tn_error err = TN_ERROR_INIT;
    char text[sizeof err.message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tn_fail(&err, code, where, "%s", text);
    return errors_raise(&err);
}
