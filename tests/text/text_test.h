/* What the tests of core/text share: a tokenizer from a string. */
#ifndef TEXT_TEST_H
#define TEXT_TEST_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "suite.h"
#include "tempdir.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

#define DEMO "models/demo"

/* Writes size bytes under a name into a folder of its own, opens it and removes both. */
static inline tn_tokenizer *open_named(const char *name, const void *data, size_t size, tn_error *err)
{
    char *folder = tempdir_new(), *file = tempdir_path(folder, name);
    tempdir_write(file, data, size);
    tn_tokenizer *t = tn_tokenizer_open(folder, err);
    free(file);
    tempdir_remove(folder);
    return t;
}

static inline tn_tokenizer *open_bytes(const char *json, size_t size, tn_error *err)
{
    return open_named("tokenizer.json", json, size, err);
}

static inline tn_tokenizer *open_text(const char *json, tn_error *err)
{
    return open_bytes(json, strlen(json), err);
}

static inline void free_tokenizer(void *t)
{
    tn_tokenizer_free(t);
}

/* A tokenizer that must open, until the test ends. */
static inline tn_tokenizer *opened(const char *json)
{
    tn_error err = TN_ERROR_INIT;
    tn_tokenizer *t = open_text(json, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    suite_keep(t, free_tokenizer);
    return t;
}

/* Asserts the ids of a text; expected is written as "1 2 3". */
static inline void assert_ids(const tn_tokenizer *t, const char *text, bool special, const char *expected)
{
    int64_t *ids;
    size_t count, used = 0;
    char got[1024] = "";
    ck_assert_int_eq(tn_tokenizer_encode(t, text, strlen(text), special, &ids, &count, NULL), TN_OK);
    for (size_t i = 0; i < count && used < sizeof got - 24; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%lld", i ? " " : "", (long long)ids[i]);
    free(ids);
    ck_assert_msg(strcmp(got, expected) == 0, "'%s': expected ids %s, got %s", text, expected, got);
}

/* Asserts what ids decode to, at once and as a stream. */
static inline void assert_text(const tn_tokenizer *t, const int64_t *ids, size_t count, bool skip, const char *expected)
{
    char *text;
    size_t length, done = 0;
    ck_assert_int_eq(tn_tokenizer_decode(t, ids, count, skip, &text, &length, NULL), TN_OK);
    if (expected)
        ck_assert_str_eq(text, expected);
    tn_stream *stream = tn_stream_new(t, skip, NULL);
    for (size_t i = 0; i <= count; i++) {
        size_t n;
        const char *part = i < count ? tn_stream_push(stream, ids[i], &n, NULL) : tn_stream_flush(stream, &n, NULL);
        ck_assert_ptr_nonnull(part);
        ck_assert_uint_eq(strnlen(part, n + 1), memchr(part, 0, n) ? strlen(part) : n);
        for (size_t k = 0; k < n; k += utf8_read(part + k, n - k).length)
            ck_assert_msg(utf8_read(part + k, n - k).code >= 0, "half a character after token %zu", i);
        ck_assert_uint_le(n, length - done);
        ck_assert_mem_eq(part, text + done, n);
        done += n;
    }
    ck_assert_uint_eq(done, length);
    tn_stream_free(stream);
    free(text);
}

/* Asserts the pieces that a tokenizer normalizes and cuts text into, joined by '|'. */
static inline void assert_words(const tn_tokenizer *t, const char *text, const char *expected)
{
    char got[1024] = "";
    buffer normal = {0};
    pieces p = {0};
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(normalize_apply_from(&t->normalizer, text, strlen(text), NULL, &normal, &err), TN_OK);
    ck_assert(buffer_append_piece(&p, normal.size ? normal.data : "", normal.size, -1));
    ck_assert_msg(pretok_apply(&t->pretok, &p, &err) == TN_OK, "%s", err.message);
    for (size_t i = 0; i < p.count; i++)
        if (p.spans[i].start < p.spans[i].end) {
            strcat(got, got[0] ? "|" : "");
            strncat(got, p.text.data + p.spans[i].start, p.spans[i].end - p.spans[i].start);
        }
    ck_assert_str_eq(got, expected);
    buffer_free_pieces(&p);
    buffer_free(&normal);
}

/* The same of a pre-tokenizer given as JSON. */
static inline void assert_pretok(const char *pre_tokenizer, const char *text, const char *expected)
{
    char json[2048];
    snprintf(json, sizeof json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":%s}",
             pre_tokenizer);
    assert_words(opened(json), text, expected);
}

static inline void assert_split(const char *pattern, const char *behaviour, const char *invert, const char *text,
                                const char *expected)
{
    char json[1024];
    snprintf(json, sizeof json, "{\"type\":\"Split\",\"pattern\":%s,\"behavior\":\"%s\",\"invert\":%s}", pattern,
             behaviour, invert);
    assert_pretok(json, text, expected);
}

/* Repeatable noise. */
static inline uint32_t noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

enum { TEXT_SECONDS = 240 }; /* only ends a test that hangs; valgrind and sanitizers are slow */

#endif
