/* Inside core/text: what the post-processor adds. */
#ifndef TENON_CORE_TEXT_POST_H
#define TENON_CORE_TEXT_POST_H

#include <tenon/error.h>

#include "text/bpe.h"
#include "text/doc.h"
#include "text/spans.h"
#include "text/vocab.h"

#include <stdbool.h>
#include <stddef.h>

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
tn_status post_load(post *p, const doc_node *node, const vocab *v, doc_reader *r);
void post_free(post *p);
bool post_apply(const post *p, id_list *ids);

#endif
