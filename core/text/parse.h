/* Inside core/text: JSON as a tree. A tokenizer.json has some 150,000 tokens and as many merges; their texts stay where
 * they are in the file's bytes, and a value takes 16 bytes. */
#ifndef TENON_CORE_TEXT_PARSE_H
#define TENON_CORE_TEXT_PARSE_H

#include "base/siphash.h"
#include "text/doc.h"

typedef enum parse_kind {
    PARSE_NULL,
    PARSE_FALSE,
    PARSE_TRUE,
    PARSE_INTEGER,
    PARSE_REAL,
    PARSE_TEXT,
    PARSE_LIST,
    PARSE_OBJECT
} parse_kind;

struct doc_node {
    uint32_t kind;  /* a parse_kind                                                                  */
    uint32_t count; /* bytes of a text, elements of a list, members of an object                    */
    union {
        int64_t integer;
        double real;
        const char *text;         /* ends in NUL; may hold others                                   */
        const doc_node *children; /* elements, or members: key, value, key, value, ...              */
    } is;
};

/* Behind the members of an object that has more than PARSE_INDEXED stands a hash table. */
#define PARSE_INDEXED 8
#define PARSE_FREE UINT32_MAX

typedef struct parse_index {
    siphash_key key;
    uint32_t slots[]; /* slots_for() of them: indices of members, PARSE_FREE where there is none       */
} parse_index;

typedef struct parse_tree {
    doc_node root;
    void **blocks; /* memory of the nodes                                                            */
    size_t block_count, block_capacity;
    size_t used, room; /* of the last block                                                          */
} parse_tree;

typedef struct parse_error {
    size_t line, column; /* from 1; the column in bytes                                             */
    const char *text;    /* NULL: out of memory                                                         */
} parse_error;

/* Reads size bytes, behind which stands a NUL, and works in them: the tree's texts lie in data. Accepts what RFC 8259
 * has, of objects and lists, in UTF-8, with at most 2048 values inside one another, integers of 64 bits and no key
 * twice. A key may hold a NUL, as a text may. false: *error says why. parse_free in both cases. */
bool parse_json(parse_tree *tree, char *data, size_t size, parse_error *error);
void parse_free(parse_tree *tree);

/* The member's value, or NULL. */
const doc_node *parse_find(const doc_node *object, const char *key, size_t length);

#endif
