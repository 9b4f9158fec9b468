/* Conversations written by the chat template, and where in that text answers begin and end: an answer is what the
 * template writes more when it is there than where it is asked for. */
#include "dataset/turns.h"

#include <stdlib.h>
#include <string.h>

typedef struct written {
    char *text; /* owned */
    size_t length;
} written;

typedef struct turns {
    const record_reader *reader;
    const messages *messages;
    const char *variables; /* whether the answer is one of a model that thinks                       */
    tn_error *err;
} turns;

/* Noon of 26 July 2024, which templates that write a date write (some of them fall back on it themselves): data that
 * are read again are the same. */
#define NOW INT64_C(1721995200)

/* ---- tokens ------------------------------------------------------------------------------------------ */

typedef struct tokens {
    int64_t *ids; /* owned */
    size_t count;
} tokens;

static tn_status encode(const record_reader *reader, const char *text, size_t length, tokens *t, tn_error *err)
{
    *t = (tokens){0};
    return tn_tokenizer_encode(reader->tokenizer, text, length, false, &t->ids, &t->count, err);
}

/* The border of a range: an even number is where one begins, an odd one where it ends. */
static size_t border(const turns_range *ranges, size_t i)
{
    return i % 2 ? ranges[i / 2].end : ranges[i / 2].begin;
}

/* Where in the tokens of the whole text its borders lie; *apart: tokens lie across one. */
static tn_status find_borders(const record_reader *reader, const char *text, size_t length, const turns_range *ranges,
                              size_t count, const tokens *whole, size_t *places, bool *apart, tn_error *err)
{
    tn_status status = TN_OK;
    *apart = false;
    for (size_t i = 0; i < 2 * count && status == TN_OK && !*apart; i++) {
        tokens begin = {0};
        places[i] = border(ranges, i) < length ? 0 : whole->count;
        if (places[i] > 0 || border(ranges, i) == 0)
            continue;
        status = encode(reader, text, border(ranges, i), &begin, err);
        *apart = status == TN_OK &&
                 (begin.count > whole->count || memcmp(begin.ids, whole->ids, begin.count * sizeof *begin.ids) != 0);
        places[i] = begin.count;
        free(begin.ids);
    }
    return status;
}

/* The tokens of what lies between borders, each for itself. */
static tn_status encode_apart(const record_reader *reader, const char *text, size_t length, const turns_range *ranges,
                              size_t count, tokens *whole, size_t *places, tn_error *err)
{
    size_t at = 0;
    free(whole->ids);
    *whole = (tokens){0};
    for (size_t i = 0; i <= 2 * count; i++) {
        size_t end = i < 2 * count ? border(ranges, i) : length;
        tokens more;
        if (end > at && encode(reader, text + at, end - at, &more, err) != TN_OK)
            return err->code;
        if (end > at) {
            int64_t *grown = realloc(whole->ids, (whole->count + more.count + 1) * sizeof *grown);
            if (grown)
                memcpy(grown + whole->count, more.ids, more.count * sizeof *grown);
            whole->ids = grown ? grown : whole->ids;
            whole->count += grown ? more.count : 0;
            free(more.ids);
            if (!grown)
                return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
        }
        at = end;
        if (i < 2 * count)
            places[i] = whole->count;
    }
    return TN_OK;
}

static tn_status add_labelled(const record_reader *reader, const tokens *t, const size_t *places, size_t count,
                              samples *to, tn_error *err)
{
    int64_t *labels = malloc((t->count + 1) * sizeof *labels);
    if (!labels)
        return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    for (size_t i = 0; i < t->count; i++)
        labels[i] = reader->options.train_on_prompt ? t->ids[i] : TN_NO_LABEL;
    for (size_t k = 0; k < count; k++)
        for (size_t i = places[2 * k]; i < places[2 * k + 1]; i++)
            labels[i] = t->ids[i];
    tn_status status = samples_add(to, t->ids, labels, t->count, (size_t)reader->options.max_length, err);
    free(labels);
    return status;
}

tn_status turns_add(const record_reader *reader, const char *text, size_t length, const turns_range *ranges,
                    size_t count, samples *to, tn_error *err)
{
    tokens t;
    bool apart = false;
    size_t *places = calloc(2 * count + 1, sizeof *places);
    tn_status status =
        places ? encode(reader, text, length, &t, err) : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    if (status != TN_OK) {
        free(places);
        return status;
    }
    status = find_borders(reader, text, length, ranges, count, &t, places, &apart, err);
    if (status == TN_OK && apart)
        status = encode_apart(reader, text, length, ranges, count, &t, places, err);
    if (status == TN_OK)
        status = add_labelled(reader, &t, places, count, to, err);
    free(t.ids);
    free(places);
    return status;
}

/* ---- texts ------------------------------------------------------------------------------------------- */

static tn_status dump(const json_t *value, char **text, tn_error *err)
{
    *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    return *text || !value ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

/* The first messages, with what asks for an answer or without. */
static tn_status write_messages(const turns *t, size_t count, bool asking, written *w)
{
    tn_render_options options = {
        .size = sizeof options, .add_generation_prompt = asking, .variables = t->variables, .now = NOW};
    json_t *list = json_array();
    char *messages = NULL, *tools = NULL;
    bool good = list != NULL;
    for (size_t i = 0; i < count && good; i++)
        good = json_array_append(list, json_array_get(t->messages->list, i)) == 0;
    *w = (written){0};
    tn_status status = good ? dump(list, &messages, t->err) : tn_fail(t->err, TN_E_MEMORY, NULL, "out of memory");
    if (status == TN_OK)
        status = dump(t->messages->tools, &tools, t->err);
    options.tools = tools;
    if (status == TN_OK)
        status =
            tn_template_render(t->reader->chat, messages, strlen(messages), &options, &w->text, &w->length, t->err);
    free(messages);
    free(tools);
    json_decref(list);
    return status;
}

static size_t common(const written *a, const written *b)
{
    size_t i = 0, most = a->length < b->length ? a->length : b->length;
    while (i < most && a->text[i] == b->text[i])
        i++;
    while (i > 0 && i < b->length && ((unsigned char)b->text[i] & 0xC0) == 0x80)
        i--;
    return i;
}

/* Where the answer begins that is written behind the first `count` messages. Some templates ask for it by more than
 * they write in front of one (an opened thought): it begins where the two part. */
static tn_status find_begin(const turns *t, size_t count, const written *with, size_t *begin)
{
    written asked, before;
    tn_status status = write_messages(t, count, true, &asked);
    if (status != TN_OK)
        return status;
    *begin = common(&asked, with);
    if (*begin < asked.length) {
        status = write_messages(t, count, false, &before);
        if (status == TN_OK && (common(&before, with) < before.length || *begin < before.length))
            status = tn_fail(t->err, TN_E_INPUT, NULL,
                             "the chat template writes what comes before message %zu otherwise once it is answered, so "
                             "that nobody can tell where the answer begins; leave it out",
                             count);
        free(before.text);
    }
    free(asked.text);
    return status;
}

/* Thinking is left out of the prompt where the answer has none, as models that can do both are asked. */
static const char *variables_of(const messages *m, size_t answer)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const json_t *message = json_array_get(m->list, answer);
    const char *content = json_string_value(json_object_get(message, "content"));
    bool thinks = content && strstr(content, "</think>");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        thinks |= json_string_length(json_object_get(message, names[i])) > 0;
    return thinks ? "{\"enable_thinking\": true}" : "{\"enable_thinking\": false}";
}

/* ---- samples ----------------------------------------------------------------------------------------- */

/* The messages before `end`, of which those from `begin` on are the answer. */
static tn_status add_turn(turns *t, size_t begin, size_t end, samples *to)
{
    written whole;
    turns_range range = {0};
    t->variables = variables_of(t->messages, end - 1);
    tn_status status = write_messages(t, end, false, &whole);
    if (status != TN_OK)
        return status;
    status = find_begin(t, begin, &whole, &range.begin);
    range.end = whole.length;
    if (status == TN_OK)
        status = turns_add(t->reader, whole.text, whole.length, &range, 1, to, t->err);
    free(whole.text);
    return status;
}

/* Where an answer, as it is written when it is the last one, stands in the whole conversation, behind `from`: templates
 * leave out of earlier ones what the model thought. */
static tn_status place_answer(const turns *t, size_t answer, const written *whole, size_t from, turns_range *range)
{
    written last;
    size_t begin = 0;
    tn_status status = write_messages(t, answer + 1, false, &last);
    if (status != TN_OK)
        return status;
    status = find_begin(t, answer, &last, &begin);
    size_t same = common(&last, whole), length = last.length - begin;
    const char *said = last.text + begin, *found = NULL;
    if (status == TN_OK && same == last.length)
        found = whole->text + begin;
    /* Where the two part the answer begins, or some of its first characters before. */
    for (size_t at = same + 1; status == TN_OK && !found && at-- > from && at + length > same;)
        if (at + length <= whole->length && memcmp(whole->text + at, said, length) == 0)
            found = whole->text + at;
    size_t rest = same > from ? same : from;
    if (status == TN_OK && !found)
        found = memmem(whole->text + rest, whole->length - rest, said, length);
    if (status == TN_OK && found)
        *range = (turns_range){(size_t)(found - whole->text), (size_t)(found - whole->text) + length};
    else if (status == TN_OK)
        status = tn_fail(t->err, TN_E_INPUT, NULL,
                         "the chat template writes message %zu otherwise once others follow, so it cannot be learnt in "
                         "one sample with them; take a sample for each answer",
                         answer);
    free(last.text);
    return status;
}

static tn_status add_whole(turns *t, size_t last, samples *to)
{
    written whole;
    size_t count = 0, from = 0;
    t->variables = variables_of(t->messages, last);
    tn_status status = write_messages(t, last + 1, false, &whole);
    turns_range *ranges = status == TN_OK ? calloc(last + 1, sizeof *ranges) : NULL;
    if (status == TN_OK && !ranges)
        status = tn_fail(t->err, TN_E_MEMORY, NULL, "out of memory");
    for (size_t i = t->reader->options.last_turn ? last : 0; i <= last && status == TN_OK; i++) {
        if (!messages_is_answer(t->messages, i) || !t->messages->learnt[i])
            continue;
        status = place_answer(t, i, &whole, from, &ranges[count]);
        from = ranges[count].end;
        count += status == TN_OK;
    }
    if (status == TN_OK)
        status = turns_add(t->reader, whole.text, whole.length, ranges, count, to, t->err);
    free(ranges);
    free(whole.text);
    return status;
}

tn_status turns_read(const record_reader *reader, const messages *m, samples *to, tn_error *err)
{
    turns t = {.reader = reader, .messages = m, .err = err};
    size_t count = json_array_size(m->list), last = count;
    tn_status status = TN_OK;
    bool calls = false;
    for (size_t i = 0; i < count; i++) {
        last = messages_is_answer(m, i) ? i : last;
        calls |= json_object_get(json_array_get(m->list, i), "tool_calls") != NULL;
    }
    if (last == count)
        return tn_fail(err, TN_E_INPUT, NULL, "has no answer of the assistant to learn from");
    if (calls && !strstr(tn_template_source(reader->chat, m->tools != NULL), "tool_call"))
        return tn_fail(err, TN_E_INPUT, NULL,
                       "calls tools, which the model's chat template does not write; leave it out");
    if (m->prompt > 0)
        return add_turn(&t, m->prompt, count, to);
    if (reader->options.one_sample)
        return add_whole(&t, last, to);
    for (size_t i = 0; i <= last && status == TN_OK; i++)
        if (messages_is_answer(m, i) && m->learnt[i])
            status = add_turn(&t, i, i + 1, to);
    return status;
}
