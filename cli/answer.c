/* Generated tokens on their way to text. */
#include "answer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- text ----------------------------------------------------------------------------------- */

tn_status answer_open(answer *a, const options *o, const tn_tokenizer *tokenizer, tn_error *err)
{
    *a = (answer){.print = true, .clean = isatty(STDOUT_FILENO), .err = err};
    if (!tokenizer && o->stop_count)
        return tn_fail(err, TN_E_USAGE, o->command->name,
                       "--stop: a text is looked for and token ids are printed; leave it out, or add tokenizer.json");
    if (tokenizer && !(a->stream = tn_stream_new(tokenizer, true, err)))
        return err->code;
    if (o->stop_count && !(a->stops = tn_stop_text_new(o->stops, o->stop_count, err)))
        return err->code;
    return TN_OK;
}

void answer_close(answer *a)
{
    tn_stream_free(a->stream);
    tn_stop_text_free(a->stops);
    free(a->text);
    *a = (answer){0};
}

void answer_begin(answer *a)
{
    a->length = 0;
    a->last = 0;
    a->stopped = false;
    a->failed = TN_OK;
    if (a->text)
        a->text[0] = '\0';
}

static void keep_text(answer *a, const char *text, size_t length)
{
    if (a->length + length + 1 > a->capacity) {
        size_t capacity = (a->length + length + 1) * 2;
        char *larger = realloc(a->text, capacity);
        if (!larger) {
            a->failed = tn_fail(a->err, TN_E_MEMORY, "text", "out of memory; close other programs");
            return;
        }
        a->text = larger;
        a->capacity = capacity;
    }
    memcpy(a->text + a->length, text, length);
    a->length += length;
    a->text[a->length] = '\0';
}

static void hand_out(answer *a, const char *text, size_t length)
{
    if (a->keep && !a->failed)
        keep_text(a, text, length);
    if (a->failed || !a->print || length == 0)
        return;
    a->last = text[length - 1];
    a->failed = a->clean ? write_clean(text, length, a->err) : write_text(text, length, a->err);
    if (!a->failed)
        a->failed = write_flush(a->err);
}

/* text NULL: what made it failed. */
static void take_text(answer *a, const char *text, size_t length)
{
    if (text && a->stops)
        text = tn_stop_text_push(a->stops, text, length, &length, &a->stopped, a->err);
    if (text)
        hand_out(a, text, length);
    else
        a->failed = a->err->code ? a->err->code : TN_E_INTERNAL;
}

bool answer_token(answer *a, int64_t id)
{
    char number[32];
    size_t length = 0;
    if (a->stream) {
        const char *text = tn_stream_push(a->stream, id, &length, a->err);
        take_text(a, text, length);
    } else if (!a->keep) {
        length = (size_t)snprintf(number, sizeof number, "%s%lld", a->last ? " " : "", (long long)id);
        hand_out(a, number, length);
    }
    return !a->failed && !a->stopped;
}

tn_status answer_end(answer *a)
{
    size_t length = 0;
    if (a->stream && !a->failed) {
        const char *text = tn_stream_flush(a->stream, &length, a->err);
        take_text(a, text, length);
    }
    if (a->stops && !a->failed) {
        bool stopped = a->stopped;
        const char *text = tn_stop_text_flush(a->stops, &length);
        if (text && !stopped)
            hand_out(a, text, length);
    }
    return a->failed;
}

/* ---- drawing -------------------------------------------------------------------------------- */

/* That of the options, or a random one. */
static uint64_t seed_of(const options *o)
{
    uint32_t random = 0;
    if (option_given(o, OPT_SEED))
        return (uint64_t)option_integer(o, OPT_SEED, 0);
    return getrandom(&random, sizeof random, 0) == (ssize_t)sizeof random ? random : 0;
}

/* Appends one setting of the file to a line. */
static void tell(char *line, size_t size, const char *name, double value)
{
    size_t used = strlen(line);
    snprintf(line + used, size - used, "%s%s %g", used ? ", " : "", name, value);
}

/* Said of what has an effect and is not the options': at temperature 0 the rest of drawing has none. */
static void tell_file(const options *o, const tn_generate_options *g)
{
    char line[160] = "";
    bool draws = g->temperature > 0;
    if (draws && !option_given(o, OPT_TEMPERATURE))
        tell(line, sizeof line, "temperature", g->temperature);
    if (draws && g->top_k > 0 && !option_given(o, OPT_TOP_K))
        tell(line, sizeof line, "top-k", (double)g->top_k);
    if (draws && g->top_p < 1 && !option_given(o, OPT_TOP_P))
        tell(line, sizeof line, "top-p", g->top_p);
    if (draws && g->min_p > 0 && !option_given(o, OPT_MIN_P))
        tell(line, sizeof line, "min-p", g->min_p);
    if (g->repetition_penalty != 1 && !option_given(o, OPT_REPETITION_PENALTY))
        tell(line, sizeof line, "repetition penalty", g->repetition_penalty);
    if (line[0])
        note(o, "sampling: %s, as generation_config.json says", line);
}

/* The stop texts of the file, unless the options name some or want to go on after the end. */
static tn_status take_stops(answer *a, const options *o, const tn_sampling *file, tn_error *err)
{
    if (file->stop_count == 0 || o->stop_count > 0 || option_given(o, OPT_IGNORE_EOS))
        return TN_OK;
    if (!a->stream) {
        note(o, WARNING "token ids are printed: the texts that generation_config.json stops at are not looked for");
        return TN_OK;
    }
    if (!(a->stops = tn_stop_text_new(file->stop_strings, file->stop_count, err)))
        return err->code;
    json_t *first = json_string(file->stop_strings[0]);
    char *text = first ? json_dumps(first, JSON_ENCODE_ANY) : NULL;
    json_decref(first);
    if (!text)
        return tn_fail(err, TN_E_MEMORY, "stop_strings", "out of memory");
    note(o, "stop: %.100s%s, as generation_config.json says", text, file->stop_count > 1 ? " and others" : "");
    free(text);
    return TN_OK;
}

/* Tokens that --speculate tries at a time. */
enum { USUAL_DRAFT = 8 };

tn_status answer_sampling(answer *a, const options *o, const tn_model *model, tn_generate_options *g, tn_error *err)
{
    tn_sampling file = {.size = sizeof file};
    tn_status status = tn_model_sampling(model, &file, err);
    if (status)
        return status;
    g->temperature = option_real(o, OPT_TEMPERATURE, file.temperature);
    g->top_k = option_integer(o, OPT_TOP_K, file.top_k);
    g->top_p = option_real(o, OPT_TOP_P, file.top_p);
    g->min_p = option_real(o, OPT_MIN_P, file.min_p);
    g->repetition_penalty = option_real(o, OPT_REPETITION_PENALTY, file.repetition_penalty);
    g->seed = seed_of(o);
    g->ignore_eos = option_given(o, OPT_IGNORE_EOS);
    if (option_given(o, OPT_SPECULATE))
        g->speculate = o->integer[OPT_SPECULATE] > 0 ? (int32_t)o->integer[OPT_SPECULATE] : USUAL_DRAFT;
    tell_file(o, g);
    return take_stops(a, o, &file, err);
}

json_t *json_sampling(const tn_generate_options *g)
{
    return json_pack("{s:o, s:I, s:o, s:o, s:o}", "temperature", json_number(g->temperature), "top_k",
                     (json_int_t)g->top_k, "top_p", json_number(g->top_p), "min_p", json_number(g->min_p),
                     "repetition_penalty", json_number(g->repetition_penalty));
}
