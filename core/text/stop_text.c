/* Texts that end an answer, found in a text that comes piece by piece. */
#include "base/structs.h"

#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

struct tn_stop_text {
    char **texts;
    size_t *lengths;
    size_t count;
    char *held; /* what was handed out last, then what is held back                                */
    size_t used, given, capacity;
    bool found;
};

tn_stop_text *tn_stop_text_new(const char *const *texts, size_t count, tn_error *err)
{
    if (count > 0 && !texts) {
        structs_missing("texts", err);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        if (!texts[i] || !texts[i][0]) {
            tn_fail(err, TN_E_USAGE, "stop", "an empty text ends everything; give at least one character");
            return NULL;
        }
    tn_stop_text *s = calloc(1, sizeof *s);
    bool good =
        s && (s->texts = calloc(count + 1, sizeof *s->texts)) && (s->lengths = calloc(count + 1, sizeof *s->lengths));
    for (size_t i = 0; good && i < count; i++) {
        good = (s->texts[i] = strdup(texts[i])) != NULL;
        s->lengths[i] = strlen(texts[i]);
        s->count++;
    }
    if (good)
        return s;
    tn_stop_text_free(s);
    tn_fail(err, TN_E_MEMORY, "stop", "out of memory");
    return NULL;
}

void tn_stop_text_free(tn_stop_text *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++)
        free(s->texts[i]);
    free(s->texts);
    free(s->lengths);
    free(s->held);
    free(s);
}

static bool append(tn_stop_text *s, const char *text, size_t length)
{
    s->used -= s->given;
    if (s->used)
        memmove(s->held, s->held + s->given, s->used);
    s->given = 0;
    if (s->used + length + 1 > s->capacity) {
        size_t capacity = (s->used + length + 1) * 2;
        char *larger = realloc(s->held, capacity);
        if (!larger)
            return false;
        s->held = larger;
        s->capacity = capacity;
    }
    memcpy(s->held + s->used, text, length);
    s->used += length;
    s->held[s->used] = '\0';
    return true;
}

/* Where the first match begins; used when there is none. */
static size_t first_match(const tn_stop_text *s)
{
    size_t first = s->used;
    for (size_t i = 0; i < s->count; i++) {
        const char *at = memmem(s->held, s->used, s->texts[i], s->lengths[i]);
        if (at && (size_t)(at - s->held) < first)
            first = (size_t)(at - s->held);
    }
    return first;
}

/* How much at the end may be the beginning of a match. */
static size_t open_end(const tn_stop_text *s)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->count; i++) {
        size_t most = s->lengths[i] - 1 < s->used ? s->lengths[i] - 1 : s->used;
        for (size_t n = most; n > longest; n--)
            if (memcmp(s->held + s->used - n, s->texts[i], n) == 0)
                longest = n;
    }
    return longest;
}

const char *tn_stop_text_push(tn_stop_text *s, const char *text, size_t length, size_t *out_length, bool *found,
                              tn_error *err)
{
    if (!s || !out_length || !found || (length > 0 && !text)) {
        structs_missing("stop", err);
        return NULL;
    }
    if (!append(s, s->found ? "" : text, s->found ? 0 : length)) {
        tn_fail(err, TN_E_MEMORY, "stop", "out of memory");
        return NULL;
    }
    size_t at = first_match(s);
    s->found = s->found || at < s->used;
    if (s->found)
        s->used = at;
    s->given = s->found ? s->used : s->used - open_end(s);
    *found = s->found;
    *out_length = s->given;
    return s->held;
}

const char *tn_stop_text_flush(tn_stop_text *s, size_t *length)
{
    if (!s || !length || !append(s, "", 0))
        return NULL;
    *length = s->given = s->used;
    s->found = false;
    return s->held;
}
