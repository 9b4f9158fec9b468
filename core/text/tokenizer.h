/* Inside core/text: the parts of a tokenizer. A text goes through added.c, normalize.c, pretok.c, bpe.c and post.c
 * to become ids, and ids go through decode.c to become text. Lists of small components ("ops") are flattened from
 * the nested objects of tokenizer.json, so each stage is one loop. Functions that return bool fail only for want of
 * memory; those that return tn_status fill err, which is never NULL here. */
#ifndef TENON_CORE_TEXT_H
#define TENON_CORE_TEXT_H

#include <tenon/tenon.h>

#include "base/siphash.h"
#include "text/doc.h"

/* ---- buffer.c: bytes that grow ------------------------------------------------------------ */

typedef struct buffer {
    char *data; /* NULL while empty; not terminated                                             */
    size_t size, capacity;
} buffer;

bool buffer_reserve(buffer *b, size_t extra);
bool buffer_add(buffer *b, const char *text, size_t length);
void buffer_free(buffer *b);

/* Grows an array of elements of the given size to hold at least need of them. Returns the new array or NULL, in which
 * case the old one still stands. */
void *buffer_grow(void *array, size_t *capacity, size_t need, size_t element);

/* ---- utf8.c --------------------------------------------------------------------------------- */

typedef struct utf8_char {
    int32_t code;    /* -1: not UTF-8                                                           */
    uint32_t length; /* bytes taken, at least 1; of a bad sequence, those one U+FFFD replaces    */
    bool cut;        /* bad only because the text ends here                                     */
} utf8_char;

utf8_char utf8_read(const char *text, size_t length); /* length at least 1 */
size_t utf8_ascii(const char *text, size_t length);   /* bytes of ASCII that text begins with */
size_t utf8_write(int32_t code, char out[4]);         /* bytes written; 0: no character */
bool utf8_add(buffer *b, int32_t code);
bool utf8_add_clean(buffer *b, const char *text, size_t length); /* bad sequences become U+FFFD */
bool utf8_is_space(int32_t code);                                /* White_Space                 */
bool utf8_is_word(int32_t code);                                 /* \w of Unicode               */

#define UTF8_REPLACEMENT "\xef\xbf\xbd"

/* ---- inert.c: what the forms of normalization leave alone ------------------------------------- */

/* Is the character, whatever stands beside it? nfc: in NFC, else in all four forms. */
bool inert_is(bool nfc, int32_t code);
size_t inert_run(bool nfc, const char *text, size_t length); /* bytes of such characters at the start     */

/* ---- regex.c: regular expressions as tokenizer.json writes them ---------------------------- */

typedef struct regex regex;

/* literal: pattern is plain text. Owned. */
regex *regex_new(const char *pattern, size_t length, bool literal, place at, tn_error *err);
void regex_free(regex *re);
bool regex_is_known(const regex *re); /* plain code does what it says: scanner.c                          */

/* Walks the matches in a text that is valid UTF-8. One per caller, so a regex can be shared. */
typedef struct regex_walk {
    const regex *re;
    void *data, *limits; /* PCRE2's */
    const char *text;
    size_t length, position, last_end;
    bool matched;
    size_t seen; /* where the matcher was last                                                     */
    uint64_t steps, most_steps;
} regex_walk;

/* The walk stays where it is until regex_close. */
tn_status regex_open(regex_walk *walk, const regex *re, tn_error *err);
void regex_start(regex_walk *walk, const char *text, size_t length);
/* TN_OK with *found telling whether there was one more match, start..end. */
tn_status regex_next(regex_walk *walk, bool *found, size_t *start, size_t *end, tn_error *err);
void regex_close(regex_walk *walk);

/* Reads {"String": ...} or {"Regex": ...} (or a plain string). Owned; NULL on failure. */
regex *regex_load(const doc_node *pattern, place at, tn_error *err);

/* Appends text with every match replaced. */
tn_status regex_replace(const regex *re, const char *text, size_t length, const buffer *content, buffer *out,
                        tn_error *err);

/* ---- vocab.c: tokens and merges ---------------------------------------------------------------- */

typedef struct vocab_token {
    size_t offset;
    uint32_t length;
    bool present, special;
} vocab_token;

typedef struct vocab_merge {
    uint32_t left, right, rank, id; /* left == VOCAB_NONE: a free slot                             */
} vocab_merge;

#define VOCAB_NONE UINT32_MAX
#define VOCAB_LIMIT ((int64_t)1 << 21) /* ids stay below: eight times the largest vocabulary published */

typedef struct vocab {
    buffer strings;
    vocab_token *tokens;   /* by id, the model's and the added ones                             */
    size_t size, capacity; /* size: largest id + 1                                              */
    uint32_t *map;         /* open addressing over the model's tokens                             */
    size_t map_mask;
    vocab_merge *merges;
    size_t merge_mask;
    uint64_t *touching; /* bits, by a hash: characters that stand side by side in what a merge makes */
    siphash_key key;    /* of both tables                                                             */
} vocab;

tn_status vocab_load(vocab *v, const doc_node *model, place at, tn_error *err);
void vocab_free(vocab *v);
/* Puts an added token under an id. */
tn_status vocab_add(vocab *v, int64_t id, const char *text, size_t length, bool special, place at, tn_error *err);
uint32_t vocab_find(const vocab *v, const char *text, size_t length); /* among the model's; VOCAB_NONE: absent */
const vocab_merge *vocab_find_merge(const vocab *v, uint32_t left, uint32_t right); /* NULL: they don't merge    */
/* May a merge, or merges of what they become, join two tokens that stand side by side? false is sure. */
bool vocab_may_touch(const vocab *v, uint32_t left, uint32_t right);
/* Checks the range, for ids that stand in the file. */
tn_status vocab_check_id(int64_t id, const char *token, place at, tn_error *err);

/* ---- pieces: a text on its way to ids ---------------------------------------------------------- */

typedef struct span {
    size_t start, end;
    int64_t id; /* of an added token; -1: text, which may be empty                                */
} span;

typedef struct pieces {
    buffer text;
    span *spans;
    size_t count, capacity;
} pieces;

bool buffer_add_piece(pieces *p, size_t start, size_t end, int64_t id);
/* Appends text as a piece of its own. */
bool buffer_append_piece(pieces *p, const char *text, size_t length, int64_t id);
void buffer_free_pieces(pieces *p);

/* ---- normalize.c ---------------------------------------------------------------------------- */

typedef struct normalize_op {
    enum { NORMALIZE_FORM, NORMALIZE_LOWERCASE, NORMALIZE_PREPEND, NORMALIZE_REPLACE, NORMALIZE_STRIP } kind;
    int options; /* FORM: utf8proc's                                                             */
    regex *pattern;
    buffer content;
    bool left, right;
} normalize_op;

typedef struct normalizer {
    normalize_op *ops;
    size_t count, capacity;
} normalizer;

tn_status normalize_load(normalizer *n, const doc_node *node, place at, tn_error *err);
void normalize_free(normalizer *n);
tn_status normalize_apply(const normalizer *n, const char *text, size_t length, buffer *out, tn_error *err);

/* ---- added.c: tokens that are cut out of the text before the model sees it ---------------------- */

typedef struct added_token {
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    const char *content; /* borrowed from the document, while loading                            */
    size_t length;
} added_token;

typedef struct added_node {
    int32_t child, sibling, token; /* indices, -1: none                                           */
    unsigned char byte;
} added_node;

typedef struct added_trie {
    added_node *nodes;
    size_t count, capacity;
    int32_t first[256]; /* node of the first byte, -1: no token begins so                          */
} added_trie;

typedef struct added {
    added_token *tokens;
    size_t count, capacity;
    added_trie raw, normalized;
} added;

tn_status added_load(added *a, const doc_node *node, vocab *v, const normalizer *n, place at, tn_error *err);
void added_free(added *a);
/* Cuts text into p: the longest token at the leftmost place first. */
bool added_split(const added *a, const added_trie *trie, const char *text, size_t length, pieces *p);

/* ---- pretok.c ------------------------------------------------------------------------------- */

typedef enum pretok_behaviour {
    PRETOK_ISOLATED,
    PRETOK_REMOVED,
    PRETOK_WITH_PREVIOUS,
    PRETOK_WITH_NEXT,
    PRETOK_CONTIGUOUS
} pretok_behaviour;

typedef struct pretok_op {
    enum { PRETOK_SPLIT, PRETOK_PREFIX_SPACE, PRETOK_BYTES } kind;
    regex *pattern;
    pretok_behaviour behaviour;
    bool invert;
} pretok_op;

typedef struct pretok {
    pretok_op *ops;
    size_t count, capacity;
} pretok;

tn_status pretok_load(pretok *t, const doc_node *node, place at, tn_error *err);
void pretok_free(pretok *t);
tn_status pretok_apply(const pretok *t, pieces *p, tn_error *err);
/* The same, but that *bytes tells of pieces whose bytes the caller has still to turn into characters: their words are
 * known before. */
tn_status pretok_apply_words(const pretok *t, pieces *p, bool *bytes, tn_error *err);

/* The character that stands for a byte in byte-level vocabularies, and back (-1: none). */
int32_t pretok_byte_char(unsigned char byte);
int32_t pretok_char_byte(int32_t code);

/* ---- bpe.c ------------------------------------------------------------------------------------ */

typedef struct id_list {
    int64_t *ids;
    size_t count, capacity;
} id_list;

bool buffer_add_id(id_list *list, int64_t id);
bool buffer_repeat_ids(id_list *list, size_t first, size_t count); /* appends some of its own            */

typedef struct bpe {
    bool ignore_merges, byte_fallback, fuse_unk;
    uint32_t unk;             /* VOCAB_NONE: none                                                             */
    uint32_t bytes[256];      /* ids of "<0x00>" and so on, for byte_fallback                     */
    uint32_t characters[256]; /* ids of the characters that stand for bytes (pretok_byte_char)  */
    bool short_words;         /* bpe.c may merge short words without a heap                     */
} bpe;

typedef struct bpe_scratch bpe_scratch;

tn_status bpe_load(bpe *b, const doc_node *model, const vocab *v, place at, tn_error *err);
/* Scratch for one encoding. Owned. */
bpe_scratch *bpe_scratch_new(void);
void bpe_scratch_free(bpe_scratch *s);
bool bpe_encode(const bpe *b, const vocab *v, const char *word, size_t length, bpe_scratch *s, id_list *out);
/* All pieces of a text. bytes: they have not become the characters of a byte-level vocabulary yet. */
bool bpe_encode_pieces(const bpe *b, const vocab *v, const pieces *p, bool bytes, id_list *out);

/* ---- post.c: what the post-processor adds ----------------------------------------------------- */

typedef struct post {
    id_list *templates; /* -1 stands for the sequence                                             */
    size_t count, capacity;
} post;

/* v: complete, with added tokens. */
tn_status post_load(post *p, const doc_node *node, const vocab *v, place at, tn_error *err);
void post_free(post *p);
bool post_apply(const post *p, id_list *ids);

/* ---- decode.c ----------------------------------------------------------------------------------- */

typedef struct decode_op {
    enum { DECODE_BYTE_LEVEL, DECODE_BYTE_FALLBACK, DECODE_FUSE, DECODE_REPLACE, DECODE_STRIP, DECODE_JOIN } kind;
    regex *pattern;
    buffer content;
    int64_t start, stop;
} decode_op;

typedef struct decoder {
    decode_op *ops;
    size_t count, capacity;
} decoder;

tn_status decode_load(decoder *d, const doc_node *node, place at, tn_error *err);
void decode_free(decoder *d);

/* ---- tokenizer.c ----------------------------------------------------------------------------------- */

struct tn_tokenizer {
    char *path; /* of the file                                                                    */
    vocab vocab;
    added added;
    normalizer normalizer;
    pretok pretok;
    bpe bpe;
    post post;
    decoder decoder;
};

#endif
