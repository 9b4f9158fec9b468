/* Inside core: one record, of any format, as samples. */
#ifndef TENON_CORE_RECORD_H
#define TENON_CORE_RECORD_H

#include "dataset/records.h"
#include "dataset/samples.h"

#include <tenon/chat.h>
#include <tenon/text.h>

/* What records are read by; it does not change meanwhile. */
typedef struct record_reader {
    tn_dataset_options options;    /* with max_length and join                                          */
    const tn_tokenizer *tokenizer; /* NULL: there is none, and no_tokenizer says why                    */
    const tn_template *chat;       /* NULL: there is none, and no_template says why                     */
    const struct escape *specials; /* of the tokenizer                                              */
    const tn_error *no_tokenizer, *no_template;
    const int64_t *begin; /* what texts begin with: begin_count tokens                                */
    size_t begin_count;
    int64_t eos;   /* what they end with; -1: nothing                                                 */
    int64_t vocab; /* ids are below it; 0: nobody knows                                               */
} record_reader;

/* Adds the samples of a record; text: it is not JSON, but a piece of a text. The error has no place; *line: how many
 * lines it is behind the record's first one. [any thread] */
tn_status record_read(const record_reader *reader, const record *r, bool text, samples *to, int64_t *line,
                      tn_error *err);

#endif
