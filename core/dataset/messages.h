/* Inside core: the conversation of a record, whatever format it has, as chat templates take it. */
#ifndef TENON_CORE_MESSAGES_H
#define TENON_CORE_MESSAGES_H

#include "dataset/record.h"

#include <jansson.h>

typedef struct messages {
    json_t *list;  /* {"role", "content", ...}; owned                                             */
    json_t *tools; /* a list, or NULL; owned                                                     */
    bool *learnt;  /* of each: is it an answer to learn from? owned                              */
    size_t prompt; /* so many of them are the prompt of all others, which are one answer; 0: they are not */
} messages;

typedef enum messages_kind {
    MESSAGES_NONE,
    MESSAGES_LIST,     /* messages, or conversations                                              */
    MESSAGES_ALPACA,   /* instruction, input, output, system, history                             */
    MESSAGES_COMPLETED /* prompt and completion, lists both                                       */
} messages_kind;

/* Fills m, which is to be freed after an error, too. */
tn_status messages_of_record(const record_reader *reader, const json_t *root, messages_kind kind, messages *m,
                             tn_error *err);
void messages_free(messages *m);

bool messages_is_answer(const messages *m, size_t i); /* of the assistant                        */

/* A member that is there and not null. */
json_t *messages_member(const json_t *object, const char *key);

#endif
