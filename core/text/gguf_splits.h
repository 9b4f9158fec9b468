/* Inside core/text: how a .gguf with a byte-level vocabulary means text to be cut, which it has a name for alone. */
#ifndef TENON_CORE_TEXT_GGUF_SPLITS_H
#define TENON_CORE_TEXT_GGUF_SPLITS_H

#include <stdbool.h>

enum { GGUF_SPLITS_MOST = 6 };

typedef struct gguf_splits {
    const char *names; /* of tokenizer.ggml.pre, between spaces */
    bool composes;     /* the tokenizer.json that such vocabularies come from has NFC first                  */
    bool ignores_merges, adds_bos;
    const char *expressions[GGUF_SPLITS_MOST + 1]; /* one after the other; NULL ends them                   */
} gguf_splits;

/* NULL: not known. */
const gguf_splits *gguf_splits_find(const char *name);

#endif
