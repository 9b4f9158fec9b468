/* Reading tokenizer.json: typed access to a parsed JSON file whose errors name file and component. */
#ifndef TENON_CORE_TEXT_DOC_H
#define TENON_CORE_TEXT_DOC_H

#include <tenon/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct doc doc;
typedef struct doc_node doc_node; /* a value inside a doc, and as long-lived                     */

/* Where a component stands, for messages: "FILE", "pre_tokenizer". */
typedef struct place {
    const char *file, *component;
} place;

/* Reading a component. The first error sticks: members read after it have no meaning, and what they lack is no further
 * error. */
typedef struct doc_reader {
    place at;
    tn_error *err;
    tn_status status;
} doc_reader;

/* An error: "COMPONENT: what is wrong", of what the file says, or that memory is short. Both return the reader's status
 * and do nothing but that after an error. */
tn_status doc_fail(doc_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
tn_status doc_no_memory(doc_reader *r);

/* Reads size bytes, behind which stands a NUL. text is taken (free()) also on failure; path is for messages. Owned. */
doc *doc_parse(char *text, size_t size, const char *path, tn_error *err);
void doc_close(doc *document);
const doc_node *doc_root(const doc *document);

/* A member; NULL when node is no object, or the member is absent or null. */
const doc_node *doc_get(const doc_node *node, const char *key);

bool doc_is_object(const doc_node *node);
bool doc_is_list(const doc_node *node);
size_t doc_count(const doc_node *node); /* elements of a list, members of an object                */
const doc_node *doc_at(const doc_node *list, size_t index);

/* Members of an object in order. Start with *iterator NULL; false after the last. A key may hold NULs. */
bool doc_next(const doc_node *object, void **iterator, const char **key, size_t *length, const doc_node **value);

/* NULL when node is no string. It may hold NULs. */
const char *doc_text(const doc_node *node, size_t *length);
bool doc_integer(const doc_node *node, int64_t *value);
bool doc_number(const doc_node *node, double *value); /* an integer, too */

/* Members with a type. An absent one leaves *value as it was and is no error. */
void doc_get_flag(const doc_node *node, const char *key, bool *value, doc_reader *r);
void doc_get_integer(const doc_node *node, const char *key, int64_t *value, doc_reader *r);
void doc_get_text(const doc_node *node, const char *key, const char **text, size_t *length, doc_reader *r);

/* Members that must be there. */
void doc_need_flag(const doc_node *node, const char *key, bool *value, doc_reader *r);
void doc_need_integer(const doc_node *node, const char *key, int64_t *value, doc_reader *r);
void doc_need_text(const doc_node *node, const char *key, const char **text, size_t *length, doc_reader *r);
/* One character. */
void doc_need_character(const doc_node *node, const char *key, const char **text, size_t *length, doc_reader *r);
/* NULL after the error that there is none. */
const doc_node *doc_need_list(const doc_node *node, const char *key, doc_reader *r);

/* Refuses members other than "type" and those in the list of names, which spaces separate: what they change is not
 * known. Null and false change nothing. */
void doc_only(const doc_node *node, const char *names, doc_reader *r);

/* The member "type", or "" when there is none. */
const char *doc_type(const doc_node *node);

/* The error for a component that is not supported. */
tn_status doc_unsupported(const doc_node *node, const char *supported, doc_reader *r);

#endif
