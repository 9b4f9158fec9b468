/* Text to tokens and back, and conversations as texts. */
#include "binding.h"

#include <stdlib.h>

PyObject *text_open_tokenizer(PyObject *self, PyObject *none)
{
    model_object *m = (model_object *)self;
    tn_error err = TN_ERROR_INIT;
    (void)none;
    if (!model_take(m))
        return NULL;
    if (!m->tokenizer) {
        call c;
        call_begin(&c);
        m->tokenizer = tn_tokenizer_open(m->info.folder, &err);
        call_end(&c);
    }
    bool good = m->tokenizer;
    model_give(m);
    return good ? Py_NewRef(Py_None) : errors_raise(&err);
}

PyObject *text_encode(PyObject *self, PyObject *arguments)
{
    model_object *m = (model_object *)self;
    const char *text;
    Py_ssize_t length;
    int special;
    int64_t *made = NULL;
    size_t count = 0;
    tn_error err = TN_ERROR_INIT;
    if (!PyArg_ParseTuple(arguments, "s#p", &text, &length, &special) || !model_take(m))
        return NULL;
    tn_status status = tn_tokenizer_encode(m->tokenizer, text, (size_t)length, special != 0, &made, &count, &err);
    model_give(m);
    PyObject *list = status == TN_OK ? PyList_New((Py_ssize_t)count) : errors_raise(&err);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *id = PyLong_FromLongLong(made[i]);
        if (!id || PyList_SetItem(list, (Py_ssize_t)i, id) != 0)
            Py_CLEAR(list);
    }
    free(made);
    return list;
}

PyObject *text_decode(PyObject *self, PyObject *arguments)
{
    model_object *m = (model_object *)self;
    PyObject *list;
    int skip;
    ids taken;
    char *text = NULL;
    size_t length = 0;
    tn_error err = TN_ERROR_INIT;
    if (!PyArg_ParseTuple(arguments, "Op", &list, &skip) || !ids_take(list, &taken))
        return NULL;
    if (!model_take(m)) {
        ids_free(&taken);
        return NULL;
    }
    tn_tokenizer_decode(m->tokenizer, taken.values, (size_t)(taken.rows * taken.tokens), skip != 0, &text, &length,
                        &err);
    model_give(m);
    ids_free(&taken);
    PyObject *result = text ? PyUnicode_FromStringAndSize(text, (Py_ssize_t)length) : errors_raise(&err);
    free(text);
    return result;
}

/* A conversation as the text that the model continues. */
PyObject *text_render(PyObject *self, PyObject *arguments)
{
    model_object *m = (model_object *)self;
    const char *messages;
    Py_ssize_t messages_length;
    int answered;
    char *text = NULL;
    size_t length = 0;
    tn_error err = TN_ERROR_INIT;
    tn_render_options o = {.size = sizeof o};
    if (!PyArg_ParseTuple(arguments, "s#zzp", &messages, &messages_length, &o.tools, &o.variables, &answered) ||
        !model_take(m))
        return NULL;
    o.add_generation_prompt = !answered;
    o.continue_final_message = answered;
    if (!m->chat_template)
        m->chat_template = tn_template_open(m->info.folder, &err);
    if (m->chat_template)
        tn_template_render(m->chat_template, messages, (size_t)messages_length, &o, &text, &length, &err);
    model_give(m);
    PyObject *result = text ? PyUnicode_FromStringAndSize(text, (Py_ssize_t)length) : errors_raise(&err);
    free(text);
    return result;
}
