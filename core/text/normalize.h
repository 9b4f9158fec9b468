/* Inside core/text: normalizers, those that look at one character at a time (charmap.c), and the character maps of
 * SentencePiece (precompiled.c). */
#ifndef TENON_CORE_TEXT_NORMALIZE_H
#define TENON_CORE_TEXT_NORMALIZE_H

#include <tenon/error.h>

#include "text/buffer.h"
#include "text/doc.h"
#include "text/regex.h"

#include <stdbool.h>
#include <stddef.h>

/* Rewrites text and appends it. */
typedef bool normalize_map(const char *text, size_t length, buffer *out);

typedef struct charsmap charsmap;

typedef struct normalize_op {
    enum {
        NORMALIZE_FORM,
        NORMALIZE_LOWERCASE,
        NORMALIZE_PREPEND,
        NORMALIZE_REPLACE,
        NORMALIZE_STRIP,
        NORMALIZE_MAP,
        NORMALIZE_CHARSMAP
    } kind;
    int options; /* FORM: utf8proc's                                                             */
    regex *pattern;
    buffer content;
    bool left, right;
    normalize_map *map;
    charsmap *charsmap;
} normalize_op;

typedef struct normalizer {
    normalize_op *ops;
    size_t count, capacity;
} normalizer;

tn_status normalize_load(normalizer *n, const doc_node *node, doc_reader *r);
void normalize_free(normalizer *n);
tn_status normalize_apply(const normalizer *n, const char *text, size_t length, buffer *out, tn_error *err);
/* The same. *origin, where given: how many bytes come from the first character of the input; updated. */
tn_status normalize_apply_from(const normalizer *n, const char *text, size_t length, size_t *origin, buffer *out,
                               tn_error *err);

normalize_map charmap_strip_accents, charmap_strip_nonspacing, charmap_nmt, charmap_bytes, charmap_clean,
    charmap_chinese;

charsmap *precompiled_load(const doc_node *node, doc_reader *r); /* owned */
void precompiled_free(charsmap *c);
bool precompiled_apply(const charsmap *c, const char *text, size_t length, buffer *out);

#endif
