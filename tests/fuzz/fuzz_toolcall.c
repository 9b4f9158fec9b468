/* A template's marks and, behind a NUL, an answer: divided into thinking, content and calls, and once more in pieces
 * that its own bytes choose. */
#include "../../serve/splitter.h"
#include "fuzz.h"

#include <time.h>

FUZZ_ENTRY(fuzz_toolcall)

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"},\"a\":{\"type\":[\"array\",\"boolean\",\"null\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g-2\"}}]";

/* What comes out, in the order in which it does, each kind joined until another begins. */
typedef struct parts {
    char *text;
    size_t length, room;
    size_t shown; /* bytes of the answer found again in content and thoughts                                       */
    const char *answer;
    size_t size;
    int told, last;
} parts;

static void append(parts *p, const char *text, size_t length)
{
    if (p->length + length > p->room) {
        p->room = (p->length + length) * 2 + 64;
        char *grown = realloc(p->text, p->room);
        if (!grown)
            abort();
        p->text = grown;
    }
    memcpy(p->text + p->length, text, length);
    p->length += length;
}

/* Bytes of content and thoughts stand in the answer in their order, none of them twice. */
static void find_again(parts *p, const split_event *e)
{
    for (size_t i = 0; i < e->length; i++) {
        while (p->shown < p->size && p->answer[p->shown] != e->text[i])
            p->shown++;
        fuzz_require(p->shown++ < p->size, "more comes out than was in the answer");
    }
}

static void take(void *ctx, const split_event *e)
{
    parts *p = ctx;
    fuzz_require(e->length > 0, "an event without text");
    fuzz_require(((unsigned char)e->text[0] & 0xC0) != 0x80, "an event begins within a character");
    if (e->kind == SPLIT_CALL) {
        fuzz_require(e->call == p->told++, "calls are not counted");
        fuzz_require((e->length == 1 && *e->text == 'f') || (e->length == 3 && memcmp(e->text, "g-2", 3) == 0),
                     "a call of no tool");
    } else if (e->kind == SPLIT_ARGUMENTS) {
        fuzz_require(e->call == p->told - 1 && p->last == SPLIT_CALL, "arguments of no call");
        json_t *value = json_loadb(e->text, e->length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        fuzz_require(json_is_object(value), "arguments that are no object");
        json_decref(value);
    } else {
        find_again(p, e);
    }
    if ((int)e->kind != p->last || e->kind == SPLIT_CALL)
        append(p, &"crCA"[e->kind], 1);
    p->last = (int)e->kind;
    append(p, e->text, e->length);
}

/* The next character's first byte, or the end. */
static size_t character(const char *text, size_t at, size_t size)
{
    while (at < size && ((unsigned char)text[at] & 0xC0) == 0x80)
        at++;
    return at < size ? at : size;
}

/* What is no UTF-8 becomes question marks: pushes are of whole characters. */
static void make_whole(char *text, size_t size)
{
    for (size_t at = 0, end; at < size; at = end) {
        unsigned char c = (unsigned char)text[at];
        size_t length = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
        unsigned char next = at + 1 < size ? (unsigned char)text[at + 1] : 0;
        bool off = (c == 0xE0 && next < 0xA0) || (c == 0xED && next >= 0xA0) || (c == 0xF0 && next < 0x90) ||
                   (c == 0xF4 && next >= 0x90);
        end = character(text, at + 1, at + (length ? length : 1) < size ? at + (length ? length : 1) : size);
        if (end != at + length || off)
            memset(text + at, '?', end - at);
    }
}

static parts divide(const splitter_options *options, const char *text, size_t size, bool pieces, bool cut)
{
    parts p = {.answer = text, .size = size, .last = -1};
    splitter *s = splitter_new(options, take, &p);
    fuzz_require(s != NULL, "no splitter");
    for (size_t at = 0; at < size;) {
        size_t end = pieces ? character(text, at + 1 + (unsigned char)text[at] % 5, size) : size;
        fuzz_require(splitter_push(s, text + at, end - at, false), "a push failed");
        at = end;
    }
    fuzz_require(splitter_end(s, cut), "the end failed");
    fuzz_require(splitter_calls(s) == p.told, "calls are not counted");
    fuzz_require(!options->one_call || p.told <= 1, "more than one call");
    fuzz_require(options->tools || !p.told, "a call without tools");
    splitter_free(s);
    return p;
}

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int fuzz_toolcall(const uint8_t *data, size_t size)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size);
    if (!rest)
        return 0;
    char *marks = strndup((const char *)data, first), *answer = malloc(rest_size + 1);
    json_t *list = json_loads(tools, 0, NULL);
    if (!marks || !answer || !list)
        abort();
    memcpy(answer, rest, rest_size);
    make_whole(answer, rest_size);
    for (int i = 0; i < 16; i++) {
        const splitter_options options = {.family = splitter_family_of(marks),
                                          .tools = i & 1 ? NULL : list,
                                          .one_call = i & 2,
                                          .reasoning = !(i & 4),
                                          .prompt = "<think>",
                                          .prompt_length = i & 8 ? 7 : 0};
        double start = processor_seconds();
        parts whole = divide(&options, answer, rest_size, false, i & 2),
              cut = divide(&options, answer, rest_size, true, i & 2);
#ifdef TN_FUZZER
        fuzz_require(processor_seconds() - start < 1, "an answer takes more than a second");
#endif
        (void)start;
        fuzz_require(whole.length == cut.length && (!cut.length || memcmp(whole.text, cut.text, cut.length) == 0),
                     "it matters how an answer is cut");
        free(whole.text);
        free(cut.text);
    }
    json_decref(list);
    free(marks);
    free(answer);
    return 0;
}
