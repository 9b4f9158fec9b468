/* Tenon: text to tokens and back. tenon.h has the rules. */
#ifndef TENON_TEXT_H
#define TENON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tenon/error.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_tokenizer tn_tokenizer;

/* Reads the tokenizer of a folder: tokenizer.json, else tokenizer.json.gz, else tokenizer.model (SentencePiece); or
 * that file itself, or that of a .gguf. path may be a model's name as in tn_model_open. It does not change afterwards.
 * Owned: tn_tokenizer_free. [any thread] */
TN_API tn_tokenizer *tn_tokenizer_open(const char *path, tn_error *err);
TN_API void tn_tokenizer_free(tn_tokenizer *tokenizer);          /* [one thread] */
TN_API int64_t tn_tokenizer_size(const tn_tokenizer *tokenizer); /* largest id + 1. [any thread] */

/* text need not end in NUL. special: apply the post-processor (BOS and the like). ids is owned: free().
 * [any thread] */
TN_API tn_status tn_tokenizer_encode(const tn_tokenizer *tokenizer, const char *text, size_t length, bool special,
                                     int64_t **ids, size_t *count, tn_error *err);

/* text is owned: free(); it ends in NUL, which length (may be NULL) does not count. Incomplete UTF-8 becomes U+FFFD.
 * [any thread] */
TN_API tn_status tn_tokenizer_decode(const tn_tokenizer *tokenizer, const int64_t *ids, size_t count, bool skip_special,
                                     char **text, size_t *length, tn_error *err);

/* What an id stands for in the midst of a text, as bytes, which need not be whole characters: special tokens and ids
 * without a token have none. *special (may be NULL): it is a special token. bytes is owned: free(); it ends in a NUL,
 * which length does not count. TN_E_INPUT: a decoder by which a token stands for nothing by itself. [any thread] */
TN_API tn_status tn_tokenizer_bytes(const tn_tokenizer *tokenizer, int64_t id, char **bytes, size_t *length,
                                    bool *special, tn_error *err);

/* Decodes token by token; what it returns is always whole characters. The tokenizer stays open meanwhile. */
typedef struct tn_stream tn_stream;

/* Owned: tn_stream_free. [any thread] */
TN_API tn_stream *tn_stream_new(const tn_tokenizer *tokenizer, bool skip_special, tn_error *err);
TN_API void tn_stream_free(tn_stream *stream); /* [one thread] */

/* The text that id completes ("" when it only begins a character); borrowed until the next call. flush: what is
 * left when no more tokens come. length may be NULL. NULL: an error. [one thread] */
TN_API const char *tn_stream_push(tn_stream *stream, int64_t id, size_t *length, tn_error *err);
TN_API const char *tn_stream_flush(tn_stream *stream, size_t *length, tn_error *err);

/* Looks for texts that end an answer, in a text that comes piece by piece: a match may lie across pieces. What may be
 * the beginning of one is held back until it is known. */
typedef struct tn_stop_text tn_stop_text;

/* count texts, none of them empty, which are copied. Owned: tn_stop_text_free. [any thread] */
TN_API tn_stop_text *tn_stop_text_new(const char *const *texts, size_t count, tn_error *err);
TN_API void tn_stop_text_free(tn_stop_text *stops); /* [one thread] */

/* What is now known to stand before every match, of this piece and of what was held back; borrowed until the next call.
 * *found: a match was completed; what it began with and all behind it is dropped, and nothing comes any more. flush:
 * what is held back when no more pieces come, after which a new text may begin. NULL: no memory, or a pointer that is
 * needed is NULL: those of the length and found are. [one thread] */
TN_API const char *tn_stop_text_push(tn_stop_text *stops, const char *text, size_t length, size_t *out_length,
                                     bool *found, tn_error *err);
TN_API const char *tn_stop_text_flush(tn_stop_text *stops, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
