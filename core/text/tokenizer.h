/* Inside core/text: the parts of a tokenizer. A text goes through added.c, normalize.c, pretok.c, a model (bpe.c,
 * unigram.c or wordpiece.c) and post.c to become ids, and ids go through decode.c to become text. Lists of small
 * components ("ops") are flattened from the nested objects of tokenizer.json, so each stage is one loop. Functions that
 * return bool fail only for want of memory; those that return tn_status fill err, which is never NULL here. */
#ifndef TENON_CORE_TEXT_H
#define TENON_CORE_TEXT_H

#include <tenon/tenon.h>

#include "base/siphash.h"
#include "text/doc.h"

/* ---- buffer.c: bytes that grow ------------------------------------------------------------ */

typedef struct buffer {
    char *data; /* NULL while empty; not terminated                                             */
    size_t size, capacity;
    size_t limit; /* largest size, 0: the one of all buffers                                    */
    bool full;    /* the limit was in the way                                                   */
} buffer;

bool buffer_reserve(buffer *b, size_t extra);
/* The error for a buffer that could not grow: its limit, or memory. */
tn_status buffer_failed(const buffer *b, place at, tn_error *err);
/* What a step may make of a text of length bytes: 64 times as much, or 64 MB where that is more. */
size_t buffer_bound(size_t length);
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

#define UTF8_REPLACEMENT "\xef\xbf\xbd"

/* ---- inert.c: what the forms of normalization leave alone ------------------------------------- */

/* Is the character, whatever stands beside it? nfc: in NFC, else in all four forms. */
bool inert_is(bool nfc, int32_t code);
size_t inert_run(bool nfc, const char *text, size_t length); /* bytes of such characters at the start     */

/* ---- unicode.c: classes of characters as the tokenizers library has them --------------------- */

typedef bool unicode_class(int32_t code);
unicode_class unicode_is_punctuation; /* P*, and all of ASCII's                                  */
unicode_class unicode_is_numeric;     /* N*                                                      */
unicode_class unicode_is_mark;        /* M*                                                      */
unicode_class unicode_is_nonspacing;  /* Mn                                                      */
unicode_class unicode_is_other;       /* Cc, Cf and Co                                           */
unicode_class unicode_is_word;        /* \w of Rust's regular expressions                        */
int32_t unicode_lower(int32_t code);  /* of U+0130 only the first of two                         */
/* The script, a number without further meaning; SCRIPT_ANY joins those around it. */
enum { SCRIPT_ANY = 0 };
int unicode_script(int32_t code);
/* Characters that the library's normalization forms do not know yet: left alone, and no marks. */
unicode_class unicode_is_too_new;

/* Characters of Unicode 15 and 16, which the library's regular expressions know. */
typedef struct unicode_newer_run {
    int32_t first, last;
    const char *category; /* "Lu" and so on                                                        */
    bool alphabetic;
    const char *script; /* in lower case; "" for scripts that are newer themselves, and for none    */
} unicode_newer_run;
const unicode_newer_run *unicode_newer(size_t *count);

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

/* ---- trie.c: a tree of bytes --------------------------------------------------------------- */

typedef struct trie_node {
    uint32_t parent, value;
    unsigned char byte;
} trie_node;

typedef struct trie {
    trie_node *nodes; /* the first is the root                                                  */
    size_t count, capacity;
    uint32_t *slots; /* open addressing: the child of a node by a byte                          */
    size_t mask;
    uint64_t factor; /* of the hash, odd                                                        */
} trie;

#define TRIE_NONE UINT32_MAX
bool trie_put(trie *t, const char *text, size_t length, uint32_t value); /* value replaces an older one  */
uint32_t trie_step(const trie *t, uint32_t node, unsigned char byte);    /* TRIE_NONE: no such child      */
void trie_free(trie *t);

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
tn_status vocab_load_tokens(vocab *v, const doc_node *model, place at, tn_error *err); /* without merges      */
tn_status vocab_map_tokens(vocab *v, place at, tn_error *err); /* makes all tokens so far findable       */
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
    size_t origin; /* text before here comes from the first character of the input              */
} pieces;

bool buffer_add_piece(pieces *p, size_t start, size_t end, int64_t id);
/* Appends text as a piece of its own. */
bool buffer_append_piece(pieces *p, const char *text, size_t length, int64_t id);
void buffer_free_pieces(pieces *p);

/* ---- normalize.c ---------------------------------------------------------------------------- */

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

tn_status normalize_load(normalizer *n, const doc_node *node, place at, tn_error *err);
void normalize_free(normalizer *n);
tn_status normalize_apply(const normalizer *n, const char *text, size_t length, buffer *out, tn_error *err);
/* The same. *origin, where given: how many bytes come from the first character of the input; updated. */
tn_status normalize_apply_from(const normalizer *n, const char *text, size_t length, size_t *origin, buffer *out,
                               tn_error *err);

/* ---- charmap.c: normalizers that look at one character at a time --------------------------- */

normalize_map charmap_strip_accents, charmap_strip_nonspacing, charmap_nmt, charmap_bytes, charmap_clean,
    charmap_chinese;

/* ---- precompiled.c: the character maps of SentencePiece ------------------------------------ */

charsmap *precompiled_load(const doc_node *node, place at, tn_error *err); /* owned */
void precompiled_free(charsmap *c);
bool precompiled_apply(const charsmap *c, const char *text, size_t length, buffer *out);

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

/* A token that decodes to what the normalizer makes of it. */
typedef struct added_shown {
    uint32_t id;
    bool special;
    size_t offset, length;
} added_shown;

typedef struct added {
    added_token *tokens;
    size_t count, capacity;
    added_trie raw, normalized;
    added_shown *shown; /* by id                                                                  */
    size_t shown_count;
    buffer shown_text;
} added;

tn_status added_load(added *a, const doc_node *node, vocab *v, const normalizer *n, place at, tn_error *err);
void added_free(added *a);
const added_shown *added_find_shown(const added *a, uint32_t id); /* NULL: decodes to its own text      */
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

tn_status pretok_load(pretok *t, const doc_node *node, place at, tn_error *err);
void pretok_free(pretok *t);
tn_status pretok_apply(const pretok *t, pieces *p, tn_error *err);
/* The same, but that *bytes tells of pieces whose bytes the caller has still to turn into characters: their words are
 * known before. */
tn_status pretok_apply_words(const pretok *t, pieces *p, bool *bytes, tn_error *err);

/* Turns the stretches of one piece, matches and what lies between them, into spans. */
typedef struct pretok_cutter {
    const pretok_op *op;
    pieces *out;
    bool any, previous; /* a span of this piece exists; the last stretch was a match               */
    bool held;          /* a match waits to join the next stretch                                */
    size_t held_start, held_end;
} pretok_cutter;

bool pretok_cut(pretok_cutter *c, size_t start, size_t end, bool match);
bool pretok_cut_end(pretok_cutter *c);

/* split.c: pre-tokenizers without regular expressions; each appends the spans or the text of one piece. */
bool split_class(const pretok_op *op, const char *text, span piece, pieces *out);
bool split_words(const char *text, span piece, pieces *out);
bool split_fixed(const pretok_op *op, const char *text, span piece, pieces *out);
bool split_scripts(const char *text, span piece, pieces *out);
bool split_metaspace(const pretok_op *op, const char *text, size_t length, size_t *origin, buffer *out);

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
    buffer prefix, suffix; /* of characters inside a word, and of its last one                      */
    bool ignore_merges, byte_fallback, fuse_unk;
    uint32_t unk;             /* VOCAB_NONE: none                                                             */
    uint32_t bytes[256];      /* ids of "<0x00>" and so on, for byte_fallback                     */
    uint32_t characters[256]; /* ids of the characters that stand for bytes (pretok_byte_char)  */
    bool short_words;         /* bpe.c may merge short words without a heap                     */
} bpe;

typedef struct bpe_scratch bpe_scratch;

tn_status bpe_load(bpe *b, const doc_node *model, const vocab *v, place at, tn_error *err);
void bpe_free(bpe *b);
/* Scratch for one encoding. Owned. */
bpe_scratch *bpe_scratch_new(void);
void bpe_scratch_free(bpe_scratch *s);
bool bpe_encode(const bpe *b, const vocab *v, const char *word, size_t length, bpe_scratch *s, id_list *out);
/* All pieces of a text. bytes: they have not become the characters of a byte-level vocabulary yet. */
bool bpe_encode_pieces(const bpe *b, const vocab *v, const pieces *p, bool bytes, id_list *out);

/* ---- unigram.c ---------------------------------------------------------------------------------- */

typedef struct unigram {
    trie pieces;
    double *scores; /* by id                                                                     */
    double unknown; /* the score of an unknown character                                        */
    uint32_t unk;   /* VOCAB_NONE: none                                                          */
    bool byte_fallback;
    uint32_t bytes[256];
} unigram;

tn_status unigram_load(unigram *u, vocab *v, const doc_node *model, place at, tn_error *err);
void unigram_free(unigram *u);
tn_status unigram_encode(const unigram *u, const char *text, size_t length, id_list *out, place at, tn_error *err);

/* ---- wordpiece.c: WordPiece and WordLevel -------------------------------------------------------- */

typedef struct wordpiece {
    trie starts, continued; /* tokens, and those that begin with the prefix, without it             */
    int64_t longest;        /* characters of a word that is looked at                               */
    uint32_t unk;           /* VOCAB_NONE: none                                                     */
    bool whole;             /* WordLevel: words only                                                */
} wordpiece;

tn_status wordpiece_load(wordpiece *w, vocab *v, const doc_node *model, bool whole, place at, tn_error *err);
void wordpiece_free(wordpiece *w);
tn_status wordpiece_encode(const wordpiece *w, const vocab *v, const char *word, size_t length, id_list *out, place at,
                           tn_error *err);

/* ---- post.c: what the post-processor adds ----------------------------------------------------- */

/* A step of the post-processor. A text is one part; a template makes a part of each of its pieces, which steps behind
 * it take one by one. */
typedef struct post_step {
    enum { POST_TEMPLATE, POST_BERT, POST_ROBERTA } kind;
    id_list pieces; /* ids, and POST_FIRST, POST_SECOND, POST_END; else of the tokens before and behind   */
} post_step;

enum { POST_FIRST = -1, POST_SECOND = -2, POST_END = -3 }; /* the first part, the second, the end of a part  */

typedef struct post {
    post_step *steps;
    size_t count, capacity;
    size_t parts;      /* that the steps so far make of a text                                        */
    size_t vocab_size; /* where ids end                                                             */
} post;

/* v: complete, with added tokens. */
tn_status post_load(post *p, const doc_node *node, const vocab *v, place at, tn_error *err);
void post_free(post *p);
bool post_apply(const post *p, id_list *ids);

/* ---- decode.c ----------------------------------------------------------------------------------- */

typedef struct decode_op {
    enum {
        DECODE_BYTE_LEVEL,
        DECODE_BYTE_FALLBACK,
        DECODE_FUSE,
        DECODE_REPLACE,
        DECODE_STRIP,
        DECODE_METASPACE,
        DECODE_WORDPIECE,
        DECODE_BPE,
        DECODE_CTC,
        DECODE_JOIN
    } kind;
    regex *pattern;
    buffer content; /* also METASPACE's character, WORDPIECE's prefix, BPE's suffix, CTC's padding    */
    buffer delimiter;
    int64_t start, stop;
    bool cleanup; /* METASPACE: the first token loses the characters                              */
} decode_op;

typedef struct decoder {
    decode_op *ops;
    size_t count, capacity;
} decoder;

tn_status decode_load(decoder *d, const doc_node *node, place at, tn_error *err);
void decode_free(decoder *d);

/* cleanup.c: what two decoders do to the text of a token. Both append to out. */
bool cleanup_replace(const char *text, size_t length, const char *from, size_t from_length, const char *to,
                     buffer *out);
bool cleanup_english(const char *text, size_t length, buffer *out);

/* ---- source.c --------------------------------------------------------------------------------------- */

/* A whole regular file, unpacked if its name ends in .gz, and a NUL behind it. Owned: free(). NULL: see err. */
char *source_read(const char *path, size_t *size, tn_error *err);

/* ---- sentencepiece.c ---------------------------------------------------------------------------------- */

/* Appends the tokenizer.json that stands for a SentencePiece model. */
tn_status sentencepiece_convert(const char *data, size_t size, const char *path, buffer *json, tn_error *err);

/* ---- tokenizer.c ----------------------------------------------------------------------------------- */

struct tn_tokenizer {
    char *path; /* of the file                                                                    */
    vocab vocab;
    added added;
    normalizer normalizer;
    pretok pretok;
    enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE } model;
    bpe bpe;
    unigram unigram;
    wordpiece wordpiece;
    post post;
    decoder decoder;
};

#endif
