/* Inside core: what the records of a model are read by, from the files of its folder. */
#ifndef TENON_CORE_READER_H
#define TENON_CORE_READER_H

#include "dataset/escape.h"
#include "dataset/record.h"

typedef struct reader {
    record_reader by; /* points to the rest */
    tn_tokenizer *tokenizer;
    tn_template *chat;
    escape specials;
    tn_error no_tokenizer, no_template;
    int64_t *begin;
} reader;

/* Of a folder, or a .gguf. eos: what texts end with where its files do not say. One without a tokenizer is no error:
 * then records must be tokens. One without a chat template has ChatML. Closed after an error, too. */
tn_status reader_open(reader *r, const char *folder, int64_t eos, tn_error *err);
void reader_close(reader *r);

#endif
