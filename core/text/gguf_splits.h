/* Inside core/text: how a .gguf with a byte-level vocabulary means text to be cut, which it has a name for alone. */
#ifndef TENON_CORE_TEXT_GGUF_SPLITS_H
#define TENON_CORE_TEXT_GGUF_SPLITS_H

#include <stdbool.h>
#include <stddef.h>

enum { GGUF_SPLITS_MOST = 6 };

typedef struct gguf_splits {
    const char *names; /* of tokenizer.ggml.pre, between spaces */
    bool composes;     /* the tokenizer.json that such vocabularies come from has NFC first                  */
    bool ignores_merges, adds_bos;
    const char *expressions[GGUF_SPLITS_MOST + 1]; /* one after the other; NULL ends them                   */
} gguf_splits;

/* NULL: not known. */
const gguf_splits *gguf_splits_find(const char *name);

/* A name, and its length, for what splits says beside names and adds_bos; NULL: there is none. */
const char *gguf_splits_name(const gguf_splits *splits, size_t *length);

#endif
