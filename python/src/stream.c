/* A text as it comes: the next token whenever somebody asks. Between tokens the model is free for others; what goes on
 * is in a session of the stream's own. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

typedef struct stream_object {
    PyObject_HEAD model_object *m;
    session_link *link; /* NULL: it did not begin                                                      */
    int64_t *ids;       /* the prompt, and what was generated                                           */
    int64_t prompt, count, most;
    int64_t context;
    tn_generate_options drawing;
    tn_stream *text; /* NULL: the model has no tokenizer                                              */
    tn_stop_text *stops;
    const char *stop; /* why it ended; NULL: it goes on                                                */
    char *piece;      /* text that the last token brought; owned                                         */
    size_t length, room;
    call call; /* that goes on                                                                      */
} stream_object;

static PyTypeObject *stream_type;

/* As the program's options have it. */
enum { MOST_TOKENS = 1000000000 };

/* ---- text --------------------------------------------------------------------------------------- */

static tn_status keep(stream_object *s, const char *text, size_t length, tn_error *err)
{
    if (s->length + length > s->room) {
        size_t room = 2 * (s->length + length);
        char *grown = realloc(s->piece, room);
        if (!grown)
            return tn_fail(err, TN_E_MEMORY, "text", "out of memory");
        s->piece = grown;
        s->room = room;
    }
    if (length > 0)
        memcpy(s->piece + s->length, text, length);
    s->length += length;
    return TN_OK;
}

/* text NULL: err has why. Behind a stop text nothing comes. */
static tn_status take_text(stream_object *s, const char *text, size_t length, tn_error *err)
{
    bool found = false;
    if (text && s->stops)
        text = tn_stop_text_push(s->stops, text, length, &length, &found, err);
    if (found)
        s->stop = "stop";
    return text ? keep(s, text, length, err) : err->code;
}

/* What was held back, in the hope of more. */
static tn_status flush_text(stream_object *s, tn_error *err)
{
    size_t length = 0;
    bool found = s->stop && strcmp(s->stop, "stop") == 0;
    if (!s->text || found)
        return TN_OK;
    const char *text = tn_stream_flush(s->text, &length, err);
    tn_status status = take_text(s, text, length, err);
    if (status != TN_OK || !s->stops || strcmp(s->stop, "stop") == 0)
        return status;
    text = tn_stop_text_flush(s->stops, &length);
    return keep(s, text, length, err);
}

/* ---- tokens ------------------------------------------------------------------------------------- */

static int on_prompt(void *ctx, int64_t done, int64_t total)
{
    stream_object *s = ctx;
    (void)done;
    (void)total;
    return !call_goes_on(&s->call);
}

/* One more token. With the model taken, and its text in piece. */
static tn_status step(stream_object *s, tn_error *err)
{
    bool first = s->count == 0;
    int64_t held = first ? 0 : s->prompt + s->count - 1, id = 0;
    tn_generate_options o = s->drawing;
    tn_generate_result result = {.size = sizeof result};
    o.history = o.repetition_penalty != 1 ? s->ids : NULL;
    o.history_count = o.history ? held : 0;
    s->length = 0;
    tn_status status = tn_generate(s->link->session, s->ids + held, s->prompt + s->count - held, &o, &id, &result, err);
    if (status == TN_OK && result.count == 0)
        status = TN_E_CANCELLED; /* by on_prompt                                                          */
    if (status != TN_OK)
        return status;
    s->ids[s->prompt + s->count++] = id;
    if (result.stop == TN_STOP_EOS)
        s->stop = "eos";
    else if (s->count == s->most)
        s->stop = "length";
    else if (s->context > 0 && s->prompt + s->count > s->context)
        s->stop = "context";
    if (s->text) {
        size_t length = 0;
        const char *text = tn_stream_push(s->text, id, &length, err);
        status = take_text(s, text, length, err);
    }
    return status == TN_OK && s->stop ? flush_text(s, err) : status;
}

static tn_status begin(stream_object *s, tn_error *err)
{
    const tn_session_options options = {.size = sizeof options, .rows = 1, .context = s->context};
    s->link = calloc(1, sizeof *s->link);
    if (!s->link)
        return tn_fail(err, TN_E_MEMORY, "stream", "out of memory");
    s->link->session = tn_session_new(s->m->model, &options, err);
    if (s->link->session)
        return TN_OK;
    free(s->link);
    s->link = NULL;
    return err->code;
}

/* Once more as far as `most` tokens, text behind text. The model is given back. */
static bool go_on(stream_object *s, int64_t most, char **text, size_t *text_length)
{
    tn_error err = TN_ERROR_INIT;
    if (!model_take(s->m))
        return false;
    bool linked = s->link;
    char *all = NULL;
    size_t length = 0;
    call_begin(&s->call);
    tn_status status = linked || s->stop ? TN_OK : begin(s, &err);
    for (int64_t i = 0; i < most && !s->stop && status == TN_OK; i++) {
        status = call_goes_on(&s->call) ? step(s, &err) : TN_E_CANCELLED;
        if (status != TN_OK || s->length == 0)
            continue;
        char *grown = realloc(all, length + s->length);
        if (!grown)
            status = tn_fail(&err, TN_E_MEMORY, "text", "out of memory");
        else
            memcpy((all = grown) + length, s->piece, s->length);
        length += grown ? s->length : 0;
    }
    call_end(&s->call);
    if (!linked && s->link) {
        s->link->next = s->m->sessions;
        s->m->sessions = s->link;
    }
    if (status != TN_OK)
        s->stop = "error"; /* the session would have to be reset                                            */
    if (s->stop && s->link) {
        s->link->left = true; /* freed as the model is given back                                             */
        s->link = NULL;
    }
    model_give(s->m);
    *text = all;
    *text_length = length;
    if (status != TN_OK)
        errors_raise(&err);
    return status == TN_OK;
}

static PyObject *text_of(const stream_object *s, const char *text, size_t length)
{
    return s->text ? PyUnicode_DecodeUTF8(text ? text : "", (Py_ssize_t)length, "replace") : Py_NewRef(Py_None);
}

/* (id, text) */
static PyObject *stream_next(PyObject *self)
{
    stream_object *s = (stream_object *)self;
    char *text = NULL;
    size_t length = 0;
    if (s->stop)
        return NULL;
    PyObject *result = NULL;
    if (go_on(s, 1, &text, &length))
        result = Py_BuildValue("(LN)", (long long)s->ids[s->prompt + s->count - 1], text_of(s, text, length));
    free(text);
    return result;
}

/* All that is to come: ([id, ...], text, why it ended) */
static PyObject *stream_rest(PyObject *self, PyObject *none)
{
    stream_object *s = (stream_object *)self;
    char *text = NULL;
    size_t length = 0;
    int64_t from = s->count;
    (void)none;
    PyObject *list = go_on(s, INT64_MAX, &text, &length) ? PyList_New(0) : NULL;
    for (int64_t i = from; i < s->count && list; i++) {
        PyObject *id = PyLong_FromLongLong(s->ids[s->prompt + i]);
        if (!id || PyList_Append(list, id) != 0)
            Py_CLEAR(list);
        Py_XDECREF(id);
    }
    PyObject *result = list ? Py_BuildValue("(NNs)", list, text_of(s, text, length), s->stop) : NULL;
    free(text);
    return result;
}

/* ---- making and ending -------------------------------------------------------------------------- */

static void stream_free(PyObject *self)
{
    stream_object *s = (stream_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (s->link)
        model_drop(s->m, s->link);
    tn_stream_free(s->text);
    tn_stop_text_free(s->stops);
    free(s->ids);
    free(s->piece);
    Py_XDECREF(s->m);
    PyObject_Free(self);
    Py_DECREF(type);
}

static tn_status take_stops(stream_object *s, PyObject *stops, tn_error *err)
{
    Py_ssize_t count = PyList_Size(stops);
    if (count <= 0)
        return TN_OK;
    const char **texts = calloc((size_t)count, sizeof *texts);
    bool good = texts;
    for (Py_ssize_t i = 0, length; i < count && good; i++) {
        texts[i] = PyUnicode_AsUTF8AndSize(PyList_GetItem(stops, i), &length);
        good = texts[i] && strlen(texts[i]) == (size_t)length;
        if (texts[i] && !good)
            tn_fail(err, TN_E_USAGE, "stop", "a stop text holds a NUL");
    }
    if (good)
        s->stops = tn_stop_text_new(texts, (size_t)count, err);
    free(texts);
    return s->stops ? TN_OK : tn_fail(err, TN_E_MEMORY, "stop", "out of memory"); /* the first error counts */
}

/* The prompt with room for the answer. */
static tn_status take_prompt(stream_object *s, const ids *prompt, int64_t context, tn_error *err)
{
    int64_t most = s->m->info.unbounded ? 0 : s->m->info.max_positions;
    if (prompt->rows * prompt->tokens == 0)
        return tn_fail(err, TN_E_INPUT, "prompt", "the prompt is empty; give at least one token");
    if (prompt->rows != 1)
        return tn_fail(err, TN_E_USAGE, "prompt", "%lld rows; one text at a time is continued",
                       (long long)prompt->rows);
    if (s->most < 1 || s->most > MOST_TOKENS)
        return tn_fail(err, TN_E_USAGE, "max_tokens", "%lld; give 1 to %d", (long long)s->most, MOST_TOKENS);
    if (context < 0 || context > MOST_TOKENS)
        return tn_fail(err, TN_E_USAGE, "context", "%lld; give 1 to %d, or 0 for what is needed", (long long)context,
                       MOST_TOKENS);
    s->prompt = prompt->tokens;
    s->context = context > 0 ? context : s->prompt + s->most;
    if (context == 0 && most > 0 && s->context > most)
        s->context = most;
    if (s->prompt > s->context)
        return tn_fail(err, TN_E_INPUT, "prompt", "has %lld tokens, and %lld have room; shorten it, or give context",
                       (long long)s->prompt, (long long)s->context);
    int64_t room = s->context - s->prompt + 1;
    s->ids = malloc((size_t)(s->prompt + (s->most < room ? s->most : room)) * sizeof *s->ids);
    if (!s->ids)
        return tn_fail(err, TN_E_MEMORY, "prompt", "out of memory; ask for fewer tokens");
    memcpy(s->ids, prompt->values, (size_t)s->prompt * sizeof *s->ids);
    return TN_OK;
}

PyObject *stream_new(PyObject *self, PyObject *arguments, PyObject *names)
{
    static char *const known[] = {
        "ids",  "max_tokens", "temperature", "top_k",   "top_p", "min_p", "repetition_penalty",
        "seed", "ignore_eos", "stop",        "context", NULL};
    model_object *m = (model_object *)self;
    PyObject *list, *stops;
    long long most, top_k, context;
    unsigned long long seed;
    int ignore_eos;
    tn_generate_options o = {.size = sizeof o, .max_tokens = 1, .on_prompt = on_prompt};
    ids prompt;
    tn_error err = TN_ERROR_INIT;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "OLdLdddKpO!L", (char **)known, &list, &most, &o.temperature,
                                     &top_k, &o.top_p, &o.min_p, &o.repetition_penalty, &seed, &ignore_eos,
                                     &PyList_Type, &stops, &context) ||
        !ids_take(list, &prompt))
        return NULL;
    o.top_k = top_k;
    o.seed = seed;
    o.ignore_eos = ignore_eos != 0;
    stream_object *s = PyObject_New(stream_object, stream_type);
    if (s) {
        memset((char *)s + sizeof(PyObject), 0, sizeof *s - sizeof(PyObject));
        s->m = (model_object *)Py_NewRef(self);
        s->most = most;
        s->drawing = o;
        s->drawing.ctx = s;
        tn_status status = take_prompt(s, &prompt, context, &err);
        if (status == TN_OK)
            status = take_stops(s, stops, &err);
        if (status == TN_OK && m->tokenizer && !(s->text = tn_stream_new(m->tokenizer, true, &err)))
            status = err.code;
        if (status != TN_OK) {
            errors_raise(&err);
            Py_CLEAR(s);
        }
    }
    ids_free(&prompt);
    return (PyObject *)s;
}

static PyObject *stream_self(PyObject *self)
{
    return Py_NewRef(self);
}

static PyMethodDef methods[] = {{"rest", stream_rest, METH_NOARGS, NULL}, {0}};

static PyType_Slot slots[] = {{Py_tp_dealloc, stream_free},
                              {Py_tp_iter, stream_self},
                              {Py_tp_iternext, stream_next},
                              {Py_tp_methods, methods},
                              {0}};

static PyType_Spec spec = {"tenon._tenon.Stream", sizeof(stream_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

bool stream_add(PyObject *module)
{
    stream_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return stream_type && PyModule_AddObjectRef(module, "Stream", (PyObject *)stream_type) == 0;
}
