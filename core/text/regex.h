/* Inside core/text: regular expressions as tokenizer.json writes them. */
#ifndef TENON_CORE_TEXT_REGEX_H
#define TENON_CORE_TEXT_REGEX_H

#include <tenon/error.h>

#include "text/buffer.h"
#include "text/doc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct regex regex;

/* literal: pattern is plain text. Owned. */
regex *regex_new(const char *pattern, size_t length, bool literal, doc_reader *r);
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
regex *regex_load(const doc_node *pattern, doc_reader *r);

/* Appends text with every match replaced. */
tn_status regex_replace(const regex *re, const char *text, size_t length, const buffer *content, buffer *out,
                        tn_error *err);

#endif
