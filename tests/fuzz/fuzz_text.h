/* What can be done with a tokenizer, for targets that open one. */
#ifndef TEST_FUZZ_TEXT_H
#define TEST_FUZZ_TEXT_H

#include "fuzz.h"

#include <tenon/tenon.h>

/* Texts beyond what a target may take of a fuzzer's time tell nothing more. */
enum { FUZZ_TEXT_MAX = 4096 };

static inline void fuzz_decode(const tn_tokenizer *tokenizer, const int64_t *ids, size_t count, bool skip)
{
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    size_t length = 0;
    tn_status status = tn_tokenizer_decode(tokenizer, ids, count, skip, &text, &length, &err);
    fuzz_require(status == err.code, "the status and the error disagree");
    fuzz_require(status != TN_OK || (text && text[length] == '\0'), "a text does not end");
    free(text);
}

static inline void fuzz_stream(const tn_tokenizer *tokenizer, const int64_t *ids, size_t count)
{
    tn_error err = TN_ERROR_INIT;
    size_t length;
    tn_stream *s = tn_stream_new(tokenizer, false, &err);
    fuzz_agree(s != NULL, &err);
    for (size_t i = 0; i < count && err.code == TN_OK; i++)
        fuzz_agree(tn_stream_push(s, ids[i], &length, &err) != NULL, &err);
    fuzz_require(err.code != TN_OK || tn_stream_flush(s, &length, &err) != NULL, "a stream does not end");
    tn_stream_free(s);
}

static inline void fuzz_encode(const tn_tokenizer *tokenizer, const char *text, size_t length, bool special)
{
    tn_error err = TN_ERROR_INIT;
    int64_t *ids = NULL;
    size_t count = 0;
    tn_status status = tn_tokenizer_encode(tokenizer, text, length, special, &ids, &count, &err);
    fuzz_agree(status == TN_OK, &err);
    if (status == TN_OK) {
        for (size_t i = 0; i < count; i++)
            fuzz_require(ids[i] >= 0 && ids[i] < tn_tokenizer_size(tokenizer),
                         "an id that the vocabulary does not have");
        fuzz_decode(tokenizer, ids, count, special);
        fuzz_stream(tokenizer, ids, count);
    }
    free(ids);
}

/* Encodes a text that has something of everything, and another; decodes ids that exist and ids that do not. */
static inline void fuzz_use_tokenizer(const tn_tokenizer *tokenizer, const uint8_t *text, size_t length)
{
    static const char plain[] = "Hello, wor\xc3\xa9 \xf0\x9f\x98\x80 12345  don't\n\n<|end|>\xff";
    static const int64_t numbers[] = {0, 1, 2, 255, 256, -1, INT64_MAX};
    fuzz_encode(tokenizer, plain, sizeof plain - 1, true);
    if (text)
        fuzz_encode(tokenizer, (const char *)text, length < FUZZ_TEXT_MAX ? length : FUZZ_TEXT_MAX, false);
    fuzz_decode(tokenizer, numbers, sizeof numbers / sizeof numbers[0], false);
}

#endif
