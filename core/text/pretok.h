/* Inside core/text: pre-tokenizers, those without regular expressions in split.c. */
#ifndef TENON_CORE_TEXT_PRETOK_H
#define TENON_CORE_TEXT_PRETOK_H

#include <tenon/error.h>

#include "text/buffer.h"
#include "text/doc.h"
#include "text/regex.h"
#include "text/spans.h"
#include "text/unicode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum pretok_behaviour {
    PRETOK_ISOLATED,
    PRETOK_REMOVED,
    PRETOK_WITH_PREVIOUS,
    PRETOK_WITH_NEXT,
    PRETOK_CONTIGUOUS
} pretok_behaviour;

typedef struct pretok_op {
    enum {
        PRETOK_SPLIT,
        PRETOK_PREFIX_SPACE,
        PRETOK_BYTES,
        PRETOK_CLASS,     /* splits at characters of a class, or at one character            */
        PRETOK_WORDS,     /* words, and runs of what is neither word nor space                */
        PRETOK_FIXED,     /* every so many characters                                        */
        PRETOK_SCRIPTS,   /* where the script changes                                        */
        PRETOK_METASPACE, /* spaces become a character, which may be put in front, too       */
    } kind;
    regex *pattern;
    pretok_behaviour behaviour;
    bool invert;
    unicode_class *class;
    int32_t code;   /* CLASS without a class, METASPACE                                         */
    int64_t length; /* FIXED                                                                   */
    enum { PRETOK_ALWAYS, PRETOK_FIRST, PRETOK_NEVER } prepend;
} pretok_op;

typedef struct pretok {
    pretok_op *ops;
    size_t count, capacity;
    bool wants_origin; /* pieces.origin matters                                                 */
} pretok;

tn_status pretok_load(pretok *t, const doc_node *node, doc_reader *r);
void pretok_free(pretok *t);
tn_status pretok_apply(const pretok *t, pieces *p, tn_error *err);
/* The same, but that *bytes tells of pieces whose bytes the caller has still to turn into characters: their words are
 * known before. */
tn_status pretok_apply_words(const pretok *t, pieces *p, bool *bytes, tn_error *err);

/* ---- split.c ---- */

/* Turns the stretches of one piece, matches and what lies between them, into spans. */
typedef struct split_cutter {
    const pretok_op *op;
    pieces *out;
    bool any, previous; /* a span of this piece exists; the last stretch was a match               */
    bool held;          /* a match waits to join the next stretch                                */
    size_t held_start, held_end;
} split_cutter;

bool split_cut(split_cutter *c, size_t start, size_t end, bool match);
bool split_cut_end(split_cutter *c);

/* Pre-tokenizers without regular expressions; each appends the spans or the text of one piece. */
bool split_class(const pretok_op *op, const char *text, span piece, pieces *out);
bool split_words(const char *text, span piece, pieces *out);
bool split_fixed(const pretok_op *op, const char *text, span piece, pieces *out);
bool split_scripts(const char *text, span piece, pieces *out);
bool split_metaspace(const pretok_op *op, const char *text, size_t length, size_t *origin, buffer *out);

/* The character that stands for a byte in byte-level vocabularies, and back (-1: none). */
int32_t pretok_byte_char(unsigned char byte);
int32_t pretok_char_byte(int32_t code);

#endif
